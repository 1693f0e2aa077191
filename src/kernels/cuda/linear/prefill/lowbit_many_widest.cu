// This file instantiates the prefill kernels for integers of 7 and 8 bits.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::integer, 7, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 7, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 7, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 7, true>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 8, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 8, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 8, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 8, true>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
