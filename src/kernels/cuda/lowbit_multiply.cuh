// A warp's multiplication of a block: codes and activations in, totals out. Shared by the kernels, so that all give a
// row the same bits.
#pragma once
#include "kernels/cuda/lowbit_block.cuh"

namespace fidelio::cuda {

// Where a lane finds its activations of a block: halves of a row, and the sums of two rows; `kept` its sums where those
// are NaN. Rows that nobody has filled compute what nobody reads.
struct LaneInput {
  const uint8_t *halves, *sums, *kept;
  __device__ __forceinline__ void advance(int blocks, int block_bytes) {
    halves += blocks * block_bytes, sums += blocks * block_bytes;
  }
};
template <int kTokenTiles>
constexpr int kInputBlockBytes = static_cast<int>(input_block_bytes(kTokenTiles * 8));
// `row` is the lane's among the first eight.
template <int kTokenTiles>
__device__ __forceinline__ LaneInput lane_input(const uint8_t* x, int row) {
  const int t = threadIdx.x % 4;
  return {x + row * 256 + t * 16, x + input_halves_bytes(kTokenTiles * 8) + t * 8, nullptr};
}

// total += what a group's sums come to. `of_rows` are the block's sums of the lane's rows. Integers go by scales of 1
// unless kScaled.
template <typename Traits, bool kScaled, int kTiles, int kTokenTiles>
__device__ __forceinline__ void finish_group(const LaneBlock<Traits> (&w)[kTiles], int group, const uint8_t* of_rows,
                                             const uint8_t* kept, const float (&acc)[kTiles][kTokenTiles][4],
                                             float (&total)[kTiles][kTokenTiles][4]) {
  constexpr int kFirstSum = Traits::kGroupChunks == 1 ? 0 : Traits::kGroupChunks == 2 ? 4 : 6;
  constexpr bool kByScale = kScaled || !Traits::kCentred;
  const int at = (kFirstSum + group) * 32;
  float2 sums[kTokenTiles] = {}, f[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const uint8_t* here = of_rows + n * kInputSumBytes;
    if constexpr (kByScale) f[n] = *reinterpret_cast<const float2*>(here + kInputScale * 32);
    if constexpr (Traits::kCentred) sums[n] = *reinterpret_cast<const float2*>(here + at);
    if constexpr (Traits::kCentred && kScaled) {
      const float* true_sums = reinterpret_cast<const float*>(kept + n * kInputSumBytes + at);
      if (f[n].x != 1) sums[n].x = true_sums[0];
      if (f[n].y != 1) sums[n].y = true_sums[1];
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float2 s{1, 1}, z{0, 0};
    if constexpr (!Traits::kHalf) s = w[tile].scales(group);
    if constexpr (Traits::kCentred) z = w[tile].zeros(group);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float centred = !Traits::kCentred
                                  ? acc[tile][n][i]
                                  : fmaf(-(i & 2 ? z.y : z.x), i & 1 ? sums[n].y : sums[n].x, acc[tile][n][i]);
        const float scaled = kByScale ? centred * (i & 1 ? f[n].y : f[n].x) : centred;
        total[tile][n][i] = fmaf(i & 2 ? s.y : s.x, scaled, total[tile][n][i]);
      }
  }
}

// total += this block's share.
template <typename Traits, bool kScaled, int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_block(const LaneBlock<Traits> (&w)[kTiles], const LaneInput& x, int x_block,
                                               uint32_t table, float (&total)[kTiles][kTokenTiles][4]) {
  const int from = x_block * kInputBlockBytes<kTokenTiles>;
  float acc[kTiles][kTokenTiles][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c % Traits::kGroupChunks == 0) {  // a group begins
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[tile][n][i] = 0;
    }
    uint4 b[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) b[n] = *reinterpret_cast<const uint4*>(x.halves + from + n * 2048 + c * 64);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        if constexpr (Traits::kHalf)
          w[tile].fragment(c, h, a);
        else if constexpr (Traits::kGrid)
          w[tile].codes.grid(c, h, table, a);
        else
          w[tile].codes.integer(c, h, a);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) ptx::mma(acc[tile][n], a, h ? b[n].z : b[n].x, h ? b[n].w : b[n].y);
      }
    if (c % Traits::kGroupChunks == Traits::kGroupChunks - 1) {  // a group ends
      finish_group<Traits, kScaled>(w, c / Traits::kGroupChunks, x.sums + from, x.kept, acc, total);
    }
  }
}

}  // namespace fidelio::cuda
