// How lowbit_panel.cuh cuts a product up, what lies where in shared memory, and the thread that asks for it.
#pragma once
#include <algorithm>

#include "kernels/cuda/lowbit_kernel.cuh"

namespace fidelio::cuda {

constexpr int kPanelWarps = 16, kPanelThreads = (kPanelWarps + 1) * 32, kPanelStages = 16;

// How a launch is cut up. A source is what adds up inputs on its own: a team of a thread block of the cluster.
struct PanelPlan {
  int wide;        // row blocks of a thread block, 1 or 2
  int cluster;     // thread blocks of a cluster
  int row_blocks;  // in all
  int levels = 0;  // a source has 2^levels of the kParts parts
  int stages = 0, bytes = 0;

  __host__ __device__ int teams() const { return 2 / wide; }
  __host__ __device__ int sources() const { return cluster * teams(); }
  unsigned clusters() const { return static_cast<unsigned>((row_blocks + wide - 1) / wide); }
};

// Shared memory: [each team's stages: wide blocks of weights, a block of activations][levels x sums][sums received]
// [barriers: filled and emptied of each team's stages, received].
template <typename Traits, int kRows>
struct PanelShape {
  static constexpr int kInput = kRows * kInputRow;            // bytes of a block of activations
  static constexpr int kSums = kPanelWarps * 16 * kRows * 4;  // all sums of a thread block
  static constexpr int kBarriers = (2 * 2 * kPanelStages + 1) * 8;
  static __host__ __device__ int stage_bytes(const PanelPlan& plan) { return plan.wide * Traits::kBlockBytes + kInput; }
  static __host__ __device__ int ring_bytes(const PanelPlan& plan) {
    return plan.teams() * plan.stages * stage_bytes(plan);
  }
  // Completes wide, cluster and row_blocks.
  static PanelPlan fitting(PanelPlan plan) {
    for (int parts = kParts / plan.sources(); parts > 1; parts /= 2) ++plan.levels;
    const int rest = plan.levels * kSums + (plan.sources() > 1 ? kSums : 0) + kBarriers;
    plan.stages = std::min(kPanelStages, (kMostShared - rest) / (plan.teams() * stage_bytes(plan)));
    plan.bytes = ring_bytes(plan) + rest;
    return plan;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Where a thread block's things are.
template <typename Traits, int kRows>
struct PanelMemory {
  using Shape = PanelShape<Traits, kRows>;
  uint8_t *ring, *saved, *received;
  uint32_t filled, emptied, all_received;  // barriers
  int stage_bytes;

  __device__ __forceinline__ PanelMemory(uint8_t* shared, const PanelPlan& plan)
      : ring(shared),
        saved(shared + Shape::ring_bytes(plan)),
        received(saved + plan.levels * Shape::kSums),
        filled(ptx::shared_address(received + (plan.sources() > 1 ? Shape::kSums : 0))),
        emptied(filled + 2 * kPanelStages * 8),
        all_received(emptied + 2 * kPanelStages * 8),
        stage_bytes(Shape::stage_bytes(plan)) {}
  static __device__ __forceinline__ uint32_t barrier(uint32_t first, int team, int stage) {
    return first + (team * kPanelStages + stage) * 8;
  }
  __device__ __forceinline__ uint8_t* stage(const PanelPlan& plan, int team, int stage) const {
    return ring + (team * plan.stages + stage) * stage_bytes;
  }
};

// Row block `i` of this thread block's; past the last one that one again, for nobody.
template <typename Traits>
__device__ __forceinline__ TileAt panel_block(const LowbitArguments& p, const PanelPlan& plan, int i) {
  return tile_at<Traits>(p, min(static_cast<int>(blockIdx.x) * plan.wide + i, plan.row_blocks - 1) * 8);
}
// The first column block of source `source`.
__device__ __forceinline__ int source_begin(const LowbitArguments& p, const PanelPlan& plan, int source) {
  return part_begin(source << plan.levels, p.column_blocks);
}

// The thread that asks. Weights are constants; activations are there once the kernels before are done.
template <typename Traits, int kRows>
struct PanelAsker {
  const LowbitArguments& p;
  const PanelPlan& plan;
  const PanelMemory<Traits, kRows>& at;
  int first[2], count[2];
  const uint8_t* w[2];  // of the row blocks

  __device__ __forceinline__ PanelAsker(const LowbitArguments& p, const PanelPlan& plan,
                                        const PanelMemory<Traits, kRows>& at)
      : p(p), plan(plan), at(at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int source = blockIdx.z * plan.teams() + i;
      first[i] = source_begin(p, plan, source);
      count[i] = i < plan.teams() ? source_begin(p, plan, source + 1) - first[i] : 0;
      w[i] = panel_block<Traits>(p, plan, min(i, plan.wide - 1)).w;
    }
  }
  __device__ __forceinline__ int steps() const { return max(count[0], count[1]); }
  __device__ __forceinline__ void weights(int step, int stage) const {
#pragma unroll
    for (int team = 0; team < 2; ++team) {
      if (step >= count[team]) continue;
      const uint32_t barrier = at.barrier(at.filled, team, stage);
      const uint32_t to = ptx::shared_address(at.stage(plan, team, stage));
      ptx::expect(barrier, at.stage_bytes);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i < plan.wide)
          ptx::fetch(to + i * Traits::kBlockBytes, w[i] + int64_t{first[team] + step} * Traits::kBlockBytes,
                     Traits::kBlockBytes, barrier);
    }
  }
  __device__ __forceinline__ void activations(int step, int stage) const {
#pragma unroll
    for (int team = 0; team < 2; ++team)
      if (step < count[team])
        ptx::fetch(ptx::shared_address(at.stage(plan, team, stage)) + plan.wide * Traits::kBlockBytes,
                   p.x + int64_t{first[team] + step} * input_block_bytes(kRows) + rows_at(kRows),
                   PanelShape<Traits, kRows>::kInput, at.barrier(at.filled, team, stage));
  }
  __device__ __forceinline__ void rest() const {
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int step = plan.stages; step < steps(); ++step) {
#pragma unroll
      for (int team = 0; team < 2; ++team)
        if (step < count[team]) ptx::wait(at.barrier(at.emptied, team, stage), parity);
      weights(step, stage);
      activations(step, stage);
      if (++stage == plan.stages) stage = 0, parity ^= 1;
    }
  }
};
#endif

}  // namespace fidelio::cuda
