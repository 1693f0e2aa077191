#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::curve, 6, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::curve, 6, false>(Stream, const RoutedArguments&, int);

}  // namespace fidelio::cuda
