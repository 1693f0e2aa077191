// These kernels do what attention does beside its products, on rows of scores between two batched products
// (gpu_attention.cc). Each warp has one row. Factors of products have type T, which is FP32, or BF16 in memory of its
// own.
#include <type_traits>

#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"
#include "train/cuda/packs.cuh"

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

// A Row is the row of a warp: query i of a score matrix, the keys that it sees, and where the keys of its block end.
struct Row {
  int i, length, first, end, lane;
  int64_t scores;  // where its row of scores begins
  int64_t row;     // index of its query and head in (n, h)

  __device__ Row(const Pairs& p, int heads, int window, int block)
      : i(static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kWarp),
        length(static_cast<int>(p.length)),
        lane(static_cast<int>(threadIdx.x) % kWarp) {
    first = window > 0 && i - window + 1 > 0 ? i - window + 1 : 0;
    end = min(length, (i / block + 1) * block);
    const int64_t unit = p.start + blockIdx.y / p.each, head = unit % p.shared * p.each + blockIdx.y % p.each;
    scores = (int64_t{blockIdx.y} * length + i) * length;
    row = (int64_t{p.begins[unit / p.shared]} + i) * heads + head;
  }
  __device__ bool sees(int j) const { return j <= i && j >= first; }
};

template <typename T, int kWide>
__global__ void softmax_rows(Pairs pairs, int heads, int window, int block, const float* scores, T* p, float* lse) {
  const Row at(pairs, heads, window, block);
  if (at.i >= at.length) return;
  const float* s = scores + at.scores;
  float top = -INFINITY, sum = 0;  // over what a lane has read so far; the sum is relative to the top
  for (int j = at.lane * kWide; j <= at.i; j += kWarp * kWide) {
    const Pack<kWide> x = read<kWide>(s + j);
    float highest = top;
    for (int k = 0; k < kWide; ++k)
      if (at.sees(j + k)) highest = fmaxf(highest, x.x[k]);
    if (highest > top) sum *= expf(top - highest), top = highest;
    for (int k = 0; k < kWide; ++k)
      if (at.sees(j + k)) sum += expf(x.x[k] - top);
  }
  const float all = largest_of(top);
  sum = sum_of(top > -INFINITY ? sum * expf(top - all) : 0.0f);
  const float inverse = 1.0f / sum;
  for (int j = at.lane * kWide; j < at.end; j += kWarp * kWide) {
    Pack<kWide> x{};
    if (j <= at.i) x = read<kWide>(s + j);
    for (int k = 0; k < kWide; ++k) x.x[k] = at.sees(j + k) ? expf(x.x[k] - all) * inverse : 0.0f;
    write(x, p + at.scores + j);
  }
  if (at.lane == 0) lse[at.row] = all + logf(sum);
}

// Computes p and ds = p (dp - along) scale from the scores and dp = dout v^T. p may overwrite the scores, and ds may
// overwrite dp.
template <typename T, int kWide>
__global__ void softmax_rows_backward(Pairs pairs, int heads, int window, int block, float scale, const float* scores,
                                      const float* dp, const float* lse, const float* along, T* p, T* ds) {
  const Row at(pairs, heads, window, block);
  if (at.i >= at.length) return;
  const float of_row = lse[at.row], mean = along[at.row];
  for (int j = at.lane * kWide; j < at.end; j += kWarp * kWide) {
    Pack<kWide> x{}, g{};
    if (j <= at.i) x = read<kWide>(scores + at.scores + j), g = read<kWide>(dp + at.scores + j);
    for (int k = 0; k < kWide; ++k) {
      x.x[k] = at.sees(j + k) ? expf(x.x[k] - of_row) : 0.0f;
      g.x[k] = at.sees(j + k) ? x.x[k] * (g.x[k] - mean) * scale : 0.0f;
    }
    write(x, p + at.scores + j);
    write(g, ds + at.scores + j);
  }
}

// Computes along (n, h), the sum over e of dout out.
__global__ void along_rows(const float* dout, const float* out, int64_t rows, int e, float* along) {
  const int64_t row = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
  for (int c = lane; c < e; c += kWarp) sum += dout[row * e + c] * out[row * e + c];
  sum = sum_of(sum);
  if (lane == 0) along[row] = sum;
}

__global__ void point(Pairs p, Pointed what, int64_t count, void** pointers) {
  const int64_t b = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (b >= count) return;
  const int64_t unit = p.start + b / p.each, kv = unit % p.shared, head = kv * p.each + b % p.each,
                first = p.begins[unit / p.shared];
  for (int t = 0; t < what.count; ++t) {
    const Pointed::One& one = what.of[t];
    int64_t at = one.shift;
    if (one.kind == Pointed::queries) at += (first * p.shared * p.each + head) * p.e;
    if (one.kind == Pointed::keys) at += (first * p.shared + kv) * p.e;
    if (one.kind == Pointed::scores) at += b * p.length * p.length;
    if (one.kind == Pointed::own) at += b * p.length * p.e;
    pointers[t * count + b] = static_cast<char*>(one.base) + at * one.size;
  }
}

// Each thread has one value of a key.
__global__ void add_heads(Pairs p, const float* rows, float* keys) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, all = p.length * p.e;
  if (c >= all) return;
  const int64_t unit = p.start + blockIdx.y, row = p.begins[unit / p.shared] + c / p.e;
  float sum = 0;
  for (int64_t member = 0; member < p.each; ++member) sum += rows[(blockIdx.y * p.each + member) * all + c];
  keys[(row * p.shared + unit % p.shared) * p.e + c % p.e] = sum;
}

__global__ void to_bf16(const float* from, int64_t n, __nv_bfloat16* to) {
  const int64_t count = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += count)
    to[i] = __float2bfloat16_rn(from[i]);
}
// Converts four values at a time.
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

void softmax(Stream s, const Pairs& pairs, int64_t units, const Heads& a, int64_t block, const float* scores, void* p,
             bool bf16, float* lse) {
  const auto run = [&](auto* to) {
    in_packs(
        pairs.length,
        [&](auto wide) {
          softmax_rows<std::remove_pointer_t<decltype(to)>, decltype(wide)::value>
              <<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(pairs, a.h, a.window, static_cast<int>(block), scores,
                                                               to, lse);
        },
        scores, to);
  };
  if (bf16)
    run(static_cast<__nv_bfloat16*>(p));
  else
    run(static_cast<float*>(p));
  cuda_check(cudaGetLastError(), "attention");
}

void softmax_backward(Stream s, const Pairs& pairs, int64_t units, const Heads& a, int64_t block, const float* scores,
                      const float* dp, const float* lse, const float* along, void* p, void* ds, bool bf16) {
  const auto run = [&](auto* to, auto* to_scores) {
    in_packs(
        pairs.length,
        [&](auto wide) {
          softmax_rows_backward<std::remove_pointer_t<decltype(to)>, decltype(wide)::value>
              <<<grid_of(pairs, units), kRows * kWarp, 0, s>>>(pairs, a.h, a.window, static_cast<int>(block), a.scale,
                                                               scores, dp, lse, along, to, to_scores);
        },
        scores, dp, to, to_scores);
  };
  if (bf16)
    run(static_cast<__nv_bfloat16*>(p), static_cast<__nv_bfloat16*>(ds));
  else
    run(static_cast<float*>(p), static_cast<float*>(ds));
  cuda_check(cudaGetLastError(), "attention's backward");
}

void sum_along(Stream s, const float* dout, const float* out, int64_t rows, int64_t e, float* along) {
  along_rows<<<static_cast<unsigned>((rows * kWarp + 255) / 256), 256, 0, s>>>(dout, out, rows, static_cast<int>(e),
                                                                               along);
  cuda_check(cudaGetLastError(), "attention's backward");
}

void point_at(Stream s, const Pairs& pairs, const Pointed& what, int64_t units, void** pointers) {
  const int64_t count = units * pairs.each;
  point<<<static_cast<unsigned>((count + 255) / 256), 256, 0, s>>>(pairs, what, count, pointers);
  cuda_check(cudaGetLastError(), "pointing at heads");
}

void sum_of_heads(Stream s, const Pairs& pairs, int64_t units, const float* rows, float* keys) {
  const dim3 grid(static_cast<unsigned>((pairs.length * pairs.e + 255) / 256), static_cast<unsigned>(units));
  add_heads<<<grid, 256, 0, s>>>(pairs, rows, keys);
  cuda_check(cudaGetLastError(), "attention's backward");
}

void to_bf16(Stream s, const float* from, int64_t n, uint16_t* to) {
  if (n % 4 == 0)
    to_bf16_quads<<<1056, 256, 0, s>>>(reinterpret_cast<const float4*>(from), n / 4, reinterpret_cast<uint2*>(to));
  else
    to_bf16<<<1056, 256, 0, s>>>(from, n, reinterpret_cast<__nv_bfloat16*>(to));
  cuda_check(cudaGetLastError(), "rounding to BF16");
}

}  // namespace fidelio::train::gpu
