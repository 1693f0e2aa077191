// This file instantiates the prefill kernels for integers of 2 to 4 bits.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::integer, 2, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 2, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 2, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 2, true>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 3, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 3, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 3, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 3, true>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 4, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 4, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::integer, 4, true>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::integer, 4, true>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
