// This file puts columns in other places: those of activations (Backend::gather), where the columns kept in 8 bits
// come last and twice, and those of logits (Backend::spread).
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Each warp has a group of `group` columns of one row, at most 128. Groups before `coarse` are clipped.
__global__ void __launch_bounds__(kThreads) gather_groups(const float* x, int from_columns, const int32_t* order,
                                                          int columns, int group, int coarse, float clip, float* y) {
  begin_kernel();
  const int lane = threadIdx.x % 32, first = (blockIdx.y * kWarps + threadIdx.x / 32) * group;
  if (first >= columns) return;
  const float* from = x + blockIdx.x * int64_t{from_columns};
  float* to = y + blockIdx.x * int64_t{columns};
  float most = __builtin_inff();
  if (first < coarse) {
    float largest = 0;
    for (int c = first + lane; c < first + group; c += 32) largest = fmaxf(largest, fabsf(from[order[c]]));
    for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    most = clip * largest;
  }
  for (int c = first + lane; c < first + group; c += 32) {
    const float value = from[order[c]];
    to[c] = value > most ? most : value < -most ? -most : value;
  }
}

__global__ void __launch_bounds__(kThreads)
    spread_row(const float* x, int64_t columns, const int32_t* places, int64_t v, float* y) {
  begin_kernel();
  const int64_t token = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (token >= v) return;
  const int32_t place = places[token];
  y[blockIdx.x * v + token] = place < 0 ? -__builtin_inff() : x[blockIdx.x * columns + place];
}

}  // namespace

void spread_logits(Stream stream, const float* x, int64_t columns, const int32_t* places, int64_t n, int64_t v,
                   float* y) {
  launch("spreading logits", stream,
         dim3(static_cast<unsigned>(n), static_cast<unsigned>((v + kThreads - 1) / kThreads)), kThreads, 0, spread_row,
         x, columns, places, v, y);
}
void gather_columns(Stream stream, const float* x, int64_t n, int64_t from_columns, const ColumnOrder& order,
                    float clip, float* y) {
  const int64_t groups = order.columns / order.kept;
  launch("gathering columns", stream,
         dim3(static_cast<unsigned>(n), static_cast<unsigned>((groups + kWarps - 1) / kWarps)), kThreads, 0,
         gather_groups, x, static_cast<int>(from_columns), order.order, static_cast<int>(order.columns),
         static_cast<int>(order.kept), static_cast<int>(clip < 1 ? order.columns - 2 * order.kept : 0), clip, y);
}

}  // namespace fidelio::cuda
