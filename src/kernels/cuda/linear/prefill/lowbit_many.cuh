// This file has the kernel of lowbit_many.h. Codes become FP16 in registers, on their way into the matrix units, and
// are never written to memory as such.
//
//      thread block      128 outputs x 256 (or 128; for experts 64) rows of activations, in a cluster of two with the
//                        same rows
//        warpgroup 0     one thread asks for activations, half of each stage, which go to both thread blocks
//        warpgroups 1, 2 64 outputs each
//
//      DRAM, L2 --16-byte loads, a block of 128 inputs ahead--> registers: codes --mask, centre, scale--> A fragments
//                                                                                                         '--> wgmma
//      L2 --bulk copies, kStages x 64 inputs ahead, multicast--> shared memory: activations ---------------^
//
// While the matrix units work on a chunk of 32 inputs for one warpgroup, the other makes its next chunk. Thread
// blocks stay for several tiles, and the next tile's activations arrive while this one's sums are stored. A chunk
// takes a lane about 30 instructions, a tenth of what the multiprocessor issues in that time.
//
// The value of a code is (q - z) s, exact in FP32 and rounded to FP16 once. Sums are FP32, in the order of the
// inputs.
#pragma once
#include <algorithm>

#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/linear/layout/lowbit_values.cuh"
#include "kernels/cuda/linear/prefill/lowbit_many_tiles.cuh"

namespace fidelio::cuda {

template <typename Traits, int kTokens>
struct ManyShape {
  static constexpr int kStageBytes = kTokens * 128;
  static constexpr int kStages = kTokens == 256 ? 6 : kTokens == 128 ? 8 : 16;
  static constexpr int kBytes = kStages * (kStageBytes + 16) + 1024;  // 1024 bytes for alignment
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A ManyRing is the stages of activations and their barriers, by shared addresses. `stage` and `parity` advance
// together.
template <int kStages>
struct ManyRing {
  static constexpr int kCount = kStages;
  uint32_t to, filled, emptied;
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <typename Traits, int kTokens, typename Arguments>
__device__ __forceinline__ void ask_for_rows(const Arguments& p, ManyRing<ManyShape<Traits, kTokens>::kStages> ring,
                                             int rank) {
  const ManyTiles tiles = ManyTiles::of<kTokens>(p);
  const int64_t padded = padded_of(p);
  constexpr int kStageBytes = ManyShape<Traits, kTokens>::kStageBytes, kHalf = kStageBytes / 2;
  constexpr int kFar = 4;  // L2 is asked for this many blocks of weights beyond those whose activations are asked for
  const auto ask_far = [&](const uint8_t* w, int block, int count) {
    count = min(count, p.column_blocks - block);
    if (count > 0) ptx::prefetch_into_l2(w + int64_t{block} * Traits::kBlockBytes, count * Traits::kBlockBytes);
  };
  for (int tile = blockIdx.x / 2; tile < tiles.count; tile += gridDim.x / 2) {
    const int of_rows = tile / tiles.pairs;
    const uint8_t* from = p.x + (int64_t{of_rows} * kTokens + rank * (kTokens / 2)) * 128;
    const uint8_t* w = many_blocks<Traits>(p, tile % tiles.pairs * 2 + rank, of_rows).w;
    ask_far(w, 0, kFar);
    for (int step = 0; step < 2 * p.column_blocks; ++step) {
      if (step % 2 == 0) ask_far(w, step / 2 + kFar, 1);
      ptx::wait(ring.emptied + ring.stage * 8, ring.parity ^ 1);
      ptx::expect(ring.filled + ring.stage * 8, kStageBytes);
      ptx::fetch_for(3, ring.to + ring.stage * kStageBytes + rank * kHalf, from + step * padded * 128, kHalf,
                     ring.filled + ring.stage * 8);
      ring.advance();
    }
  }
}

template <typename Traits, int kTokens, typename Arguments>
__device__ __forceinline__ void multiply_many(const Arguments& p, ManyRing<ManyShape<Traits, kTokens>::kStages> ring,
                                              int rank) {
  using Shape = ManyShape<Traits, kTokens>;
  // The tile's index among the block's eight.
  const int lane = threadIdx.x % 32, tile16 = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4;
  // Lane 0's is in thread block 0, lane 1's in thread block 1.
  const uint32_t other_emptied = ptx::address_in(lane % 2, ring.emptied);
  int held = -1;  // the stage that the products in flight read
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane < 2) ptx::arrive_in_cluster(other_emptied + stage * 8);
  };
  const ManyTiles tiles = ManyTiles::of<kTokens>(p);
  LaneBlock<Traits> next;
  const auto blocks_of = [&](int tile) {
    return many_blocks<Traits>(p, tile % tiles.pairs * 2 + rank, tile / tiles.pairs);
  };
  if (static_cast<int>(blockIdx.x) / 2 < tiles.count) next.load(blocks_of(blockIdx.x / 2).w, tile16, lane);
  for (int tile = blockIdx.x / 2; tile < tiles.count; tile += gridDim.x / 2) {
    const ManyBlocks mine = blocks_of(tile);
    const uint8_t* w = mine.w;
    const typename Traits::Table table(mine.target->grid);
    float c[kTokens / 2];
#pragma unroll 1
    for (int block = 0; block < p.column_blocks; ++block) {
      const LaneBlock<Traits> now = next;
      w += Traits::kBlockBytes;
      if (block + 1 < p.column_blocks) next.load(w, tile16, lane);
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        uint32_t a[2][4];
        values_of(now, chunk, table, a);
        if (chunk % 2 == 0) ptx::wait(ring.filled + ring.stage * 8, ring.parity);
        const uint64_t b = ptx::swizzled_rows(ring.to + ring.stage * Shape::kStageBytes) + chunk % 2 * 4;
        ptx::fence_products(a);
#pragma unroll
        for (int h = 0; h < 2; ++h) ptx::multiply(c, a[h], b + h * 2, block == 0 && chunk == 0 && h == 0);
        ptx::commit_products();
        ptx::wait_for_products<1>();
        if (chunk % 2 == 0) {
          if (held >= 0) release(held);
          held = ring.stage;
        } else {
          ring.advance();
        }
      }
    }
    ptx::wait_for_products<0>();
    ptx::settle(c);
    release(held);
    held = -1;
    const int following = tile + static_cast<int>(gridDim.x) / 2;  // its first block arrives during the stores
    if (following < tiles.count) next.load(blocks_of(following).w, tile16, lane);
    if (mine.there) store_tile<kTokens>(p, mine, tile / tiles.pairs, tile16, c);
  }
}

// Starts the barriers; then one thread asks for data and two warpgroups multiply. `ask` and `multiply` get the thread
// block's rank.
template <typename Ring, typename Ask, typename Multiply>
__device__ __forceinline__ void run_many_roles(const Ring& ring, const Ask& ask, const Multiply& multiply) {
  const int rank = blockIdx.x % 2, warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring::kCount; ++i)
      ptx::start_barrier(ring.filled + i * 8, 1), ptx::start_barrier(ring.emptied + i * 8, 2 * 8);
    ptx::publish_barriers();
  }
  __syncthreads();
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (warpgroup == 0) {
    ptx::give_registers<40>();
    if (threadIdx.x == 0) ask(rank);
    __syncwarp();
  } else {
    ptx::take_registers<232>();
    multiply(rank);
  }
  // No thread block may end while copies or arrivals for it are under way.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
#endif

template <typename Traits, int kTokens, typename Arguments>
__global__ void __launch_bounds__(384, 1) many_kernel(const __grid_constant__ Arguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = ManyShape<Traits, kTokens>;
  extern __shared__ uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - ptx::shared_address(unaligned) % 1024) % 1024;
  const uint32_t barriers = ptx::shared_address(shared) + Shape::kStages * Shape::kStageBytes;
  const ManyRing<Shape::kStages> ring{ptx::shared_address(shared), barriers, barriers + Shape::kStages * 8};
  run_many_roles(
      ring, [&](int rank) { ask_for_rows<Traits, kTokens>(p, ring, rank); },
      [&](int rank) { multiply_many<Traits, kTokens>(p, ring, rank); });
#endif
}

// A ManyGrid is the size of a launch with `tokens` rows in a tile: its number of clusters, and the most tiles that
// one of them has.
struct ManyGrid {
  int clusters, rounds;
  ManyGrid(const ManyArguments& p, int tokens) : ManyGrid((p.row_blocks + 1) / 2 * ((p.rows + tokens - 1) / tokens)) {}
  ManyGrid(const RoutedManyArguments& p, int) : ManyGrid((p.row_blocks + 1) / 2 * p.most_tiles) {}

 private:
  explicit ManyGrid(int tiles) {
    const int all = multiprocessors() / 2;
    clusters = std::min(tiles, all);
    rounds = (tiles + all - 1) / all;
  }
};

// Launches clusters of two thread blocks.
template <int kBytes, typename Arguments>
void launch_many_kernel(void (*kernel)(Arguments), int clusters, Stream stream, const Arguments& p) {
  static_assert(kBytes <= 227 * 1024);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(2 * clusters));
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, p), "launching a product of many rows");
}
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename Traits, int kTokens, typename Arguments>
void launch_many_tokens(Stream stream, const Arguments& p) {
  const auto kernel = many_kernel<Traits, kTokens, Arguments>;
  constexpr int kBytes = ManyShape<Traits, kTokens>::kBytes;
  static const cudaError_t allowed = allow_shared(kernel, kBytes);
  cuda_check(allowed, "allowing a product of many rows its shared memory");
  launch_many_kernel<kBytes>(kernel, ManyGrid(p, kTokens).clusters, stream, p);
}

// Takes 256 rows in a tile, unless all are done sooner with 128 (on an H200 a tile with half the rows takes .59 of
// the time). The bits are the same.
template <typename Traits>
void launch_many_group(Stream stream, const ManyArguments& p) {
  if (100 * ManyGrid(p, 256).rounds <= 59 * ManyGrid(p, 128).rounds) return launch_many_tokens<Traits, 256>(stream, p);
  launch_many_tokens<Traits, 128>(stream, p);
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_many(Stream stream, const ManyArguments& p, int group) {
  with_group<kind, bits, byte_scale>(
      group / 32, [&]<typename Traits>(std::type_identity<Traits>) { launch_many_group<Traits>(stream, p); });
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_many_routed(Stream stream, const RoutedManyArguments& p, int group) {
  with_group<kind, bits, byte_scale>(group / 32, [&]<typename Traits>(std::type_identity<Traits>) {
    launch_many_tokens<Traits, kRoutedRows>(stream, p);
  });
}

}  // namespace fidelio::cuda
