// This file multiplies integer codes by 9 to 64 rows of activations, on Hopper. With so many rows lowbit_stream.cuh
// would fetch more activations than weights, because each thread block reads those for its share of the inputs. So
// here a share has many outputs and few inputs, and the thread blocks of a cluster add their sums up:
//
//      cluster        64, 128 or 256 outputs; each thread block has 1/1, 1/2 or 1/4 of the inputs
//      thread block   16 warps that multiply, each a tile of 16 outputs: 256 outputs, or 128 in two teams, or 64 in
//                     four teams, which divide the thread block's inputs equally. With more than 32 rows it has 128
//                     outputs, and two warps share each tile, with 32 rows each. Four more warps ask for what comes
//                     next, one thread of each
//
//      DRAM, L2 --bulk copies, all stages ahead--> a team's ring: blocks of weights, a block of activations
//                                                    |  registers: codes --mask--> A    |
//                                                    '--------------------------- B ----'--> wgmma --> acc (a group)
//                                                                                                        |
//                                                                          total += s f (acc - z sum) <--'
//
// Four warpgroups share the matrix units. (Taking turns, two at a time, was no faster.) The sum over a group is
// exact, and the rest is done in the order of lowbit.h, so a row has the bits that lowbit_stream.cuh gives it.
#pragma once
#include <algorithm>

#include "kernels/cuda/linear/batch/lowbit_panel_store.cuh"
#include "kernels/cuda/linear/batch/lowbit_panel_warp.cuh"

namespace fidelio::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// This is the work of a warp that multiplies.
template <typename Traits, int kRows, int kTiles>
__device__ __forceinline__ void multiply_and_join(const LowbitArguments& p, const PanelPlan<kTiles>& plan,
                                                  const PanelMemory<Traits, kRows, kTiles>& at, int warp) {
  using Shape = PanelShape<Traits, kRows, kTiles>;
  constexpr int kEights = kWarpRows<kRows> / 8, kAllEights = kRows / 8;
  int lane = threadIdx.x % 32;
  const int tiles = plan.wide * kTiles, team = plan.teams() == 1 ? 0 : warp / kTiles / (kRows > kMaxRows ? 2 : 1),
            tile = warp & (tiles - 1), chunk = kRows > kMaxRows ? warp / kTiles % 2 : 0,
            source = blockIdx.z * plan.teams() + team;
  float4* const saved = reinterpret_cast<float4*>(at.saved) + threadIdx.x;  // [level][eight rows][thread]
  constexpr int kThreads = kPanelWarps * 32;
  const uint8_t *const ring = at.stage(plan, team, 0), *const input = ring + plan.wide * Shape::kWeights +
                                                                      chunk * Shape::kChunkInput;
  // The asm hides these values from the compiler, which would otherwise compute them again for each block.
  int codes = static_cast<int>(ring - at.ring) + tile / kTiles * Shape::kWeights,
      records = static_cast<int>(input - at.ring) + kWarpRows<kRows> * kInputPlanes + lane % 4 * 8,
      in_block = tile % kTiles;
  asm("" : "+r"(codes), "+r"(records), "+r"(in_block), "+r"(lane));
  // The same is done for values that all lanes agree on; the compiler keeps the result of a shuffle in its register.
  const auto agreed = [](auto value) { return __shfl_sync(~0u, value, 0); };
  const uint32_t b = agreed(ptx::panel_rows(ptx::shared_address(input))),
                 first_barrier = agreed(at.barrier(at.filled, team, 0));
  const int stage_bytes = agreed(at.stage_bytes), stages = agreed(plan.stages);
  if (tile == 0 && chunk == 0 && lane == 0) ask_first_activations<Traits, kRows, kTiles>(p, plan, at, team);
  __syncwarp();
  // This decides who finishes which sums. With one source, the warps that have the sums finish them. With several,
  // each thread block of the cluster finishes some of the tiles: [source][its tiles][eight rows][lane].
  const int by = plan.cluster / 2, own = tiles >> by;  // the cluster has 2^by thread blocks
  const bool alone = kTiles == 8 && plan.sources() == 1;
  const auto slots_of = [&](int item) {
    return PanelSlots::of<Traits>(p, plan, blockIdx.z * own + item / 32 / kAllEights, item / 32 % kAllEights, lane);
  };
  PanelSlots slots = alone ? PanelSlots::of<Traits>(p, plan, tile, chunk * kEights, lane) : slots_of(threadIdx.x);
  const typename Traits::Table table(panel_block<Traits>(p, plan, tile / kTiles).target->grid);
  int stage = 0, offset = 0, parity = 0;
  bool filled = false;  // whether the next stage is known to be filled
  float total[kEights][4];
  for (int part = 0; part < 1 << plan.levels; ++part) {
    const int number = (source << plan.levels) + part,
              count = part_begin(number + 1, p.column_blocks) - part_begin(number, p.column_blocks);
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] = 0;
#pragma unroll 1
    for (int block = 0; block < count; ++block) {
      const uint32_t barrier = first_barrier + stage * 8;
      const int here = offset;
      if (!filled) ptx::wait(barrier, parity);
      ++stage, offset += stage_bytes;
      if (stage == stages) stage = 0, offset = 0, parity ^= 1;
      multiply_panel<Traits, kWarpRows<kRows>, kTiles>(
          at.ring + (codes + here), b + (here >> 4), at.ring + (records + here), in_block, first_panel_tile<kTiles>(),
          lane, table, p.twice_middle, total, [&] { filled = ptx::is_over(first_barrier + stage * 8, parity); });
      __syncwarp();  // no code is left of it where lanes agree, so racecheck reports the other 31 lanes
      if (lane == 0) ptx::arrive(barrier + 2 * kPanelStages * 8);
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] *= integer_unit<Traits>(p, i >= 2);
    // This adds the parts as a balanced tree, from its leaves. As many sums wait as the part's number has ones in
    // binary.
    int level = 0;
    for (; part >> level & 1; ++level)
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const float4 before = saved[(level * kEights + n) * kThreads];
        total[n][0] = before.x + total[n][0], total[n][1] = before.y + total[n][1];
        total[n][2] = before.z + total[n][2], total[n][3] = before.w + total[n][3];
      }
    if (level < plan.levels)
#pragma unroll
      for (int n = 0; n < kEights; ++n)
        saved[(level * kEights + n) * kThreads] = {total[n][0], total[n][1], total[n][2], total[n][3]};
  }

  const auto quad = [&](int n) { return float4{total[n][0], total[n][1], total[n][2], total[n][3]}; };
  ptx::dependency_wait();
  if (alone) {
    float4 before[kEights];
#pragma unroll
    for (int n = 0; n < kEights; ++n) before[n] = slots.before(p, n);
#pragma unroll
    for (int n = 0; n < kEights; ++n) slots.store(p, n, quad(n), before[n]);
    return;
  }
  const int finisher = tile >> (plan.wide + (kTiles == 8 ? 2 : 1) - by);
  const auto received = [&](int source, int item) {
    return at.received + (source * own * kAllEights * 32 + item) * 16;
  };
  uint8_t* const to = received(source, ((tile & (own - 1)) * kAllEights + chunk * kEights) * 32 + lane);
  const int items = own * kAllEights * 32;
  float4 before{};
  if (threadIdx.x < items) before = slots.before(p, 0);
  if (plan.cluster == 1) {  // a single thread block has no asynchronous stores
#pragma unroll
    for (int n = 0; n < kEights; ++n) *reinterpret_cast<float4*>(to + n * 512) = quad(n);
    ptx::wait_for_warps(1, kThreads);
  } else {
    ptx::cluster_wait();  // the others have begun
    const uint32_t there = ptx::address_in(finisher, to), arrived = ptx::address_in(finisher, at.all_received);
#pragma unroll
    for (int n = 0; n < kEights; ++n) ptx::store_in_cluster(there + n * 512, quad(n), arrived);
    ptx::wait(at.all_received, 0);
  }
  for (int item = threadIdx.x; item < items; item += kThreads) {
    if (item >= kThreads) slots = slots_of(item), before = slots.before(p, 0);
    const auto of = [&](int source) { return *reinterpret_cast<const float4*>(received(source, item)); };
    float4 sum = of(0) + of(1);
    if ((kTiles == 4 && kRows <= kMaxRows) || plan.sources() >= 4) sum = sum + (of(2) + of(3));
    if (plan.sources() == 8) sum = sum + ((of(4) + of(5)) + (of(6) + of(7)));
    slots.store(p, 0, sum, before);
    if (kTiles * kRows < 8 * 32) break;  // no thread has more
  }
}
#endif

template <typename Traits, int kRows, int kTiles>
__global__ void __launch_bounds__(kPanelThreads, 1)
    panel_kernel(const __grid_constant__ LowbitArguments p, const __grid_constant__ PanelPlan<kTiles> plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const PanelMemory<Traits, kRows, kTiles> at(shared, plan);
  ptx::allow_dependents();
  if (lane == 0) {  // each warp prepares one stage's barriers: one thread would take a microsecond for all
    if (warp < kPanelStages)
#pragma unroll
      for (int i = 0; i < 2 * kPanelStages; i += kPanelStages)
        ptx::start_barrier(at.filled + (i + warp) * 8, 1),
            ptx::start_barrier(at.emptied + (i + warp) * 8, plan.wide * plan.chunks * kTiles);
    if (warp == kPanelWarps) ptx::start_barrier(at.all_received, 1);
    ptx::publish_barriers();
    if (warp == kPanelWarps && plan.cluster > 1) ptx::expect(at.all_received, PanelShape<Traits, kRows, kTiles>::kSums);
  }
  __syncthreads();
  if (plan.cluster > 1) ptx::cluster_arrive_relaxed();
  if (warp < kPanelWarps) {
    if constexpr (kRows > 16) asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    multiply_and_join<Traits, kRows, kTiles>(p, plan, at, warp);
  } else {
    if constexpr (kRows > 16) ptx::give_registers<32>();
    if (lane == 0) ask_panel<Traits, kRows, kTiles>(p, plan, at, warp - kPanelWarps);
    ask_for_upcoming(p, warp - kPanelWarps);
  }
#endif
}

template <typename Traits, int kRows, int kTiles>
void allow_panel_shared() {
  static const cudaError_t allowed = cudaFuncSetAttribute(panel_kernel<Traits, kRows, kTiles>,
                                                          cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
}

// Returns how many clusters of this many thread blocks can run at once. A thread block of these kernels fills a
// multiprocessor.
template <typename Traits, int kRows>
int panels_at_once(int cluster) {
  allow_panel_shared<Traits, kRows, 8>();
  return std::max(clusters_at_once(kPanelThreads, kMostShared, cluster, panel_kernel<Traits, kRows, 8>), 1);
}

template <typename Traits, int kRows, int kTiles>
void launch_panel_cut(Stream stream, LowbitArguments p, const PanelPlan<kTiles>& cut) {
  allow_panel_shared<Traits, kRows, kTiles>();
  const PanelPlan<kTiles> plan = PanelShape<Traits, kRows, kTiles>::fitting(cut);
  const auto cluster = static_cast<unsigned>(plan.cluster);
  share_upcoming(p, plan.clusters() * cluster);
  launch("launching a low-bit product", stream,
         LaunchShape{dim3(plan.clusters(), 1, cluster), kPanelThreads, static_cast<size_t>(plan.bytes), cluster},
         panel_kernel<Traits, kRows, kTiles>, p, plan);
}

// Chooses the cut that is done soonest, by times measured on an H200 (NOTES.md). The unit is the time in which
// a team of whole row blocks handles one block. What counts is how many blocks a team handles one after the other.
// Each round of clusters costs kRound more, or kBeside if half of the multiprocessors are left to the next product;
// with half row blocks that does not help. Four teams with half a row block each take kHalf of what two teams with
// whole ones take for two blocks.
template <typename Traits, int kRows>
void launch_panel(Stream stream, const LowbitArguments& p, int row_blocks) {
  static const int at_once[3] = {panels_at_once<Traits, kRows>(1), panels_at_once<Traits, kRows>(2),
                                 panels_at_once<Traits, kRows>(4)};
  constexpr bool kTwo = kRows > kMaxRows;
  constexpr int kChunks = kTwo ? 2 : 1, kFirstHalf = kTwo ? 1 : 2, kLastHalf = kTwo ? 4 : 2;
  constexpr float kRound = kTwo          ? 6
                           : kRows == 16 ? 12.5f
                                         : 8,
                  kBeside = kTwo          ? kRound
                            : kRows == 16 ? 8
                                          : 5,
                  kHalf = kTwo ? 1 : 0.95f;
  const auto cost = [&](const auto& cut, float beside, float block) {
    const int fit = at_once[cut.cluster / 2], clusters = static_cast<int>(cut.clusters()),
              rounds = (clusters + fit - 1) / fit, steps = (p.column_blocks + cut.sources() - 1) / cut.sources();
    return rounds * ((2 * clusters <= fit ? beside : kRound) + block * static_cast<float>(steps));
  };
  const auto cost_whole = [&](const PanelPlan<8>& cut) { return cost(cut, kBeside, 1); };
  const auto cost_half = [&](const PanelPlan<4>& cut) { return cost(cut, kRound, kHalf); };
  PanelPlan<8> whole = {1, 1, row_blocks, kChunks};
  PanelPlan<4> half = {1, kFirstHalf, row_blocks, kChunks};
  for (int cluster = 1; cluster <= 4; cluster *= 2)
    for (int wide = 1; wide <= 2 / kChunks; ++wide)
      if (const PanelPlan<8> cut{wide, cluster, row_blocks, kChunks}; cost_whole(cut) < cost_whole(whole)) whole = cut;
  for (int cluster = kFirstHalf; cluster <= kLastHalf; cluster *= 2)
    if (const PanelPlan<4> cut{1, cluster, row_blocks, kChunks}; cost_half(cut) < cost_half(half)) half = cut;
  if (cost_half(half) < cost_whole(whole))
    launch_panel_cut<Traits, kRows>(stream, p, half);
  else
    launch_panel_cut<Traits, kRows>(stream, p, whole);
}

}  // namespace fidelio::cuda
