#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::integer, 7, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 7, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 7, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 7, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 8, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 8, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 8, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 8, true>(Stream, const RoutedArguments&, int);

}  // namespace fidelio::cuda
