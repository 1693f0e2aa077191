// Products of integers, 9 to 32 rows, on Hopper. What lowbit_stream.cuh fetches of so many rows is more than the
// weights: each thread block reads the activations of its share of the inputs, and from 8 rows on all bytes together
// come to 5 to 6 TB/s, which looks like what L2 gives. So here shares are made of many outputs and few inputs, and the
// thread blocks of a cluster add theirs up:
//
//      cluster        128 or 256 outputs; each thread block 1/1, 1/2 or 1/4 of the inputs
//      thread block   16 warps that multiply, each a tile of 16 outputs: 256 outputs, or 128 in two teams, which have
//                     half of the thread block's inputs each; and a warp of which one thread asks for what comes next
//
//      DRAM, L2 --bulk copies, all stages ahead--> a team's ring: blocks of weights, a block of activations
//                                                    |  registers: codes --mask--> A    |
//                                                    '--------------------------- B ----'--> wgmma --> acc (a group)
//                                                                                                        |
//                                                                          total += s f (acc - z sum) <--'
//
// Four warpgroups share the matrix units (in turns, two at a time, was no faster). The sum over a group is exact and
// the rest is done in the order of lowbit.h, so a row has the bits that lowbit_stream.cuh gives it.
#pragma once
#include <algorithm>
#include <climits>

#include "kernels/cuda/lowbit_panel_warp.cuh"

namespace fidelio::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Four sums of eight rows of a tile, as a lane has them: rows 2 t and 2 t + 1 of output g, then of g + 8.
__device__ __forceinline__ void store_panel(const LowbitArguments& p, const TileAt& block, int tile, int lane, int n,
                                            float4 sum) {
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = n * 8 + lane % 4 * 2 + i % 2,
              output = block.row_block * kBlockRows + tile * 16 + lane / 4 + i / 2 * 8;
    if (m < p.rows && output < block.target->out) store_output(p, *block.target, m, output, value[i]);
  }
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// A warp that multiplies.
template <typename Traits, int kRows>
__device__ __forceinline__ void multiply_and_join(const LowbitArguments& p, const PanelPlan& plan,
                                                  const PanelMemory<Traits, kRows>& at, int warp) {
  constexpr int kEights = kRows / 8;
  int lane = threadIdx.x % 32;
  const int tiles = plan.wide * 8, team = warp / tiles, tile = warp % tiles, source = blockIdx.z * plan.teams() + team;
  float4* const saved = reinterpret_cast<float4*>(at.saved) + threadIdx.x;  // [level][eight rows][thread]
  constexpr int kThreads = kPanelWarps * 32;
  const uint8_t *const ring = at.stage(plan, team, 0), *const input = ring + plan.wide * Traits::kBlockBytes;
  // Opaque, or the compiler works them out again for each block.
  int codes = static_cast<int>(ring - at.ring) + tile / 8 * Traits::kBlockBytes,
      records = static_cast<int>(input - at.ring) + kRows * kInputPlanes + lane % 4 * 8, in_block = tile % 8;
  asm("" : "+r"(codes), "+r"(records), "+r"(in_block), "+r"(lane));
  const uint32_t b = ptx::panel_rows(ptx::shared_address(input)), first_barrier = at.barrier(at.filled, team, 0);
  const int ring_bytes = plan.stages * at.stage_bytes;
  int offset = 0, parity = 0;
  uint32_t barrier = first_barrier;
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
      ptx::wait(barrier, parity);
      multiply_panel<Traits, kRows>(at.ring + (codes + offset), b + (offset >> 4), at.ring + (records + offset),
                                    in_block, lane, total);
      __syncwarp();  // nothing is left of it where lanes agree, so racecheck reports the other 31
      if (lane == 0) ptx::arrive(barrier + 2 * kPanelStages * 8);
      offset += at.stage_bytes;
      barrier += 8;
      if (offset == ring_bytes) offset = 0, barrier = first_barrier, parity ^= 1;
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] *= integer_unit<Traits>(i >= 2);
    // The balanced tree, from its leaves: as many sums wait as the part's number has ones.
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
  ask_for_upcoming(p.upcoming);

  const auto block_of = [&](int tile) { return panel_block<Traits>(p, plan, tile / 8); };
  const auto there = [&](int tile) { return static_cast<int>(blockIdx.x) * plan.wide + tile / 8 < plan.row_blocks; };
  const auto quad = [&](int n) { return float4{total[n][0], total[n][1], total[n][2], total[n][3]}; };
  if (plan.sources() == 1) {
    ptx::dependency_wait();
    if (there(tile))
#pragma unroll
      for (int n = 0; n < kEights; ++n) store_panel(p, block_of(tile), tile % 8, lane, n, quad(n));
    return;
  }
  // Each thread block of the cluster finishes some of the tiles: [source][its tiles][eight rows][lane].
  const int own = tiles / plan.cluster;
  const auto received = [&](int source, int item) { return at.received + (source * own * kEights * 32 + item) * 16; };
  uint8_t* const to = received(source, tile % own * kEights * 32 + lane);
  if (plan.cluster == 1) {  // whose only thread block knows no asynchronous stores
#pragma unroll
    for (int n = 0; n < kEights; ++n) *reinterpret_cast<float4*>(to + n * 512) = quad(n);
    ptx::wait_for_warps(1, kThreads);
  } else {
    ptx::cluster_wait();  // the others have begun
    const uint32_t there = ptx::address_in(tile / own, to), arrived = ptx::address_in(tile / own, at.all_received);
#pragma unroll
    for (int n = 0; n < kEights; ++n) ptx::store_in_cluster(there + n * 512, quad(n), arrived);
    ptx::wait(at.all_received, 0);
  }
  ptx::dependency_wait();
  for (int item = threadIdx.x; item < own * kEights * 32; item += kThreads) {
    const auto of = [&](int source) { return *reinterpret_cast<const float4*>(received(source, item)); };
    float4 sum = of(0) + of(1);
    if (plan.sources() >= 4) sum = sum + (of(2) + of(3));
    if (plan.sources() == 8) sum = sum + ((of(4) + of(5)) + (of(6) + of(7)));
    const int n = item / 32 % kEights, mine = blockIdx.z * own + item / 32 / kEights;
    if (there(mine)) store_panel(p, block_of(mine), mine % 8, lane, n, sum);
  }
}
#endif

template <typename Traits, int kRows>
__global__ void __launch_bounds__(kPanelThreads, 1)
    panel_kernel(const __grid_constant__ LowbitArguments p, const __grid_constant__ PanelPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const PanelMemory<Traits, kRows> at(shared, plan);
  const bool asks = warp == kPanelWarps && lane == 0;
  ptx::allow_dependents();
  if (asks) {
    for (int team = 0; team < plan.teams(); ++team)
      for (int i = 0; i < plan.stages; ++i)
        ptx::start_barrier(at.barrier(at.filled, team, i), 1),
            ptx::start_barrier(at.barrier(at.emptied, team, i), plan.wide * 8);
    ptx::start_barrier(at.all_received, 1);
    ptx::publish_barriers();
    if (plan.cluster > 1) ptx::expect(at.all_received, PanelShape<Traits, kRows>::kSums);
    const PanelAsker<Traits, kRows> asker(p, plan, at);
    for (int i = 0; i < min(plan.stages, asker.steps()); ++i) asker.weights(i, i);
  }
  __syncthreads();
  if (plan.cluster > 1) ptx::cluster_arrive_relaxed();
  if (warp < kPanelWarps) {
    multiply_and_join<Traits, kRows>(p, plan, at, warp);
  } else if (asks) {
    const PanelAsker<Traits, kRows> asker(p, plan, at);
    ptx::dependency_wait();
    for (int i = 0; i < min(plan.stages, asker.steps()); ++i) asker.activations(i, i);
    asker.rest();
  }
#endif
}

// How many clusters of so many thread blocks of these kernels, which fill a multiprocessor, are there at once.
template <typename Traits, int kRows>
int clusters_at_once(int cluster) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, static_cast<unsigned>(cluster));
  config.blockDim = dim3(kPanelThreads);
  config.dynamicSmemBytes = kMostShared;
  cudaLaunchAttribute size = {};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {1, 1, static_cast<unsigned>(cluster)};
  config.attrs = &size;
  config.numAttrs = 1;
  int count = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&count, panel_kernel<Traits, kRows>, &config), "counting clusters");
  return std::max(count, 1);
}

// The cut that is done soonest. Measured on an H200 (docs/results-gpu.md): what a team does one after the other counts,
// and each round of clusters costs kRound such steps more; the bytes that thread blocks fetch do not show.
template <typename Traits, int kRows>
void launch_panel(Stream stream, LowbitArguments p, int row_blocks) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(panel_kernel<Traits, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  static const int at_once[3] = {clusters_at_once<Traits, kRows>(1), clusters_at_once<Traits, kRows>(2),
                                 clusters_at_once<Traits, kRows>(4)};
  constexpr int kRound = 10;
  PanelPlan best = {};
  int soonest = INT_MAX;
  for (int i = 0; i < 3; ++i)
    for (int wide = 1; wide <= 2; ++wide) {
      const PanelPlan cut{wide, 1 << i, row_blocks};
      const int steps = (p.column_blocks + cut.sources() - 1) / cut.sources(),
                rounds = (static_cast<int>(cut.clusters()) + at_once[i] - 1) / at_once[i];
      if (rounds * (kRound + steps) < soonest) soonest = rounds * (kRound + steps), best = cut;
    }
  const PanelPlan plan = PanelShape<Traits, kRows>::fitting(best);
  const auto cluster = static_cast<unsigned>(plan.cluster);
  share_upcoming(p, plan.clusters() * cluster);
  launch_clusters("launching a low-bit product", stream, dim3(plan.clusters(), 1, cluster), cluster, kPanelThreads,
                  static_cast<size_t>(plan.bytes), panel_kernel<Traits, kRows>, p, plan);
}

}  // namespace fidelio::cuda
