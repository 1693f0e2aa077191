// This file instantiates the decode kernel for weights of FP16 values.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template <>
void launch_lowbit_rows<CodeKind::half, 16, false>(Stream stream, const LowbitArguments& p, int row_blocks) {
  launch_lowbit_tiles<CodeTraits<CodeKind::half, 16, false, 4>>(stream, p, row_blocks);
}

}  // namespace fidelio::cuda
