// This file instantiates the decode kernels for grids of 6 bits that are curves.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::curve, 6, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::curve, 6, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::curve, 6, false>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
