// This file has a warp's multiplication of a block, from codes and activations to totals.
#pragma once
#include "kernels/cuda/linear/layout/lowbit_block.cuh"

namespace fidelio::cuda {

// Rows of activations in a tile of integer products; each takes two columns, high and low bytes.
constexpr int kTileRows = 4;

template <int kRows>
constexpr int kInputBlockBytes = static_cast<int>(input_block_bytes(kRows));

// ---- Integers.

// A RowRecord is what a lane needs to know about a row's block: the sums of its groups, and the scale.
template <int kGroupChunks>
struct RowRecord {
  static constexpr int kGroups = 4 / kGroupChunks;
  int sum[kGroups];
  float scale;

  __device__ __forceinline__ void load(const uint8_t* record) {
    if constexpr (kGroups == 1) {
      const int2 v = *reinterpret_cast<const int2*>(record + 24);
      sum[0] = v.x, scale = __int_as_float(v.y);
    } else if constexpr (kGroups == 2) {
      const int4 v = *reinterpret_cast<const int4*>(record + 16);
      sum[0] = v.x, sum[1] = v.y, scale = __int_as_float(v.w);
    } else {
      const int4 v = *reinterpret_cast<const int4*>(record);
      sum[0] = v.x, sum[1] = v.y, sum[2] = v.z, sum[3] = v.w;
      scale = *reinterpret_cast<const float*>(record + 28);
    }
  }
};

// Returns (codes - zero) x for a group, exactly, from the products of high and low bytes and the sum of the
// activations. For high bits only it returns twice that, with the middle of the bits that are not read: at most 496 x
// 128 x 32639 < 2^31.
template <typename Traits>
__device__ __forceinline__ int centred(int high, int low, int zero, int sum, int twice_middle) {
  if constexpr (Traits::kHigh) return high * 512 + low * 2 + (twice_middle - 2 * zero) * sum;
  return high * 256 + low - zero * sum;
}
// Computes total += s f (codes - zero) x for a group: for rows g and g + 8 of a tile, and a lane's row of the
// activations. All kernels do exactly this in this order, so a row has the same bits whichever kernel multiplied it.
template <typename Traits>
__device__ __forceinline__ void finish_integers(const LaneBlock<Traits>& w, int group,
                                                const RowRecord<Traits::kGroupChunks>& row, const int (&acc)[4],
                                                int twice_middle, float (&total)[2]) {
  const float2 s = w.scales(group);
  const int2 zero = w.above(group);
  const int sum = row.sum[group];
  const float lower = static_cast<float>(centred<Traits>(acc[0], acc[1], zero.x, sum, twice_middle)),
              upper = static_cast<float>(centred<Traits>(acc[2], acc[3], zero.y, sum, twice_middle));
  total[0] = fmaf(s.x * row.scale, lower, total[0]);
  total[1] = fmaf(s.y * row.scale, upper, total[1]);
}
// Returns the factor by which the totals of rows g and g + 8 are multiplied at the end.
template <typename Traits>
__device__ __forceinline__ float integer_unit(const LowbitArguments& p, bool upper) {
  if constexpr (Traits::kHigh) return p.unit;
  return 1.0f / static_cast<float>(1 << code_shift(Traits::kind, Traits::bits, upper));
}

// LaneIntegers is a lane's activations of a block, for a tile of rows: the bytes of its column of products, and the
// record of its columns of sums.
template <int kGroupChunks>
struct LaneIntegers {
  uint4 bytes[2];  // each holds two chunks
  RowRecord<kGroupChunks> row;

  __device__ __forceinline__ void load(const uint8_t* of_products, const uint8_t* record) {
#pragma unroll
    for (int i = 0; i < 2; ++i) bytes[i] = *reinterpret_cast<const uint4*>(of_products + i * 128);
    row.load(record);
  }
};

// Adds this block's share of a tile of 16 outputs to `total`. Codes become bytes once for all rows.
template <typename Traits, int kTiles, typename Rows>
__device__ __forceinline__ void multiply_integers(const LaneBlock<Traits>& w, const typename Traits::Table& table,
                                                  const Rows& rows, int twice_middle, float (&total)[kTiles][2]) {
#pragma unroll
  for (int group = 0; group < Traits::kGroups; ++group) {
    uint32_t a[Traits::kGroupChunks][4];
#pragma unroll
    for (int i = 0; i < Traits::kGroupChunks; ++i) w.bytes(group * Traits::kGroupChunks + i, table, a[i]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const LaneIntegers<Traits::kGroupChunks>& x = rows(n);
      int acc[4] = {};
#pragma unroll
      for (int i = 0; i < Traits::kGroupChunks; ++i) {
        const int c = group * Traits::kGroupChunks + i;
        const uint4& b = x.bytes[c / 2];
        ptx::mma(acc, a[i], c % 2 ? b.z : b.x, c % 2 ? b.w : b.y);
      }
      finish_integers<Traits>(w, group, x.row, acc, twice_middle, total[n]);
    }
  }
}

// ---- FP16 values.

// Adds this block's share to `total`. `halves` and `scales` point to the lane's own places in the block of
// activations.
template <typename Traits, int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_halves(const LaneBlock<Traits> (&w)[kTiles], const uint8_t* halves,
                                                const uint8_t* scales, float (&total)[kTiles][kTokenTiles][4]) {
  float acc[kTiles][kTokenTiles][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c % Traits::kGroupChunks == 0) {  // a group begins here
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[tile][n][i] = 0;
    }
    uint4 b[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
      b[n] = *reinterpret_cast<const uint4*>(halves + n * 8 * kInputHalves + c * 64);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        w[tile].fragment(c, h, a);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) ptx::mma(acc[tile][n], a, h ? b[n].z : b[n].x, h ? b[n].w : b[n].y);
      }
    if (c % Traits::kGroupChunks == Traits::kGroupChunks - 1) {  // a group ends here
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const float2 f = *reinterpret_cast<const float2*>(scales + n * 32);
#pragma unroll
          for (int i = 0; i < 4; ++i) total[tile][n][i] = fmaf(acc[tile][n][i], i & 1 ? f.y : f.x, total[tile][n][i]);
        }
      }
    }
  }
}

}  // namespace fidelio::cuda
