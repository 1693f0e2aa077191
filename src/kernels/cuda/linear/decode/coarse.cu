// Activations as few-bit integers, kept as the numbers they stand for: what a8, a6, a4 and aw multiply.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kTiny = 1e-30f;  // below it a group counts as zero: steps / largest would overflow

// A warp a group of at most 128 columns. Magnitudes are compared as bit patterns, so that NaN counts above everything
// and reaches the scale.
__global__ void __launch_bounds__(kThreads)
    round_groups(const float* x, int columns, int fine_from, int group, float coarse_steps, float* y) {
  begin_kernel();
  const int lane = threadIdx.x % 32, first = (blockIdx.y * (kThreads / 32) + threadIdx.x / 32) * group;
  const int last = min(first + group, columns);
  if (first >= columns) return;
  const float steps = first >= fine_from ? 127.0f : coarse_steps;
  const float* from = x + blockIdx.x * int64_t{columns};
  float* to = y + blockIdx.x * int64_t{columns};
  uint32_t most = 0;
  for (int c = first + lane; c < last; c += 32) most = max(most, __float_as_uint(from[c]) & 0x7fffffffu);
  most = __reduce_max_sync(~0u, most);
  const float largest = __uint_as_float(most);
  const bool zero = largest < kTiny;
  const float inverse = zero ? 0.0f : __fdiv_rn(steps, largest), scale = zero ? 0.0f : __fdiv_rn(largest, steps);
  for (int c = first + lane; c < last; c += 32) to[c] = rintf(from[c] * inverse) * scale;
}

}  // namespace

void round_to_integers(Stream stream, const float* x, int64_t n, int64_t columns, int64_t fine, int64_t group,
                       float steps, float* y) {
  const int64_t groups = (columns + group - 1) / group, warps = kThreads / 32;
  launch("rounding activations", stream,
         dim3(static_cast<unsigned>(n), static_cast<unsigned>((groups + warps - 1) / warps)), kThreads, 0, round_groups,
         x, static_cast<int>(columns), static_cast<int>(columns - fine), static_cast<int>(group), steps, y);
}

}  // namespace fidelio::cuda
