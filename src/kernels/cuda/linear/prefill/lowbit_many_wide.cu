// This file instantiates the prefill kernels for integers of 5 and 6 bits.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::integer, 5, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 5, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 5, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 5, true>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 6, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 6, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 6, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 6, true>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
