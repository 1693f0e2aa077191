// This file stores the sums at the end of a tile of lowbit_many.cuh.
#pragma once
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/prefill/lowbit_many_launch.cuh"

namespace fidelio::cuda {

// ManyRowsAt says where a tile's rows are: among all rows of the product, or those of an expert's group.
struct ManyRowsAt {
  int first, rows;  // the index of the first row in y, and how many rows there are
  float* y;
  const float* row_factor;  // the factor of row 0
  bool add;
};

// ManyFactors turns the sums of a column into outputs. When sums go to memory, a lane has rows g and g + 8 of its
// warp's outputs, and columns (activation rows) 8 n + 2 t + {0, 1}. `output` and `row` are its first ones.
struct ManyFactors {
  float factor[2], bias[2];
  __device__ __forceinline__ ManyFactors(const LowbitTarget& target, int output) {
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      const int at = min(output + up * 8, target.out - 1);
      factor[up] = target.factor * (target.row_factor ? target.row_factor[at] : 1.0f);
      bias[up] = target.bias ? target.bias[at] : 0.0f;
    }
  }
  __device__ __forceinline__ float operator()(float sum, float2 of_row, int i) const {
    return fmaf(sum, (i & 1 ? of_row.y : of_row.x) * factor[i / 2], bias[i / 2]);
  }
};

// Stores a tile that exists completely. Some columns are stored while the data for the next ones are on their way.
template <bool kAdd, int kTokens>
__device__ __forceinline__ void store_whole(const ManyRowsAt& at, const LowbitTarget& target, int output, int row,
                                            const float (&c)[kTokens / 2]) {
  const ManyFactors finished(target, output);
  constexpr int kAtOnce = 4, kGroups = kTokens / 8 / kAtOnce;
  const int64_t step = int64_t{8} * target.out;
  float *to[2], *from[2];  // addresses of the two columns
  to[0] = from[0] = at.y + int64_t{row} * target.out + output;
  to[1] = from[1] = to[0] + target.out;
  const float2* of_rows = reinterpret_cast<const float2*>(at.row_factor + row);
  float before[2][kAtOnce][4];
  float2 of_row[2][kAtOnce];
  const auto ask = [&](int group) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      of_row[group % 2][n] = __ldg(of_rows + (group * kAtOnce + n) * 4);
      if constexpr (kAdd) {
#pragma unroll
        for (int i = 0; i < 4; ++i) before[group % 2][n][i] = __ldcg(from[i & 1] + (i & 2 ? 8 : 0));
        from[0] += step, from[1] += step;
      }
    }
  };
  ask(0);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (group + 1 < kGroups) ask(group + 1);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = finished(c[(group * kAtOnce + n) * 4 + i], of_row[group % 2][n], i);
        to[i & 1][i & 2 ? 8 : 0] = kAdd ? before[group % 2][n][i] + value : value;
      }
      to[0] += step, to[1] += step;
    }
  }
}

// Stores the part of a tile that exists.
template <int kTokens>
__device__ __forceinline__ void store_part(const ManyRowsAt& at, const LowbitTarget& target, int output, int row,
                                           const float (&c)[kTokens / 2]) {
  const ManyFactors finished(target, output);
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    if (row + n * 8 >= at.rows) return;
    const float2 of_row = *reinterpret_cast<const float2*>(at.row_factor + row + n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = row + n * 8 + (i & 1), o = output + (i & 2 ? 8 : 0);
      if (m >= at.rows || o >= target.out) continue;
      float& y = at.y[int64_t{m} * target.out + o];
      const float value = finished(c[n * 4 + i], of_row, i);
      y = at.add ? y + value : value;
    }
  }
}

}  // namespace fidelio::cuda
