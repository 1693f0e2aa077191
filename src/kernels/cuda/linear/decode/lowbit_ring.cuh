// A TileRing is a warp's own ring of weights in shared memory. Each stage holds kTiles tiles of a block, in the order
// of the block.
#pragma once
#include "kernels/cuda/linear/layout/lowbit_block.cuh"

namespace fidelio::cuda {

template <typename Traits, int kTiles>
struct TileRing {
  static constexpr int kStage = kTiles * Traits::kTileBytes;
  // Scales and zeros are copied in pieces of 16 bytes, one or two for each lane.
  static constexpr int kScalePieces = kTiles * Traits::kScaleBytes,
                       kPieces = kScalePieces + (Traits::kCentred ? kTiles : 0);
  static constexpr int kRounds = (kPieces * Traits::kGroups + 31) / 32;
  const uint8_t* ring;   // in shared memory
  uint32_t own;          // the lane's first 16 bytes there
  const uint8_t* from;   // the lane's first 16 bytes of tile 0 in the next block to ask for
  int tile;              // the first tile within its block
  int records[kRounds];  // the lane's pieces of scales and zeros, relative to `from`

  __device__ __forceinline__ TileRing(const LowbitArguments& p, const uint8_t* ring, const uint8_t* block, int tile)
      : ring(ring), tile(tile) {
    const int lane = threadIdx.x % 32;
    own = ptx::shared_address(ring) + lane * 16;
    asm("" : "+r"(own));  // otherwise the compiler computes it again for each stage
    from = block + lane * 16;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int group = (lane + round * 32) / kPieces, piece = (lane + round * 32) % kPieces;
      records[round] =
          scales_at<Traits>(p) + kBlockRows / 16 * group * Traits::kTileGroup +
          (piece < kScalePieces ? tile * 16 * Traits::kScaleBytes + piece * 16
                                : kBlockRows * Traits::kScaleBytes + tile * 16 + (piece - kScalePieces) * 16) -
          lane * 16;
    }
  }
  __device__ __forceinline__ void ask(const LowbitArguments& p, int stage) {
    const int lane = threadIdx.x % 32;
    uint32_t to = own + stage * kStage;
    int at = 0;
    for_planes<Traits::bits>([&](int bytes) {
#pragma unroll
      for (int i = 0; i < kTiles * bytes / 512; ++i) ptx::copy_async(to + i * 512, from + at + tile * bytes + i * 512);
      if (kTiles * bytes < 512 && lane < kTiles * bytes / 16) ptx::copy_async(to, from + at + tile * bytes);
      to += kTiles * bytes;
      at += kBlockRows / 16 * bytes;
    });
#pragma unroll
    for (int round = 0; round < kRounds; ++round)
      if (lane + round * 32 < kPieces * Traits::kGroups) ptx::copy_async(to + round * 512, from + records[round]);
    from += block_stride<Traits>(p);
  }
  __device__ __forceinline__ void load(int stage, int tile, LaneBlock<Traits>& w) const {
    w.template load<kTiles>(ring + stage * kStage, tile, threadIdx.x % 32, Plain());
  }
};

}  // namespace fidelio::cuda
