// This file instantiates the decode kernels for integers of 7 and 8 bits.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::integer, 7, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 7, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 7, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 7, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 7, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 7, true>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 8, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 8, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 8, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 8, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 8, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 8, true>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
