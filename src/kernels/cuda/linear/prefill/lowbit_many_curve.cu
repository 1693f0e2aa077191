// This file instantiates the prefill kernels for grids of 6 bits that are curves.
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::curve, 6, false>(Stream, const ManyArguments&, int);
template void launch_many_routed<CodeKind::curve, 6, false>(Stream, const RoutedManyArguments&, int);

}  // namespace fidelio::cuda
