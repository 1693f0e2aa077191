// This file multiplies prompt rows in coarse modes, for weights and activations whose groups are 128 inputs. Integers
// of 8 bits go to the integer matrix units, which do twice as much in a cycle as those for FP16.
//
//      thread block      128 outputs x 128 rows of activations, in a cluster of two with the same rows
//        warpgroup 0     one thread asks for a block of weights and for activations, half of which it has for both
//        warpgroups 1, 2 64 outputs each
//
//      L2 --bulk copies, kStages blocks of 128 inputs ahead--> shared memory: weights --> registers: codes - zeros,
//                                                                                         signed bytes --> wgmma
//      L2 --the same, multicast-------------------------------> shared memory: bytes of rows, their scales -^
//      a block is a group: total += scale of the output x scale of the row x sum, an int32
//
// The sum becomes FP32 without an instruction. As bits, kAbove + n is the number 3 x 2^22 + n for |n| < 2^22, so the
// sum starts from kAbove. Work on sums takes as long as the products and runs beside the other warpgroup's products.
// With groups of 64 it would be twice as much, so those are multiplied as FP16 (lowbit_many.cuh). Groups are added in
// order.
//
// Rejected: zeros by the sums of rows, which take a second number for each row from shared memory (1.13 times the
// time, because its bandwidth is the limit); halves of 64 rows, whose sums are handled during the others' products
// (1.06); weights from global memory straight into registers (1.10).
#pragma once
#include "kernels/cuda/linear/prefill/lowbit_many.cuh"

namespace fidelio::cuda {

template <typename Traits>
struct IntegerRows {
  static constexpr int kTokens = 128, kRowBytes = kTokens * kBlockColumns, kScaleBytes = kTokens * 4;
  static constexpr int kStageBytes = kRowBytes + kScaleBytes + Traits::kBlockBytes;
  static constexpr int kStages = Traits::bits == 8 ? 6 : 8;
  static constexpr int kBytes = kStages * (kStageBytes + 16) + 1024;  // 1024 bytes for alignment
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The stages of a ring are [kStages]{bytes of rows}[kStages]{barriers: filled, emptied}[kStages]{scales of
// rows}[kStages]{a block of weights}.
template <typename Traits>
struct IntegerRing : ManyRing<IntegerRows<Traits>::kStages> {
  using Rows = IntegerRows<Traits>;
  __device__ __forceinline__ uint32_t rows() const { return this->to + this->stage * Rows::kRowBytes; }
  __device__ __forceinline__ uint32_t scales() const {
    return this->filled + Rows::kStages * 16 + this->stage * Rows::kScaleBytes;
  }
  __device__ __forceinline__ uint32_t weights() const {
    return this->filled + Rows::kStages * (16 + Rows::kScaleBytes) + this->stage * Traits::kBlockBytes;
  }
};

template <typename Traits>
__device__ __forceinline__ void ask_for_integers(const ManyArguments& p, IntegerRing<Traits> ring, int rank) {
  using Rows = IntegerRows<Traits>;
  constexpr int kHalf = Rows::kRowBytes / 2, kHalfScales = Rows::kScaleBytes / 2;
  const ManyTiles tiles = ManyTiles::of<Rows::kTokens>(p);
  const int64_t padded = padded_of(p);
  const uint8_t* scales = p.x + padded * p.column_blocks * kBlockColumns;
  for (int tile = blockIdx.x / 2; tile < tiles.count; tile += gridDim.x / 2) {
    const int64_t row = int64_t{tile / tiles.pairs} * Rows::kTokens + rank * (Rows::kTokens / 2);
    const uint8_t* w = many_blocks<Traits>(p, tile % tiles.pairs * 2 + rank, tile / tiles.pairs).w;
    for (int block = 0; block < p.column_blocks; ++block) {
      const uint32_t filled = ring.filled + ring.stage * 8;
      ptx::wait(ring.emptied + ring.stage * 8, ring.parity ^ 1);
      ptx::expect(filled, Rows::kStageBytes);
      ptx::fetch(ring.weights(), w + int64_t{block} * Traits::kBlockBytes, Traits::kBlockBytes, filled);
      ptx::fetch_for(3, ring.rows() + rank * kHalf, p.x + (block * padded + row) * kBlockColumns, kHalf, filled);
      ptx::fetch_for(3, ring.scales() + rank * kHalfScales, scales + (block * padded + row) * 4, kHalfScales, filled);
      ring.advance();
    }
  }
}

constexpr int kAbove = 0x4b400000;

// Returns the codes minus zeros of chunk c.
template <typename Traits>
__device__ __forceinline__ void signed_bytes(const LaneBlock<Traits>& w, int c, uint32_t (&a)[4]) {
  constexpr uint32_t kSigns = 0x80808080u;
  if constexpr (Traits::bits == 8) {
    w.codes.bytes(c, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] ^= kSigns;
  } else {  // the sum stays between 128 - 15 and 128 + 15, so no byte borrows from the next
    const uint32_t minus[2] = {kSigns - (w.zero[0] & 15) * 0x01010101u, kSigns - (w.zero[0] >> 12) * 0x01010101u};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t v = w.codes.narrow(c, h);
#pragma unroll
      for (int up = 0; up < 2; ++up) a[2 * h + up] = ((v >> 4 * up & 0x0f0f0f0fu) + minus[up]) ^ kSigns;
    }
  }
}

// IntegerWeights is what a warp multiplies by in a block.
template <typename Traits>
struct IntegerWeights {
  uint32_t a[4][4];
  float2 scales;  // for rows g and g + 8

  // Waits until the stage has arrived, and loads from it.
  __device__ __forceinline__ void load(const IntegerRing<Traits>& ring, const uint8_t* shared, int tile16, int lane) {
    ptx::wait(ring.filled + ring.stage * 8, ring.parity);
    LaneBlock<Traits> block;
    block.load(shared + (ring.weights() - ring.to), tile16, lane, Plain());
    scales = block.scales(0);
#pragma unroll
    for (int c = 0; c < 4; ++c) signed_bytes(block, c, a[c]);
  }
};

// Adds the block's sums, times the scales of outputs and rows, to `total`. A scale of outputs has at most 11 bits, so
// kAbove times it is exact, and the subtraction leaves the rounded product.
__device__ __forceinline__ void add_sums(const int (&sum)[64], float2 of_outputs, uint32_t of_rows,
                                         float (&total)[64]) {
  const float2 minus{-__int_as_float(kAbove) * of_outputs.x, -__int_as_float(kAbove) * of_outputs.y};
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    const float2 of_row = ptx::load_shared_pair(of_rows + n * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scaled =
          fmaf(__int_as_float(sum[n * 4 + i]), i & 2 ? of_outputs.y : of_outputs.x, i & 2 ? minus.y : minus.x);
      total[n * 4 + i] = fmaf(scaled, i & 1 ? of_row.y : of_row.x, total[n * 4 + i]);
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void multiply_many_integers(const ManyArguments& p, IntegerRing<Traits> ring,
                                                       const uint8_t* shared, int rank) {
  constexpr int kTokens = IntegerRows<Traits>::kTokens;
  // The tile's index among the block's eight.
  const int lane = threadIdx.x % 32, tile16 = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4;
  // Lane 0's is in thread block 0, lane 1's in thread block 1.
  const uint32_t other_emptied = ptx::address_in(lane % 2, ring.emptied);
  const ManyTiles tiles = ManyTiles::of<kTokens>(p);
  for (int tile = blockIdx.x / 2; tile < tiles.count; tile += gridDim.x / 2) {
    IntegerWeights<Traits> now, next;
    now.load(ring, shared, tile16, lane);
    float total[kTokens / 2] = {};
#pragma unroll 1
    for (int block = 0; block < p.column_blocks; ++block) {
      const uint64_t rows = ptx::swizzled_rows(ring.rows());
      int sum[kTokens / 2];
#pragma unroll
      for (int& s : sum) s = kAbove;
      ptx::settle(sum);
      ptx::fence_products(now.a);
#pragma unroll
      for (int c = 0; c < 4; ++c) ptx::multiply(sum, now.a[c], rows + c * 2, false);
      ptx::commit_products();
      IntegerRing<Traits> following = ring;
      following.advance();
      if (block + 1 < p.column_blocks) next.load(following, shared, tile16, lane);
      ptx::wait_for_products<0>();
      ptx::settle(sum);
      add_sums(sum, now.scales, ring.scales() + lane % 4 * 8, total);
      __syncwarp();
      if (lane < 2) ptx::arrive_in_cluster(other_emptied + ring.stage * 8);
      ring = following;
      now = next;
    }
    const ManyBlocks mine = many_blocks<Traits>(p, tile % tiles.pairs * 2 + rank, tile / tiles.pairs);
    if (mine.there) store_tile<kTokens>(p, mine, tile / tiles.pairs, tile16, total);
  }
}
#endif

}  // namespace fidelio::cuda
