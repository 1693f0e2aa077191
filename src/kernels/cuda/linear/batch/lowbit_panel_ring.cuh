// This file says how lowbit_panel.cuh cuts a product up and lays out shared memory, and has the threads that ask for
// the data.
#pragma once
#include <algorithm>

#include "kernels/cuda/linear/decode/lowbit_kernel.cuh"

namespace fidelio::cuda {

constexpr int kPanelWarps = 16, kPanelAskers = 4, kPanelThreads = (kPanelWarps + kPanelAskers) * 32, kPanelStages = 16;
// A warp multiplies by this many rows of activations. With more rows there is a second chunk of rows, and two warps
// share each tile.
template <int kRows>
constexpr int kWarpRows = std::min(kRows, kMaxRows);

// A PanelPlan says how a launch is cut up. A team has kTiles tiles: all 8 of a row block, half of them, or all of two
// row blocks. With two chunks of rows it has twice the warps. A source is what adds up a share of the inputs on its
// own: a team of a thread block of the cluster.
template <int kTiles>
struct PanelPlan {
  int wide;        // row blocks of a thread block, 1 or 2; it is 1 if a thread block has half of one
  int cluster;     // thread blocks of a cluster
  int row_blocks;  // total number of row blocks
  int chunks = 1;  // chunks of rows
  int levels = 0;  // a source has 2^levels of the kParts parts
  int stages = 0, bytes = 0;

  __host__ __device__ int teams() const { return kTiles == 8 ? 4 - wide - chunks : 4 / chunks; }
  __host__ __device__ int sources() const { return cluster * teams(); }
  unsigned clusters() const { return static_cast<unsigned>((row_blocks * (8 / kTiles) + wide - 1) / wide); }
};

// Shared memory holds [each team's stages: wide blocks of weights, a block of activations][levels x sums][sums
// received] [barriers: filled and emptied of each team's stages, received]. For half a row block it holds the codes
// of that half but all its scales and zeros, which come in one copy. From the activations' records it holds only
// those for this group size.
template <typename Traits, int kRows, int kTiles>
struct PanelShape {
  static constexpr int kRecords = Traits::kGroups == 1 ? 2 : Traits::kGroups == 2 ? 4 : 8;
  // Bytes of a chunk in a block of activations.
  static constexpr int kChunkInput = kWarpRows<kRows> * (kInputPlanes + kRecords * 4),
                       kInput = kRows / kWarpRows<kRows> * kChunkInput;
  static constexpr int kCodes = kTiles * Traits::kTileCodes, kScales = 8 * Traits::kGroups * Traits::kTileGroup;
  static constexpr int kWeights = kCodes + kScales;
  static constexpr int kTeamStages = kPanelStages * kTiles / 8;          // the most stages of a team
  static constexpr int kSums = kPanelWarps * 16 * kWarpRows<kRows> * 4;  // bytes of all sums of a thread block
  static constexpr int kBarriers = (2 * 2 * kPanelStages + 1) * 8;
  using Plan = PanelPlan<kTiles>;
  static __host__ __device__ int stage_bytes(const Plan& plan) { return plan.wide * kWeights + kInput; }
  static __host__ __device__ int ring_bytes(const Plan& plan) { return plan.teams() * plan.stages * stage_bytes(plan); }
  // Completes a plan in which wide, cluster and row_blocks are set.
  static Plan fitting(Plan plan) {
    for (int parts = kParts / plan.sources(); parts > 1; parts /= 2) ++plan.levels;
    const int rest = plan.levels * kSums + (plan.sources() > 1 ? kSums : 0) + kBarriers;
    plan.stages = std::min(kTeamStages, (kMostShared - rest) / (plan.teams() * stage_bytes(plan)));
    plan.bytes = ring_bytes(plan) + rest;
    return plan;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A PanelMemory says where the parts of a thread block's shared memory are.
template <typename Traits, int kRows, int kTiles>
struct PanelMemory {
  using Shape = PanelShape<Traits, kRows, kTiles>;
  using Plan = PanelPlan<kTiles>;
  uint8_t *ring, *saved, *received;
  uint32_t filled, emptied, all_received;  // addresses of barriers
  int stage_bytes;

  __device__ __forceinline__ PanelMemory(uint8_t* shared, const Plan& plan)
      : ring(shared),
        saved(shared + Shape::ring_bytes(plan)),
        received(saved + plan.levels * Shape::kSums),
        filled(ptx::shared_address(received + (plan.sources() > 1 ? Shape::kSums : 0))),
        emptied(filled + 2 * kPanelStages * 8),
        all_received(emptied + 2 * kPanelStages * 8),
        stage_bytes(Shape::stage_bytes(plan)) {}
  static __device__ __forceinline__ uint32_t barrier(uint32_t first, int team, int stage) {
    return first + (team * Shape::kTeamStages + stage) * 8;
  }
  __device__ __forceinline__ uint8_t* stage(const Plan& plan, int team, int stage) const {
    return ring + (team * plan.stages + stage) * stage_bytes;
  }
};

// Returns row block `i` of this thread block. Past the last one it returns that one again, and its result is not
// used.
template <typename Traits, int kTiles>
__device__ __forceinline__ TileAt panel_block(const LowbitArguments& p, const PanelPlan<kTiles>& plan, int i) {
  const int row_block = static_cast<int>(blockIdx.x) * plan.wide / (8 / kTiles) + i;
  return tile_at<Traits>(p, min(row_block, plan.row_blocks - 1) * 8);
}
// Returns the first of the thread block's tiles in its first row block.
template <int kTiles>
__device__ __forceinline__ int first_panel_tile() {
  return kTiles == 8 ? 0 : blockIdx.x % 2 * 4;
}
// Returns the first column block of source `source`.
template <int kTiles>
__device__ __forceinline__ int source_begin(const LowbitArguments& p, const PanelPlan<kTiles>& plan, int source) {
  return part_begin(source << plan.levels, p.column_blocks);
}

// A PanelFiller is a team's ring as seen by the threads that fill it.
template <typename Traits, int kRows, int kTiles>
struct PanelFiller {
  using Shape = PanelShape<Traits, kRows, kTiles>;
  static constexpr int64_t kInputStride = input_block_bytes(kWarpRows<kRows>);
  const uint8_t *weights, *activations;  // addresses of the next block, for one of its row blocks
  uint32_t ring, barriers;               // `barriers` are those of filled stages
  int64_t to_second_chunk;
  int row_block, wide, stage_bytes, count, stride, scales;

  __device__ __forceinline__ PanelFiller(const LowbitArguments& p, const PanelPlan<kTiles>& plan,
                                         const PanelMemory<Traits, kRows, kTiles>& at, int team, int row_block)
      : ring(ptx::shared_address(at.stage(plan, team, 0))),
        barriers(at.barrier(at.filled, team, 0)),
        row_block(row_block),
        wide(plan.wide),
        stage_bytes(at.stage_bytes),
        stride(block_stride<Traits>(p)),
        scales(scales_at<Traits>(p)) {
    const int source = blockIdx.z * plan.teams() + team, first = source_begin(p, plan, source);
    count = source_begin(p, plan, source + 1) - first;
    weights = panel_block<Traits>(p, plan, row_block).w + int64_t{first} * stride;
    activations = p.x + first * kInputStride + rows_at(kWarpRows<kRows>);
    to_second_chunk = p.column_blocks * kInputStride;
  }
  // Fetches the row block's share of a stage.
  __device__ __forceinline__ void fetch_weights(int stage) {
    const uint32_t barrier = barriers + stage * 8;
    if (row_block == 0) ptx::expect(barrier, stage_bytes);
    uint32_t to = ring + stage * stage_bytes + row_block * Shape::kWeights;
    if constexpr (kTiles == 8 && Traits::kHigh) {
      ptx::fetch(to, weights, Shape::kCodes, barrier);
      ptx::fetch(to + Shape::kCodes, weights + scales, Shape::kScales, barrier);
    } else if constexpr (kTiles == 8) {
      ptx::fetch(to, weights, Traits::kBlockBytes, barrier);
    } else {
      const uint8_t* from = weights;
      for_planes<Traits::bits>([&](int tile_bytes) {
        ptx::fetch(to, from + first_panel_tile<kTiles>() * tile_bytes, kTiles * tile_bytes, barrier);
        from += 8 * tile_bytes, to += kTiles * tile_bytes;
      });
      ptx::fetch(to, weights + scales, Shape::kScales, barrier);
    }
    weights += stride;
  }
  __device__ __forceinline__ void fetch_activations(int stage) {
    const uint32_t to = ring + stage * stage_bytes + wide * Shape::kWeights;
    ptx::fetch(to, activations, Shape::kChunkInput, barriers + stage * 8);
    if constexpr (kRows > kMaxRows)
      ptx::fetch(to + Shape::kChunkInput, activations + to_second_chunk, Shape::kChunkInput, barriers + stage * 8);
    activations += kInputStride;
  }
};

// Asks for the first activations of all stages. A warp that multiplies does this, because it would have to wait for
// them anyway.
template <typename Traits, int kRows, int kTiles>
__device__ __forceinline__ void ask_first_activations(const LowbitArguments& p, const PanelPlan<kTiles>& plan,
                                                      const PanelMemory<Traits, kRows, kTiles>& at, int team) {
  PanelFiller<Traits, kRows, kTiles> filler(p, plan, at, team, 0);
  ptx::dependency_wait();
#pragma unroll 1
  for (int stage = 0; stage < min(plan.stages, filler.count); ++stage) filler.fetch_activations(stage);
}

// This is the work of a warp that asks for data, one of kPanelAskers. Warps 0 and 1 ask for the weights of a team or
// of a row block, and warps 2 and 3 for the activations of a team. With four teams each warp asks for both of its own
// team. (A single thread for all was busy all the time: the copies of a step took it longer than the warps took for
// the step.) The first weights are constants, so they are asked for while earlier kernels end, but only as fast as
// memory delivers them. Otherwise activations, and the multiplications with them, would wait for everything that was
// asked for before them.
template <typename Traits, int kRows, int kTiles>
__device__ __forceinline__ void ask_panel(const LowbitArguments& p, const PanelPlan<kTiles>& plan,
                                          const PanelMemory<Traits, kRows, kTiles>& at, int asker) {
  using Shape = PanelShape<Traits, kRows, kTiles>;
  constexpr bool kFour = kTiles == 4 && kRows <= kMaxRows;
  const bool weights = kFour || asker < 2, activations = kFour || asker >= 2;
  const int which = asker % 2,
            team = kFour            ? asker
                   : plan.wide == 1 ? which
                                    : 0,
            row_block = plan.wide == 1 ? 0 : which;
  if ((!weights && row_block > 0) || team >= plan.teams()) return;
  PanelFiller<Traits, kRows, kTiles> filler(p, plan, at, team, row_block);
  // These were measured on an H200, where a multiprocessor's share of memory bandwidth is 16 bytes a cycle. With
  // fewer rows there is less to gain.
  constexpr int kBytesACycle = kRows == 16 ? 40 : 20;
  const int first = min(plan.stages, filler.count), pace = plan.teams() * plan.wide * Shape::kWeights / kBytesACycle;
  if (weights) {
    const uint32_t begin = ptx::cycles();
#pragma unroll 1
    for (int stage = 0; stage < first; ++stage) {
      while (static_cast<int>(ptx::cycles() - begin) < stage * pace) continue;
      filler.fetch_weights(stage);
    }
  }
  if (activations) filler.activations += first * filler.kInputStride;
  int parity = 0, stage = 0;
#pragma unroll 1
  for (int step = first; step < filler.count; ++step) {
    ptx::wait(filler.barriers + (2 * kPanelStages + stage) * 8, parity);
    if (weights) filler.fetch_weights(stage);
    if (activations) filler.fetch_activations(stage);
    if (++stage == plan.stages) stage = 0, parity ^= 1;
  }
  const int last = filler.count - 1;  // the next product's weights are asked for once this stage has arrived
  if (last >= 0) ptx::wait(filler.barriers + last % plan.stages * 8, last / plan.stages & 1);
}
#endif

}  // namespace fidelio::cuda
