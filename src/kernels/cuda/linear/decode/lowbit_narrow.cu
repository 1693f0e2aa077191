// This file instantiates the decode kernels for integers of 2 to 4 bits.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::integer, 2, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 2, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 2, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 2, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 2, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 2, true>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 3, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 3, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 3, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 3, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 3, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 3, true>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 4, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 4, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 4, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::integer, 4, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::integer, 4, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::integer, 4, true>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
