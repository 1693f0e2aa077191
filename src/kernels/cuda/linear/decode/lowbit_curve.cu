#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::curve, 6, false>(Stream, const LowbitArguments&, int);

}  // namespace fidelio::cuda
