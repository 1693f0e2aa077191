// A warp's own ring of weights in shared memory: stages of two tiles of a block, as they lie in the block.
#pragma once
#include "kernels/cuda/lowbit_block.cuh"

namespace fidelio::cuda {

constexpr int kPanelTiles = 2;  // a warp's
constexpr int kMostStages = 4;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename Traits>
struct TileRing {
  static constexpr int kStage = kPanelTiles * Traits::kTileBytes;
  uint8_t* ring;         // shared
  const uint8_t* block;  // the next to ask for
  int tile, slot = 0;

  __device__ __forceinline__ void ask(int slot) {
    const int lane = threadIdx.x % 32;
    uint8_t* to = ring + slot * kStage + lane * 16;
    const uint8_t* from = block + lane * 16;
    const auto plane = [&](int bytes) {  // of a tile
#pragma unroll
      for (int i = 0; i < kPanelTiles * bytes / 512; ++i) ptx::copy_async(to + i * 512, from + tile * bytes + i * 512);
      to += kPanelTiles * bytes;
      from += kBlockRows / 16 * bytes;
    };
    if constexpr (has_plane4(Traits::bits)) plane(1024);
    if constexpr (Traits::bits == 8) plane(1024);
    if constexpr (has_plane2(Traits::bits)) plane(512);
    if constexpr (has_plane1(Traits::bits)) plane(256);
    // Scales and zeros in pieces of 16 bytes, one a lane.
    constexpr int kScalePieces = kPanelTiles * Traits::kScaleBytes, kPieces = kScalePieces + kPanelTiles;
    static_assert(kPieces * Traits::kGroups <= 32);
    if (lane < kPieces * Traits::kGroups) {
      const int group = lane / kPieces, piece = lane % kPieces;
      const uint8_t* record = block + kBlockRows / 16 * (Traits::kTileCodes + group * Traits::kTileGroup);
      ptx::copy_async(to, piece < kScalePieces
                              ? record + tile * 16 * Traits::kScaleBytes + piece * 16
                              : record + kBlockRows * Traits::kScaleBytes + tile * 16 + (piece - kScalePieces) * 16);
    }
    block += Traits::kBlockBytes;
  }
  __device__ __forceinline__ void wait_for_oldest(int stages) const {
    static_assert(kMostStages == 4);
    if (stages == 2) return ptx::wait_for_copies<1>();
    if (stages == 3) return ptx::wait_for_copies<2>();
    ptx::wait_for_copies<3>();
  }
};
#endif

}  // namespace fidelio::cuda
