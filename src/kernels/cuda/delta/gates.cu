// This file has the gates of a delta net, of attention and of a shared expert.
#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kGatesThreads = 256, kGatesWarps = kGatesThreads / 32;

__device__ __forceinline__ float opened(float gate) { return __fdividef(1, 1 + expf(-gate)); }

// Thread block (m, i) has the heads 8 i .. 8 i + 7 of row m, one in each warp.
__global__ void __launch_bounds__(kGatesThreads)
    norm_and_gate_heads(const float* x, const float* gate, const float* weight, float eps, bool is_silu, int heads,
                        int e, float* y, PreparedRows prepared) {
  begin_kernel();
  const int m = blockIdx.x, head = blockIdx.y * kGatesWarps + threadIdx.x / 32, first = threadIdx.x % 32 * 4;
  if (head >= heads) return;
  const int64_t at = (int64_t{m} * heads + head) * e;
  float squares = 0;
  for (int block = 0; block < e; block += kBlockColumns) squares += squares_of_block(load4(x + at, block + first, e));
  const float factor = norm_factor(squares, e, eps);
  for (int block = 0; block < e; block += kBlockColumns) {
    const int column = block + first;
    const float4 g = load4(gate + at, column, e);
    const float4 open = {opened(g.x), opened(g.y), opened(g.z), opened(g.w)};
    const float4 made = load4(x + at, column, e) * factor * load4(weight, column, e) * (is_silu ? g * open : open);
    if (prepared.blocks)
      prepare_block(made, m, gridDim.x, (head * e + block) / kBlockColumns, heads * e / kBlockColumns, prepared);
    store4(y + at, column, e, made);
  }
}

__global__ void __launch_bounds__(kGatesThreads)
    split_row_of_heads(const float* x, int h, int e, float* q, float* gate) {
  begin_kernel();
  const int column = (blockIdx.y * kGatesThreads + static_cast<int>(threadIdx.x)) * 4;
  if (column >= h * e) return;
  const int64_t row = blockIdx.x, from = 2 * row * h * e + 2 * (column / e) * e + column % e, to = row * h * e + column;
  *reinterpret_cast<float4*>(q + to) = *reinterpret_cast<const float4*>(x + from);
  *reinterpret_cast<float4*>(gate + to) = *reinterpret_cast<const float4*>(x + from + e);
}

__global__ void __launch_bounds__(kGatesThreads) add_share(const float* y, const float* gate, int d, float* x) {
  begin_kernel();
  const int column = blockIdx.y * kGatesThreads + static_cast<int>(threadIdx.x);
  if (column >= d) return;
  const int64_t at = int64_t{blockIdx.x} * d + column;
  x[at] = fmaf(opened(gate[blockIdx.x]), y[at], x[at]);
}

dim3 rows_by(int64_t n, int64_t count, int64_t each) {
  return dim3(static_cast<unsigned>(n), static_cast<unsigned>((count + each - 1) / each));
}

}  // namespace

void gated_norm(Stream stream, const float* x, const float* gate, const float* weight, float eps, Gate function,
                int64_t n, int heads, int e, float* y, const PreparedRows& prepared) {
  launch("a gated norm", stream, rows_by(n, heads, kGatesWarps), kGatesThreads, 0, norm_and_gate_heads, x, gate, weight,
         eps, function == Gate::silu, heads, e, y, prepared);
}
void split_heads(Stream stream, const float* x, int64_t n, int h, int e, float* q, float* gate) {
  launch("splitting gates off", stream, rows_by(n, int64_t{h} * e, kGatesThreads * 4), kGatesThreads, 0,
         split_row_of_heads, x, h, e, q, gate);
}
void add_shared(Stream stream, const float* y, const float* gate, int64_t n, int64_t d, float* x) {
  launch("adding a shared expert", stream, rows_by(n, d, kGatesThreads), kGatesThreads, 0, add_share, y, gate,
         static_cast<int>(d), x);
}

}  // namespace fidelio::cuda
