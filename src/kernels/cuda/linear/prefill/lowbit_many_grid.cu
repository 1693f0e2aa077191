// This file instantiates the prefill kernels for grids of 2 to 4 bits.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::grid, 2, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::grid, 2, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::grid, 3, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::grid, 3, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::grid, 4, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::grid, 4, false>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
