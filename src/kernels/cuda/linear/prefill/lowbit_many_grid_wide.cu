// This file instantiates the prefill kernels for grids of 5 and 6 bits.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::grid, 5, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::grid, 5, false>(Stream, const RoutedManyArguments&, int);
template void launch_many<CodeKind::grid, 6, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::grid, 6, false>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
