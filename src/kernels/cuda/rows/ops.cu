// This file has operations on rows. Sums are made by a fixed tree.
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;

// Thread block (m, j) of eight warps first sums the squares of the whole row m; warp w sums those of blocks w, w + 8,
// ... of 128 columns, kKept of them. Then it makes blocks 8 j .. 8 j + 7, one in each warp. Reading a row once for
// each eighth of it is cheaper than 32 warps on one multiprocessor or a second pass, because in a decode step the
// time of one row counts. The integers stand for the row times the weight, with a power of two as factor, and the
// factor of the whole row is multiplied into that. So the product before can make them block by block
// (lowbit_join.cuh).
template <int kKept, bool kRounds>
__global__ void __launch_bounds__(kThreads) norm_row(const float* x, const int32_t* rows, const float* weight,
                                                     float eps, int d, float* y, PreparedRows prepared) {
  if (!kRounds) prepared.rounding.lanes = 0;  // code that is removed need not be fetched
  constexpr int kWarps = kThreads / 32;
  __shared__ float squares[kKept * kWarps];
  const int m = blockIdx.x, warp = threadIdx.x / 32, block = blockIdx.y * kWarps + warp,
            column_blocks = (d + kBlockColumns - 1) / kBlockColumns;
  const auto column = [&](int of) { return of * kBlockColumns + static_cast<int>(threadIdx.x) % 32 * 4; };
  ptx::allow_dependents();
  const float4 w = load4(weight, column(block), d);
  ptx::dependency_wait();
  const float* from = x + (rows ? rows[m] : m) * int64_t{d};
  float4 v[kKept];
  const float4 mine = load4(from, column(block), d);
#pragma unroll
  for (int i = 0; i < kKept; ++i) v[i] = load4(from, column(i * kWarps + warp), d);
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float sum = squares_of_block(v[i]);
    if (threadIdx.x % 32 == 0) squares[i * kWarps + warp] = sum;
  }
  __syncthreads();
  const float scale = norm_factor(sum_of_warp(share_of_squares(squares, column_blocks)), d, eps);
  if (block >= column_blocks) return;
  const float4 weighted = mine * w, made = weighted * scale;
  if (prepared.blocks) prepare_block(weighted, scale, m, gridDim.x, block, column_blocks, prepared);
  store4(y + m * int64_t{d}, column(block), d, made);
}

// Thread block (m, i) makes blocks 4 i .. 4 i + 3 of 128 columns of row m, one in each warp.
constexpr int kGateThreads = 128;
struct Silu {
  __device__ float4 operator()(float4 g, float4 u) const { return gated(g, u); }
};
// This is GELU by tanh: (1 + tanh t) / 2 = 1 / (1 + e^-2t) with t = sqrt(2 / pi) (x + .044715 x^3).
struct GeluTanh {
  __device__ static float one(float x) {
    return __fdividef(x, 1 + expf(-1.5957691216057308f * fmaf(0.044715f * x * x, x, x)));
  }
  __device__ float4 operator()(float4 g, float4 u) const {
    return {one(g.x) * u.x, one(g.y) * u.y, one(g.z) * u.z, one(g.w) * u.w};
  }
};
struct Sigmoid {
  __device__ float4 operator()(float4 g, float4 u) const {
    const auto of = [](float x, float y) { return __fdividef(y, 1 + expf(-x)); };
    return {of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w)};
  }
};
struct Clamped {
  float alpha, limit;
  __device__ float one(float g, float u) const {
    const float x = g > limit ? limit : g, held = u > limit ? limit : u < -limit ? -limit : u;
    return __fdividef(x, 1 + expf(-alpha * x)) * (held + 1);
  }
  __device__ float4 operator()(float4 g, float4 u) const {
    return {one(g.x, u.x), one(g.y, u.y), one(g.z, u.z), one(g.w, u.w)};
  }
};
template <class Function, bool kRounds>
__global__ void __launch_bounds__(kGateThreads)
    gate_up(Function function, const float* gate, const float* up, int d, float* y, PreparedRows prepared) {
  begin_kernel();
  if (!kRounds) prepared.rounding.lanes = 0;
  const int m = blockIdx.x, column_blocks = (d + kBlockColumns - 1) / kBlockColumns,
            block = blockIdx.y * (kGateThreads / 32) + threadIdx.x / 32,
            column = block * kBlockColumns + threadIdx.x % 32 * 4;
  if (block >= column_blocks) return;
  const float4 g = load4(gate + m * int64_t{d}, column, d), u = load4(up + m * int64_t{d}, column, d);
  const float4 v = function(g, u);
  if (prepared.blocks) prepare_block(v, m, gridDim.x, block, column_blocks, prepared);
  store4(y + m * int64_t{d}, column, d, v);
}

// Thread block (m, j) rounds blocks 8 j .. 8 j + 7 of row m, one in each warp.
__global__ void __launch_bounds__(kThreads) round_row(const float* x, int d, Rounding how, float* y) {
  begin_kernel();
  const int column = blockIdx.y * kThreads * 4 + threadIdx.x * 4;
  const int64_t row = blockIdx.x * int64_t{d};
  store4(y + row, column, d, rounded(load4(x + row, column, d), column, how));
}

__global__ void __launch_bounds__(kThreads) scale_each(float factor, int64_t count, float* x) {
  begin_kernel();
  if (const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count) x[i] *= factor;
}
__global__ void __launch_bounds__(kThreads) add_each(const float* y, int64_t count, float* x) {
  begin_kernel();
  if (const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count) x[i] += y[i];
}
dim3 blocks_of(int64_t count) { return dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)); }

__global__ void __launch_bounds__(kThreads) to_halves(const float* x, int columns, __half* halves, float* factor) {
  begin_kernel();
  const float* row = x + blockIdx.x * int64_t{columns};
  float amax = 0;
#pragma unroll 4
  for (int i = threadIdx.x * 4; i < columns; i += kThreads * 4) amax = fmaxf(amax, largest_of(load4(row, i, columns)));
  const float scale = row_factor_of(over_block(amax, Larger()));
  if (threadIdx.x == 0) factor[blockIdx.x] = scale;
  const float inverse = 1 / scale;
#pragma unroll 4
  // Four at a time, since cuBLASLt requires a multiple of 8.
  for (int i = threadIdx.x * 4; i < columns; i += kThreads * 4) {
    const float4 v = load4(row, i, columns);
    const __half2 low = __floats2half2_rn(v.x * inverse, v.y * inverse),
                  high = __floats2half2_rn(v.z * inverse, v.w * inverse);
    *reinterpret_cast<uint2*>(halves + blockIdx.x * int64_t{columns} + i) = {*reinterpret_cast<const uint32_t*>(&low),
                                                                             *reinterpret_cast<const uint32_t*>(&high)};
  }
}

// Divides y by the factor of its row, a power of two.
__global__ void divide_row(const float* factor, int64_t d, float* y) {
  begin_kernel();
  const float inverse = 1 / factor[blockIdx.x];
  if (inverse == 1) return;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) y[blockIdx.x * d + i] *= inverse;
}

__global__ void finish_row(const float* factor, const float* bias, int64_t d, float* y) {
  begin_kernel();
  const float scale = factor[blockIdx.x];
  if (scale == 1 && !bias) return;
  for (int64_t i = threadIdx.x; i < d; i += kThreads)
    y[blockIdx.x * d + i] = y[blockIdx.x * d + i] * scale + (bias ? bias[i] : 0.0f);
}

}  // namespace

void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d,
              float* y, const PreparedRows& prepared) {
  constexpr int64_t kAtOnce = kThreads / 32 * kBlockColumns;  // in columns
  static_assert(kWidestNorm == 16 * kAtOnce);
  const auto with = [&](auto kernel) {
    launch("normalising", stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>((d + kAtOnce - 1) / kAtOnce)),
           kThreads, 0, kernel, x, rows, weight, eps, static_cast<int>(d), y, prepared);
  };
  const auto kept = [&]<bool kRounds>(std::bool_constant<kRounds>) {
    if (d <= kAtOnce) return with(norm_row<1, kRounds>);
    if (d <= 4 * kAtOnce) return with(norm_row<4, kRounds>);
    with(norm_row<16, kRounds>);
  };
  if (prepared.rounding.lanes > 0) return kept(std::true_type());
  kept(std::false_type());
}
void gated(Stream stream, const Gating& how, const float* gate, const float* up, int64_t n, int64_t d, float* y,
           const PreparedRows& prepared) {
  const int64_t warps = kGateThreads / 32, column_blocks = (d + kBlockColumns - 1) / kBlockColumns;
  const auto with = [&](auto kernel, auto function) {
    launch("gating", stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>((column_blocks + warps - 1) / warps)),
           kGateThreads, 0, kernel, function, gate, up, static_cast<int>(d), y, prepared);
  };
  const auto by = [&]<bool kRounds>(std::bool_constant<kRounds>) {
    switch (how.function) {
      case Gate::silu:
        return with(gate_up<Silu, kRounds>, Silu());
      case Gate::gelu_tanh:
        return with(gate_up<GeluTanh, kRounds>, GeluTanh());
      case Gate::sigmoid:
        return with(gate_up<Sigmoid, kRounds>, Sigmoid());
      case Gate::clamped:
        return with(gate_up<Clamped, kRounds>, Clamped{how.alpha, how.limit});
    }
  };
  if (prepared.rounding.lanes > 0) return by(std::true_type());
  by(std::false_type());
}
void round_to_integers(Stream stream, const float* x, int64_t n, int64_t columns, const Rounding& how, float* y) {
  constexpr int64_t kAtOnce = kThreads * 4;  // in columns
  launch("rounding activations", stream,
         dim3(static_cast<unsigned>(n), static_cast<unsigned>((columns + kAtOnce - 1) / kAtOnce)), kThreads, 0,
         round_row, x, static_cast<int>(columns), how, y);
}
void scale_values(Stream stream, float factor, int64_t count, float* x) {
  launch("scaling rows", stream, blocks_of(count), kThreads, 0, scale_each, factor, count, x);
}
void add_values(Stream stream, const float* y, int64_t count, float* x) {
  launch("adding rows", stream, blocks_of(count), kThreads, 0, add_each, y, count, x);
}
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor) {
  launch("rounding activations", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, to_halves, x,
         static_cast<int>(columns), reinterpret_cast<__half*>(halves), factor);
}
void divide_rows(Stream stream, const float* factor, int64_t n, int64_t d, float* y) {
  launch("scaling rows", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, divide_row, factor, d, y);
}
void finish_rows(Stream stream, const float* factor, const float* bias, int64_t n, int64_t d, float* y) {
  launch("finishing a product", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, finish_row, factor, bias, d, y);
}

}  // namespace fidelio::cuda
