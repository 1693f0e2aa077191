#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template void launch_many<CodeKind::grid, 2, false>(Stream, const ManyArguments&, int);
template void launch_many<CodeKind::grid, 3, false>(Stream, const ManyArguments&, int);
template void launch_many<CodeKind::grid, 4, false>(Stream, const ManyArguments&, int);

}  // namespace fidelio::cuda
