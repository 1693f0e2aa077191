// Products of 17 to 32 rows on Hopper. lowbit_kernel.cuh has each thread block read all activations of all rows, which
// for so many rows is more bytes than the weights; here a thread block works for a panel of 128 or 256 outputs and two
// of the eight parts of the inputs, and its warps share what they read of the activations:
//
//      panel            4 thread blocks, parts {0, 1} {2, 3} {4, 5} {6, 7}
//      thread block     half of its warps for each of its parts; each warp two tiles of 16 outputs
//      shared memory    [activations: kInputStages blocks of either part][each warp's ring of weights]
//
//      DRAM --cp.async, all stages ahead--> a warp's ring --> registers --mask--> wgmma --> acc (a group)
//                                                                                   |  total += s (acc - z sum x)
//      L2 --bulk copies--> activations of a step, two blocks ----------------------'
//
// A stage of weights is asked for again as soon as its bytes are in registers, one of activations when all warps have
// released it. At the end a thread block adds its two parts and leaves the sums in scratch; the last of a panel's four
// to do so adds them, by the tree of lowbit_kernel.cuh, so a row's bits are the same. Nobody waits for anybody.
// (Clusters of 8 thread blocks with sums in distributed shared memory are slower: of 132 multiprocessors only 15 fit.)
#pragma once
#include "kernels/cuda/lowbit_kernel.cuh"
#include "kernels/cuda/lowbit_ring.cuh"

namespace fidelio::cuda {

constexpr int kPanelTokens = kMaxRows / 8;       // tiles of rows
constexpr int kRowHalves = kPanelTokens * 2048;  // the halves of an input block that are not read here
constexpr int kPanelInput = kInputBlockBytes<kPanelTokens> - kRowHalves;
constexpr int kPanelBlocks = 4;  // thread blocks of a panel
constexpr int kInputStages = 4;

struct PanelPlan {
  int warps = 0, stages = 0;  // of a thread block, of a warp's ring
  int tiles = 0;              // of all outputs
  int bytes = 0;              // of shared memory
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The two parts' blocks of a step in shared memory, for all warps. The thread that leads asks for them.
struct InputSteps {
  uint32_t to, filled, emptied;  // shared addresses: of the stages, and of their barriers
  const uint8_t* from[2];        // the parts' first blocks
  int count[2];                  // of blocks

  __device__ __forceinline__ int steps() const { return max(count[0], count[1]); }
  __device__ __forceinline__ void ask(int step) const {
    const int stage = step % kInputStages;
    ptx::expect(filled + stage * 8, (int{step < count[0]} + int{step < count[1]}) * kPanelInput);
    for (int own = 0; own < 2; ++own)
      if (step < count[own])
        ptx::fetch(to + (stage * 2 + own) * kPanelInput, from[own] + int64_t{step} * kInputBlockBytes<kPanelTokens>,
                   kPanelInput, filled + stage * 8);
  }
  __device__ __forceinline__ void ask_when_emptied(int step) const {
    const int before = step - kInputStages;  // what was there
    ptx::wait(emptied + before % kInputStages * 8, before / kInputStages % 2);
    ask(step);
  }
  __device__ __forceinline__ void wait_for(int step) const {
    ptx::wait(filled + step % kInputStages * 8, step / kInputStages % 2);
  }
  __device__ __forceinline__ void release(int step) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(emptied + step % kInputStages * 8);
  }
};
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// total += a block's share of two tiles, by a warpgroup with activations at `x` in shared memory (of which `sums` is
// the lane's place among the sums). While a chunk is multiplied the next one's codes become halves.
template <typename Traits>
__device__ __forceinline__ void multiply_panel(const LaneBlock<Traits> (&w)[kPanelTiles], uint32_t x,
                                               const uint8_t* sums, float (&total)[kPanelTiles][kPanelTokens][4]) {
  const uint64_t b = ptx::row_pieces(__shfl_sync(~0u, x, 0), kPanelTokens * 8);
#pragma unroll
  for (int group = 0; group < Traits::kGroups; ++group) {
    float acc[kPanelTiles][kPanelTokens][4];
#pragma unroll
    for (int tile = 0; tile < kPanelTiles; ++tile)
#pragma unroll
      for (int i = 0; i < Traits::kGroupChunks; ++i) {
        const int c = group * Traits::kGroupChunks + i;
        uint32_t a[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) w[tile].codes.integer(c, h, a[h]);
        ptx::fence_products(a);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::wgmma(acc[tile], a[h], b + (c * 4 + h * 2) * kPanelTokens * 8, i == 0 && h == 0);
        ptx::commit_products();
        ptx::wait_for_products<1>();
      }
    ptx::wait_for_products<0>();
    finish_group<Traits, false>(w, group, sums, nullptr, acc, total);
  }
}
#endif

template <typename Traits>
__global__ void __launch_bounds__(512, 1)
    panel_kernel(const __grid_constant__ LowbitArguments p, const __grid_constant__ PanelPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t barriers[2 * kInputStages];
  __shared__ bool last_to_arrive;
  constexpr int kRing = kInputStages * 2 * kPanelInput, kStage = TileRing<Traits>::kStage;
  // The shuffle shows the compiler that all lanes agree, without which it waits for each wgmma by itself.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int half = plan.warps / 2, own = warp >= half;
  const int rank = blockIdx.x % kPanelBlocks, panel = blockIdx.x / kPanelBlocks;
  ptx::allow_dependents();
  const int panel_tiles = half * kPanelTiles, tile0 = panel * panel_tiles + warp % half * kPanelTiles;
  const TileAt at = tile_at<Traits>(p, min(tile0, plan.tiles - kPanelTiles));  // past the end the last ones, for nobody
  const int first = part_begin(rank * 2 + own, p.column_blocks),
            count = part_begin(rank * 2 + own + 1, p.column_blocks) - first;
  TileRing<Traits> ring{shared + kRing + warp * plan.stages * kStage, at.w + int64_t{first} * Traits::kBlockBytes,
                        at.tile};
  for (int stage = 0; stage < plan.stages; ++stage) {
    if (stage < count) ring.ask(stage);
    ptx::commit_copies();
  }

  InputSteps input{ptx::shared_address(shared), ptx::shared_address(barriers),
                   ptx::shared_address(barriers + kInputStages)};
  for (int part = 0; part < 2; ++part) {
    const int begin = part_begin(rank * 2 + part, p.column_blocks);
    input.from[part] = p.x + int64_t{begin} * kInputBlockBytes<kPanelTokens> + kRowHalves;
    input.count[part] = part_begin(rank * 2 + part + 1, p.column_blocks) - begin;
  }
  const int steps = input.steps();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kInputStages; ++i)
      ptx::start_barrier(input.filled + i * 8, 1), ptx::start_barrier(input.emptied + i * 8, plan.warps);
    ptx::publish_barriers();
  }
  __syncthreads();
  ptx::dependency_wait();
  if (threadIdx.x == 0)
    for (int step = 0; step < min(steps, kInputStages); ++step) input.ask(step);

  float total[kPanelTiles][kPanelTokens][4] = {};
  const uint8_t* sums_of_rows = shared + own * kPanelInput + kPanelTokens * 2048 + lane % 4 * 8;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    constexpr int kBehind = 2;  // steps that others may be behind the thread that leads without its waiting
    if (threadIdx.x == 0 && step >= kBehind && step - kBehind + kInputStages < steps)
      input.ask_when_emptied(step - kBehind + kInputStages);
    __syncwarp();
    if (step < count) {
      ring.wait_for_oldest(plan.stages);
      __syncwarp();
      LaneBlock<Traits> w[kPanelTiles];
#pragma unroll
      for (int tile = 0; tile < kPanelTiles; ++tile)
        w[tile].template load<kPanelTiles>(ring.ring + ring.slot * kStage, tile, lane, Plain());
      __syncwarp();
      if (step + plan.stages < count) ring.ask(ring.slot);
      ptx::commit_copies();
      ring.slot = ring.slot + 1 == plan.stages ? 0 : ring.slot + 1;
      input.wait_for(step);
      const int stage = step % kInputStages * 2 * kPanelInput;
      multiply_panel<Traits>(w, input.to + own * kPanelInput + stage, sums_of_rows + stage, total);
    }
    input.release(step);
  }
  ask_for_upcoming(p.upcoming);

  // A warp's totals where its ring was: [tile][n][lane]{16 bytes}.
  const auto put = [&](int tile, const float(&sum)[kPanelTokens][4]) {
    constexpr float kLow = code_unit(Traits::kind, Traits::bits, false),
                    kHigh = code_unit(Traits::kind, Traits::bits, true);
#pragma unroll
    for (int n = 0; n < kPanelTokens; ++n)
      reinterpret_cast<float4*>(ring.ring)[(tile * kPanelTokens + n) * 32 + lane] = {
          sum[n][0] * kLow, sum[n][1] * kLow, sum[n][2] * kHigh, sum[n][3] * kHigh};
  };
#pragma unroll
  for (int tile = 0; tile < kPanelTiles; ++tile) put(tile, total[tile]);
  if (any_nan(total, p.rows)) {
#pragma unroll 1
    for (int tile = 0; tile < kPanelTiles; ++tile) {
      float again[1][kPanelTokens][4] = {};
      scaled_part<Traits>(p, at, tile, first, first + count, again);
      put(tile, again[0]);
    }
  }
  __syncthreads();
  constexpr int kOfWarp = kPanelTiles * kPanelTokens * 32;  // fragments of a lane, 16 bytes each
  const auto plus = [](float4 a, float4 b) { return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; };
  const auto of_both = [&](int i) {
    const auto part = [&](int which) {
      return reinterpret_cast<const float4*>(shared + kRing +
                                             (i / kOfWarp + which * half) * plan.stages * kStage)[i % kOfWarp];
    };
    return plus(part(0), part(1));
  };
  float4* sums = reinterpret_cast<float4*>(p.scratch + kPanelCounters) + int64_t{panel} * kPanelBlocks * half * kOfWarp;
  for (int i = threadIdx.x; i < half * kOfWarp; i += blockDim.x) __stcg(sums + rank * half * kOfWarp + i, of_both(i));
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    last_to_arrive = atomicInc(reinterpret_cast<uint32_t*>(p.scratch) + panel, kPanelBlocks - 1) == kPanelBlocks - 1;
  __syncthreads();
  if (!last_to_arrive) return;
  __threadfence();
  constexpr int kRounds = kOfWarp / 64;  // each thread's fragments; all are asked for at once
  float4 sum[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const auto of = [&](int which) { return __ldcg(sums + which * half * kOfWarp + threadIdx.x + round * blockDim.x); };
    sum[round] = plus(plus(of(0), of(1)), plus(of(2), of(3)));
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = threadIdx.x + round * blockDim.x, tile = panel * panel_tiles + i / (kPanelTokens * 32),
              m0 = i / 32 % kPanelTokens * 8 + lane % 4 * 2;
    if (tile >= plan.tiles) break;
    const TileAt to = tile_at<Traits>(p, tile);
    const int row = to.row_block * kBlockRows + to.tile * 16 + lane / 4;
    const float values[4] = {sum[round].x, sum[round].y, sum[round].z, sum[round].w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (row + (j & 2 ? 8 : 0) < to.target->out && m0 + (j & 1) < p.rows)
        store_output(p, *to.target, m0 + (j & 1), row + (j & 2 ? 8 : 0), values[j]);
  }
#endif
}

// How many warps a thread block has, 8 or 16: what leaves the fewest multiprocessors idle, and then the fewer, two such
// thread blocks a multiprocessor. No warps: nothing fits.
template <typename Traits>
PanelPlan panel_plan(int row_blocks) {
  constexpr int kLargest = 225 * 1024, kInput = kInputStages * 2 * kPanelInput,
                kStage = kPanelTiles * Traits::kTileBytes;
  PanelPlan best;
  int best_time = 0;
  static_assert(16 * kPanelTiles / 2 * 16 <= kWidestPanel * kBlockRows);  // of 16 warps: joint_bytes() has room
  for (int warps : {8, 16}) {
    PanelPlan plan;
    plan.warps = warps;
    plan.tiles = row_blocks * 8;
    const int panels = (plan.tiles + warps * kPanelTiles / 2 - 1) / (warps * kPanelTiles / 2),
              waves = (panels * kPanelBlocks + multiprocessors() - 1) / multiprocessors(), time = waves * warps;
    const int together = warps == 8 && waves > 1 ? 2 : 1;
    plan.stages = std::min((kLargest / together - kInput) / (warps * kStage), warps == 8 ? kMostStages : 2);
    if (plan.stages < 2 || plan.stages * kStage < kPanelTiles * kPanelTokens * 512) continue;
    plan.bytes = kInput + plan.stages * warps * kStage;
    if (best.warps == 0 || time < best_time) best = plan, best_time = time;
  }
  return best;
}

template <typename Traits>
void launch_panels(Stream stream, LowbitArguments p, const PanelPlan& plan) {
  const auto kernel = panel_kernel<Traits>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  const int panels = (plan.tiles + plan.warps * kPanelTiles / 2 - 1) / (plan.warps * kPanelTiles / 2);
  const auto thread_blocks = static_cast<unsigned>(panels * kPanelBlocks);
  share_upcoming(p, thread_blocks);
  launch("launching a low-bit product", stream, dim3(thread_blocks), plan.warps * 32, static_cast<size_t>(plan.bytes),
         kernel, p, plan);
}

}  // namespace fidelio::cuda
