// What attention does beside its products: whole rows of scores between two batched products (gpu_attention.cc). A warp
// has a row. Factors of products are T: FP32, or BF16 in memory of its own.
#include <cuda_bf16.h>

#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"

namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kWarp = 32, kRows = 4;  // rows of a thread block

__device__ __forceinline__ float sum_of(float x) {
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}
__device__ __forceinline__ float largest_of(float x) {
  for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
  return x;
}

// The row of a warp: query i of a score matrix, and which keys it sees.
struct Row {
  int i, length, first, lane;
  int64_t scores;  // where its row of scores begins
  int64_t row;     // (n, h) of its query and head

  __device__ Row(const Pairs& p, int heads, int window)
      : i(static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kWarp),
        length(static_cast<int>(p.length)),
        lane(static_cast<int>(threadIdx.x) % kWarp) {
    first = window > 0 && i - window + 1 > 0 ? i - window + 1 : 0;
    const int64_t unit = p.start + blockIdx.y / p.each, head = unit % p.shared * p.each + blockIdx.y % p.each;
    scores = (int64_t{blockIdx.y} * length + i) * length;
    row = (int64_t{p.begins[unit / p.shared]} + i) * heads + head;
  }
  __device__ bool sees(int j) const { return j <= i && j >= first; }
};

template <typename T>
__global__ void softmax_rows(Pairs pairs, int heads, int window, const float* scores, T* p, float* lse) {
  const Row at(pairs, heads, window);
  if (at.i >= at.length) return;
  const float* s = scores + at.scores;
  float top = -INFINITY, sum = 0;
  for (int j = at.lane; j <= at.i; j += kWarp)
    if (at.sees(j)) top = fmaxf(top, s[j]);
  top = largest_of(top);
  for (int j = at.lane; j <= at.i; j += kWarp)
    if (at.sees(j)) sum += expf(s[j] - top);
  sum = sum_of(sum);
  const float inverse = 1.0f / sum;
  for (int j = at.lane; j < at.length; j += kWarp)
    p[at.scores + j] = static_cast<T>(at.sees(j) ? expf(s[j] - top) * inverse : 0.0f);
  if (at.lane == 0) lse[at.row] = top + logf(sum);
}

// From scores and dp = dout v^T to p and ds = p (dp - along) scale. p may be where the scores are, ds where dp is.
template <typename T>
__global__ void softmax_rows_backward(Pairs pairs, int heads, int window, float scale, const float* scores,
                                      const float* dp, const float* lse, const float* along, T* p, T* ds) {
  const Row at(pairs, heads, window);
  if (at.i >= at.length) return;
  const float of_row = lse[at.row], mean = along[at.row];
  for (int j = at.lane; j < at.length; j += kWarp) {
    const int64_t k = at.scores + j;
    const float x = at.sees(j) ? expf(scores[k] - of_row) : 0.0f;
    const float gradient = at.sees(j) ? x * (dp[k] - mean) * scale : 0.0f;
    p[k] = static_cast<T>(x);
    ds[k] = static_cast<T>(gradient);
  }
}

// along (n, h) = sum over e of dout out.
__global__ void along_rows(const float* dout, const float* out, int64_t rows, int e, float* along) {
  const int64_t row = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
  for (int c = lane; c < e; c += kWarp) sum += dout[row * e + c] * out[row * e + c];
  sum = sum_of(sum);
  if (lane == 0) along[row] = sum;
}

__global__ void point(Pairs p, Pointed what, int member, int members, int64_t count, int64_t table, void** pointers) {
  const int64_t b = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (b >= count) return;
  const int64_t unit = b / members, sequence = (p.start + unit) / p.shared, kv = (p.start + unit) % p.shared,
                head = member + b % members, first = p.begins[sequence];
  for (int t = 0; t < what.count; ++t) {
    const Pointed::One& one = what.of[t];
    int64_t at = 0;
    if (one.kind == Pointed::queries) at = (first * p.shared * p.each + kv * p.each + head) * p.e;
    if (one.kind == Pointed::keys) at = (first * p.shared + kv) * p.e;
    if (one.kind == Pointed::scores) at = (unit * p.each + head) * p.length * p.length;
    pointers[t * table + b] = static_cast<char*>(one.base) + at * one.size;
  }
}

__global__ void to_bf16(const float* from, int64_t n, __nv_bfloat16* to) {
  const int64_t count = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += count)
    to[i] = __float2bfloat16_rn(from[i]);
}
// Four at a time.
__global__ void to_bf16_quads(const float4* from, int64_t n, uint2* to) {
  const int64_t count = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += count) {
    const float4 x = from[i];
    const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
    to[i] = {*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high)};
  }
}

dim3 grid_of(const Pairs& p, int64_t units) {
  return {static_cast<unsigned>((p.length + kRows - 1) / kRows), static_cast<unsigned>(units * p.each)};
}

}  // namespace

void softmax(Stream s, const Pairs& pairs, int64_t units, const Heads& a, const float* scores, void* p, bool bf16,
             float* lse) {
  if (bf16)
    softmax_rows<<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(pairs, a.h, a.window, scores,
                                                                 static_cast<__nv_bfloat16*>(p), lse);
  else
    softmax_rows<<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(pairs, a.h, a.window, scores, static_cast<float*>(p),
                                                                 lse);
  cuda_check(cudaGetLastError(), "attention");
}

void softmax_backward(Stream s, const Pairs& pairs, int64_t units, const Heads& a, const float* scores, const float* dp,
                      const float* lse, const float* along, void* p, void* ds, bool bf16) {
  if (bf16)
    softmax_rows_backward<<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(pairs, a.h, a.window, a.scale, scores, dp,
                                                                          lse, along, static_cast<__nv_bfloat16*>(p),
                                                                          static_cast<__nv_bfloat16*>(ds));
  else
    softmax_rows_backward<<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(
        pairs, a.h, a.window, a.scale, scores, dp, lse, along, static_cast<float*>(p), static_cast<float*>(ds));
  cuda_check(cudaGetLastError(), "attention's backward");
}

void sum_along(Stream s, const float* dout, const float* out, int64_t rows, int64_t e, float* along) {
  along_rows<<<static_cast<unsigned>((rows * kWarp + 255) / 256), 256, 0, s>>>(dout, out, rows, static_cast<int>(e),
                                                                               along);
  cuda_check(cudaGetLastError(), "attention's backward");
}

void point_at(Stream s, const Pairs& pairs, const Pointed& what, int member, int members, int64_t count, int64_t table,
              void** pointers) {
  point<<<static_cast<unsigned>((count + 255) / 256), 256, 0, s>>>(pairs, what, member, members, count, table,
                                                                   pointers);
  cuda_check(cudaGetLastError(), "pointing at heads");
}

void to_bf16(Stream s, const float* from, int64_t n, uint16_t* to) {
  if (n % 4 == 0)
    to_bf16_quads<<<1056, 256, 0, s>>>(reinterpret_cast<const float4*>(from), n / 4, reinterpret_cast<uint2*>(to));
  else
    to_bf16<<<1056, 256, 0, s>>>(from, n, reinterpret_cast<__nv_bfloat16*>(to));
  cuda_check(cudaGetLastError(), "rounding to BF16");
}

}  // namespace fidelio::train::gpu
