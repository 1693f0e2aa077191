// This file instantiates the decode kernels for grids of 2 to 4 bits.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::grid, 2, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::grid, 2, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::grid, 2, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::grid, 3, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::grid, 3, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::grid, 3, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::grid, 4, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::grid, 4, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::grid, 4, false>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
