// This file computes a NarrowProduct by thread blocks that have some columns of the outputs each. All sums have one
// order, so that a row has the same bits in every kernel that includes this.
//
// Such a product takes as long as its loads, which come one behind the other where a loop waits for each. So a thread
// block reads kTile * 1,024 inputs at a time, and the first weights while the kernel in front still runs.
#pragma once
#include <cuda_fp16.h>

#include "kernels/cuda/delta/narrow.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

constexpr int kNarrowThreads = 256, kNarrowWarps = kNarrowThreads / 32;

// Returns how many columns a thread block has: few for few rows, because these leave most of the device idle.
inline int narrow_columns_each(int rows) { return rows <= 8 ? 2 : 8; }
inline int narrow_blocks(const NarrowProduct& p, int each) {
  int columns = 0;
  for (int i = 0; i < p.count; ++i) columns += p.outputs[i].out;
  return (columns + each - 1) / each;
}

template <int kEach>
struct NarrowScratch {
  float sums[kEach + 1][kNarrowWarps];  // of the columns, and of the squares
};

// A NarrowColumn is one column of all outputs, counted from the first output on. Past the last it has no weights.
struct NarrowColumn {
  const char* weights = nullptr;
  bool is_half = false;
  int output = 0, column = 0;

  __device__ __forceinline__ void find(const NarrowProduct& p, int of_all) {
    column = of_all;
    while (output < p.count && column >= p.outputs[output].out) column -= p.outputs[output++].out;
    if (output == p.count) return;
    const NarrowOutput& o = p.outputs[output];
    is_half = o.half;
    const int64_t first = int64_t{column} * p.columns;
    weights = is_half ? reinterpret_cast<const char*>(o.half + first) : reinterpret_cast<const char*>(o.single + first);
  }
  // Reads the weights of inputs [at, at + 4), as they are stored.
  __device__ __forceinline__ float4 read(int at) const {
    if (!weights) return {0, 0, 0, 0};
    if (!is_half) return __ldg(reinterpret_cast<const float4*>(weights) + at / 4);
    const float2 two = __ldg(reinterpret_cast<const float2*>(weights) + at / 4);
    return {two.x, two.y, 0, 0};
  }
  __device__ __forceinline__ float4 values_of(float4 stored) const {
    if (!is_half) return stored;
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&stored.x)),
                 b = __half22float2(*reinterpret_cast<const __half2*>(&stored.y));
    return {a.x, a.y, b.x, b.y};
  }
};

// NarrowColumns are the columns of a thread block, and a thread's part of what does not depend on the row: the weights
// of the columns and of the norm for a tile of inputs.
template <int kEach>
struct NarrowColumns {
  static constexpr int kTile = kEach <= 2 ? 4 : 2, kInputs = kTile * kNarrowThreads * 4;
  NarrowColumn of[kEach];
  float4 weights[kTile][kEach], norm[kTile];

  __device__ __forceinline__ NarrowColumns(const NarrowProduct& p, int first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) of[i].find(p, first + i);
    read(p, 0);
  }
  static __device__ __forceinline__ int place(int tile, int step) {
    return tile + (step * kNarrowThreads + static_cast<int>(threadIdx.x)) * 4;
  }
  __device__ __forceinline__ void read(const NarrowProduct& p, int tile) {
#pragma unroll
    for (int step = 0; step < kTile; ++step) {
      const int at = place(tile, step);
      const bool has = at < p.columns;
      norm[step] = has && p.norm ? __ldg(reinterpret_cast<const float4*>(p.norm + at)) : float4{1, 1, 1, 1};
#pragma unroll
      for (int i = 0; i < kEach; ++i) weights[step][i] = has ? of[i].read(at) : float4{0, 0, 0, 0};
    }
  }
};

// Computes some columns of a row. This is the work of a thread block. The columns hold the first tile before and after.
template <int kEach>
__device__ void narrow_row(const NarrowProduct& p, int row, NarrowColumns<kEach>& columns, NarrowScratch<kEach>& m) {
  using Columns = NarrowColumns<kEach>;
  const float* x = p.x + int64_t{row} * p.columns;
  float sums[kEach + 1] = {};
  for (int tile = 0; tile < p.columns; tile += Columns::kInputs) {
    float4 v[Columns::kTile];
#pragma unroll
    for (int step = 0; step < Columns::kTile; ++step) {
      const int at = Columns::place(tile, step);
      v[step] = at < p.columns ? *reinterpret_cast<const float4*>(x + at) : float4{0, 0, 0, 0};
    }
    if (tile > 0) columns.read(p, tile);
#pragma unroll
    for (int step = 0; step < Columns::kTile; ++step) {
      const float4 a = v[step], b = a * columns.norm[step];
      sums[kEach] = fmaf(a.w, a.w, fmaf(a.z, a.z, fmaf(a.y, a.y, fmaf(a.x, a.x, sums[kEach]))));
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float4 w = columns.of[i].values_of(columns.weights[step][i]);
        sums[i] = fmaf(w.w, b.w, fmaf(w.z, b.z, fmaf(w.y, b.y, fmaf(w.x, b.x, sums[i]))));
      }
    }
  }
  if (p.columns > Columns::kInputs) columns.read(p, 0);
  __syncthreads();  // the sums of the row before are no longer read
#pragma unroll
  for (int i = 0; i <= kEach; ++i) {
    for (int apart = 16; apart > 0; apart /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], apart);
    if (threadIdx.x % 32 == 0) m.sums[i][threadIdx.x / 32] = sums[i];
  }
  __syncthreads();
  if (threadIdx.x >= kEach) return;
  NarrowColumn column;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (i == static_cast<int>(threadIdx.x)) column = columns.of[i];
  if (!column.weights) return;
  const NarrowOutput& output = p.outputs[column.output];
  float sum = 0, squares = 0;
  for (int w = 0; w < kNarrowWarps; ++w) sum += m.sums[threadIdx.x][w], squares += m.sums[kEach][w];
  if (p.norm) sum *= norm_factor(squares, p.columns, p.eps);
  output.y[int64_t{row} * output.out + column.column] = sum * output.factor;
}

}  // namespace fidelio::cuda
