// This file instantiates the kernels that read only the four high bits of integers of 5 to 8 bits (a view), whatever
// the width.
#include "kernels/cuda/linear/decode/lowbit_rows.cuh"

namespace fidelio::cuda {

template void launch_lowbit_rows<CodeKind::high, 4, false>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::high, 4, false>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::high, 4, false>(Stream, const TiledArguments&, int);
template void launch_lowbit_rows<CodeKind::high, 4, true>(Stream, const LowbitArguments&, int);
template void launch_lowbit_routed<CodeKind::high, 4, true>(Stream, const RoutedArguments&, int);
template void launch_lowbit_tiled<CodeKind::high, 4, true>(Stream, const TiledArguments&, int);

}  // namespace fidelio::cuda
