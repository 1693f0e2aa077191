// This file instantiates the decode kernels for grids of 5 and 6 bits.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::grid, 5, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::grid, 5, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::grid, 5, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::grid, 6, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::grid, 6, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::grid, 6, false>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
