// The kernel of lowbit.h but for many rows on Hopper (lowbit_panel.cuh), a template over the code, the number of 8-row
// activation tiles and the 16-output tiles of a warp.
//
// A thread block owns kTiles tiles of 16 outputs and has one warp for each of the kParts parts of the inputs; nothing
// is shared between warps until the end. A warp walks its part block by block (128 inputs):
//
//      DRAM --16-byte loads, kDepth blocks ahead--> registers --mask--> tensor cores --> acc (a group)
//                                                                                          |  total += s f (acc - z sum
//                                                                                          x)
//      L2 (L1) --activations of the block---------------------------------------------------'
//
// and at the end the parts' totals meet in shared memory, where they are added as a balanced tree. The first blocks are
// asked for before the kernel waits for the one before it (weights are constants), and each thread block ends by asking
// for a share of the next product's weights, so that memory does not idle between the layers of a decode step.
//
// What counts is that the thread blocks of a launch fill the multiprocessors once, with enough in flight: few tiles
// want one a warp and several blocks ahead, many tiles two or four a warp, which share what they read of the
// activations.
//
// Tried and slower (8192 x 8192, 4 bits, one row: this kernel's time is in docs/results-gpu.md): thread blocks that
// stay for tile after tile, two a multiprocessor with four blocks ahead, 14.1 us; the same with the activations staged
// in shared memory, 15.6 us; a ring of stages filled by cp.async.bulk with a producer warp, 128 outputs a thread block
// and a cluster of 2, 4 or 8 thread blocks sharing the inputs (12.7 us at best, 14..18 us mostly). Its fixed costs
// (barriers, cluster exchange) came to 3 us a launch, and with programmatic dependent launch the thread blocks of one
// kernel land unevenly on the multiprocessors.
#pragma once
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/lowbit_launch.cuh"
#include "kernels/cuda/lowbit_multiply.cuh"
#include "kernels/cuda/pair_table.cuh"

namespace fidelio::cuda {

// Where the parts begin, in column blocks.
__device__ __forceinline__ int part_begin(int part, int column_blocks) { return part * column_blocks / kParts; }

// Where a tile of 16 outputs is: its target, the row block there, the tile in it, and the block's first byte of codes.
struct TileAt {
  const LowbitTarget* target;
  int row_block, tile;
  const uint8_t* w;
};
template <typename Traits>
__device__ __forceinline__ TileAt tile_at(const LowbitArguments& p, int tile) {
  const int row_block = tile / 8;
  int which = 0;
  while (which + 1 < p.targets && row_block >= p.target[which + 1].first_row_block) ++which;
  const LowbitTarget& target = p.target[which];
  const int local = row_block - target.first_row_block;
  const int64_t bytes = Traits::kHalf ? 0 : int64_t{local} * p.column_blocks * Traits::kBlockBytes;
  return {&target, local, tile % 8, target.blocks + bytes};
}
template <typename Traits>
__device__ __forceinline__ void load_tile(LaneBlock<Traits>& to, const LowbitArguments& p, const TileAt& at, int tile,
                                          int block) {
  const int lane = threadIdx.x % 32;
  if constexpr (Traits::kHalf)
    to.load(reinterpret_cast<const __half*>(at.w), at.row_block * kBlockRows + (at.tile + tile) * 16 + lane / 4,
            at.target->out - 1, block * kBlockColumns + lane % 4 * 8, p.columns);
  else
    to.load(at.w + int64_t{block} * Traits::kBlockBytes, at.tile + tile, lane);
}

// `before`: what is there, if p.add.
__device__ __forceinline__ void store_output(const LowbitArguments& p, const LowbitTarget& target, int m, int row,
                                             float sum, float before) {
  float value = sum * 16777216.0f * target.factor;
  if (target.row_factor) value *= target.row_factor[row];
  if (target.bias) value += target.bias[row];
  target.y[int64_t{m} * target.out + row] = p.add ? before + value : value;
}
__device__ __forceinline__ void store_output(const LowbitArguments& p, const LowbitTarget& target, int m, int row,
                                             float sum) {
  store_output(p, target, m, row, sum, p.add ? target.y[int64_t{m} * target.out + row] : 0.0f);
}

// The last thing a thread block does: its share of what comes next.
__device__ __forceinline__ void ask_for_upcoming(const UpcomingShare (&upcoming)[kMaxTogether]) {
  if (threadIdx.x >= kMaxTogether) return;
  const UpcomingShare& u = upcoming[threadIdx.x];
  const uint32_t begin = blockIdx.x * u.share;
  if (begin < u.bytes)
    ptx::prefetch_into_l2(static_cast<const uint8_t*>(u.data) + begin, min(u.share, u.bytes - begin));
}
inline void share_upcoming(LowbitArguments& p, unsigned thread_blocks) {
  for (UpcomingShare& u : p.upcoming) u.share = (u.bytes / 16 + thread_blocks - 1) / thread_blocks * 16;
}

// A part of a tile's total again, by the scales, for where some row's are not 1: without haste.
template <typename Traits, int kTokenTiles>
__device__ __forceinline__ void scaled_part(const LowbitArguments& p, const TileAt& at, int tile, int first, int last,
                                            float (&total)[1][kTokenTiles][4]) {
  constexpr int kBlockBytes = kInputBlockBytes<kTokenTiles>;
  LaneInput x = lane_input<kTokenTiles>(p.x + first * kBlockBytes, threadIdx.x % 32 / 4);
  x.kept = p.x + p.column_blocks * kBlockBytes + first * kTokenTiles * kInputSumBytes + threadIdx.x % 4 * 8;
#pragma unroll 1
  for (int block = first; block < last; ++block) {
    LaneBlock<Traits> w[1];
    load_tile(w[0], p, at, tile, block);
    multiply_block<Traits, true>(w, x, 0, 0, total);
    x.advance(1, kBlockBytes);
    x.kept += kTokenTiles * kInputSumBytes;
  }
}

// Whether a row's total is not a number.
template <int kTiles, int kTokenTiles>
__device__ __forceinline__ bool any_nan(const float (&total)[kTiles][kTokenTiles][4], int rows) {
  bool found = false;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + (i & 1) < rows)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) found = found || isnan(total[tile][n][i]);
  return __any_sync(~0u, found);
}

// Asks for the codes, scales and zeros of kTiles tiles in a block to be brought into L2: one lane's work.
template <typename Traits, int kTiles>
__device__ __forceinline__ void prefetch_tiles(const uint8_t* block, int tile) {
  const auto plane = [&](int bytes) {  // of a tile
    ptx::prefetch_into_l2(block + tile * bytes, kTiles * bytes);
    block += bytes * (kBlockRows / 16);
  };
  if constexpr (has_plane4(Traits::bits)) plane(1024);
  if constexpr (Traits::bits == 8) plane(1024);
  if constexpr (has_plane2(Traits::bits)) plane(512);
  if constexpr (has_plane1(Traits::bits)) plane(256);
#pragma unroll
  for (int group = 0; group < Traits::kGroups; ++group) {
    plane(16 * Traits::kScaleBytes);
    if constexpr (Traits::kCentred) plane(16);
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kDepth, int kResident, int kFar>
__global__ void __launch_bounds__(kParts * 32, kResident) lowbit_kernel(const __grid_constant__ LowbitArguments p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kOutputs = kTiles * 16, kRows = kTokenTiles * 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::allow_dependents();
  const TileAt at = tile_at<Traits>(p, blockIdx.x * kTiles);
  const int first = part_begin(warp, p.column_blocks), last = part_begin(warp + 1, p.column_blocks);
  LaneBlock<Traits> ahead[kDepth][kTiles];
  const uint8_t* codes = Traits::kHalf ? at.w : at.w + first * Traits::kBlockBytes;  // of block `first`, and so on
  const auto load = [&](LaneBlock<Traits>(&to)[kTiles], int block, int from_codes) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      if constexpr (Traits::kHalf)
        load_tile(to[tile], p, at, tile, block);
      else
        to[tile].load(codes + from_codes * Traits::kBlockBytes, at.tile + tile, lane);
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d)
    if (first + d < last) load(ahead[d], first + d, d);
  if constexpr (kFar > 0)
    if (lane < min(kFar, last - first - kDepth))
      prefetch_tiles<Traits, kTiles>(codes + (kDepth + lane) * Traits::kBlockBytes, at.tile);

  float* sums = reinterpret_cast<float*>(shared);  // [part][row m][output]
  uint8_t* pair_table = shared + kParts * kRows * kOutputs * 4;
  if constexpr (Traits::kGrid) {
    fill_pair_table<Traits::bits>(pair_table, p.grid);
    __syncthreads();
  }
  const uint32_t table = ptx::shared_address(pair_table) + lane * 4;

  constexpr int kXBytes = kInputBlockBytes<kTokenTiles>;
  LaneInput x = lane_input<kTokenTiles>(p.x + first * kXBytes, kTokenTiles == 1 ? min(lane / 4, p.rows - 1) : lane / 4);
  float total[kTiles][kTokenTiles][4] = {};
  // The first output of a thread: what it is added to is asked for now, not when the sum is there.
  const int own = threadIdx.x, own_row = at.row_block * kBlockRows + at.tile * 16 + own % kOutputs;
  const bool known = p.add && own < kOutputs * p.rows && own_row < at.target->out;
  float before = 0;
  ptx::dependency_wait();
  if (known) before = at.target->y[int64_t{own / kOutputs} * at.target->out + own_row];
#pragma unroll 1
  for (int block = first; block < last; block += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (block + d >= last) break;
      multiply_block<Traits, false>(ahead[d], x, d, table, total);
      if (block + d + kDepth < last) load(ahead[d], block + d + kDepth, d + kDepth);
    }
    x.advance(kDepth, kXBytes);
    codes += kDepth * Traits::kBlockBytes;
  }
  ask_for_upcoming(p.upcoming);

  const auto put = [&](int tile, const float(&sum)[kTokenTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = tile * 16 + lane / 4 + (i & 2 ? 8 : 0), m = n * 8 + 2 * (lane % 4) + (i & 1);
        sums[(warp * kRows + m) * kOutputs + output] = sum[n][i] * code_unit(Traits::kind, Traits::bits, (i & 2) != 0);
      }
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) put(tile, total[tile]);
  if constexpr (Traits::kCentred)
    if (any_nan(total, p.rows)) {
#pragma unroll 1
      for (int tile = 0; tile < kTiles; ++tile) {
        float again[1][kTokenTiles][4] = {};
        scaled_part<Traits>(p, at, tile, first, last, again);
        put(tile, again[0]);
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < kOutputs * p.rows; i += blockDim.x) {
    const int m = i / kOutputs, output = i % kOutputs, row = at.row_block * kBlockRows + at.tile * 16 + output;
    if (row >= at.target->out) continue;
    const auto part = [&](int from) { return sums[(from * kRows + m) * kOutputs + output]; };
    const float sum = ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7)));
    if (i == own)
      store_output(p, *at.target, m, row, sum, before);
    else
      store_output(p, *at.target, m, row, sum);
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kDepth, int kResident, int kFar>
void launch_lowbit(Stream stream, LowbitArguments p, int row_blocks) {
  const auto kernel = lowbit_kernel<Traits, kTiles, kTokenTiles, kDepth, kResident, kFar>;
  constexpr int kShared = kParts * kTokenTiles * 8 * kTiles * 16 * 4 + Traits::kTableBytes;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  const auto thread_blocks = static_cast<unsigned>(row_blocks * 8 / kTiles);
  share_upcoming(p, thread_blocks);
  launch("launching a low-bit product", stream, dim3(thread_blocks), kParts * 32, kShared, kernel, p);
}

}  // namespace fidelio::cuda
