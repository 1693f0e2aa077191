// This file has what all kernels of low-bit products share, and the kernel for weights of FP16 values. That is a
// template over the number of tiles of 8 activation rows and of 16 outputs that a warp has. (The kernel for integers
// and grids is in lowbit_stream.cuh.)
//
// A thread block has kTiles tiles of 16 outputs and one warp for each of the kParts parts of the inputs. Warps share
// nothing until the end. A warp walks through its part block by block (128 inputs):
//
//      DRAM --16-byte loads, kDepth blocks ahead--> registers --> tensor cores --> acc (a group)
//                                                                                   |  total += f acc
//      L2 (L1) --activations of the block--------------------------------------------'
//
// At the end the parts' totals meet in shared memory, where they are added as a balanced tree. The first blocks are
// asked for before the kernel waits for the one before it, because weights are constants. Each thread block ends by
// asking for a share of the next product's weights, so that memory does not idle between the layers of a decode step.
#pragma once
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/decode/lowbit_launch.cuh"
#include "kernels/cuda/linear/decode/lowbit_multiply.cuh"

namespace fidelio::cuda {

// Returns the column block where a part begins.
__device__ __forceinline__ int part_begin(int part, int column_blocks) { return part * column_blocks / kParts; }

// A TileAt says where a tile of 16 outputs is: its target, its row block there, the tile within that, the block's
// first byte of codes, its inputs, and where the target's outputs go.
struct TileAt {
  const LowbitTarget* target;
  int row_block, tile;
  const uint8_t *w, *x;
  float* y;
  int rows;
};
template <typename Traits>
__device__ __forceinline__ TileAt tile_at(const LowbitArguments& p, int tile) {
  const int row_block = tile / 8;
  int which = 0;
  while (which + 1 < p.targets && row_block >= p.target[which + 1].first_row_block) ++which;
  const LowbitTarget& target = p.target[which];
  const int local = row_block - target.first_row_block;
  const int64_t bytes = Traits::kHalf ? 0 : int64_t{local} * p.column_blocks * block_stride<Traits>(p);
  return {&target, local, tile % 8, target.blocks + bytes, p.x, target.y, p.rows};
}
// Returns the tile of a slot's expert, which earlier kernels have chosen.
template <typename Traits>
__device__ __forceinline__ TileAt tile_at(const RoutedArguments& p, int tile) {
  const int row_block = tile / 8, a_slot = p.outputs * p.blocks_each, slot = row_block / a_slot,
            output = row_block % a_slot / p.blocks_each, local = row_block % p.blocks_each;
  const LowbitTarget& target = p.table[output][p.experts[slot]];
  return {&target,
          local,
          tile % 8,
          target.blocks + int64_t{local} * p.column_blocks * block_stride<Traits>(p),
          p.x + slot / p.slots_per_input * int64_t{p.input_bytes},
          p.y_of[output] + slot * int64_t{target.out},
          1};
}
// Returns a tile of slots that share an expert. If there is no such tile, the result has no rows.
template <typename Traits>
__device__ __forceinline__ TileAt tile_at(const TiledArguments& p, int tile) {
  const int row_block = tile / 8, a_tile = p.outputs * p.blocks_each, index = row_block / a_tile,
            output = row_block % a_tile / p.blocks_each, local = row_block % p.blocks_each;
  if (index >= *p.tile_count) return {};
  const RoutedTile& of = p.tiles[index];
  const LowbitTarget& target = p.table[output][of.expert];
  return {&target,
          local,
          tile % 8,
          target.blocks + int64_t{local} * p.column_blocks * block_stride<Traits>(p),
          p.x + index * int64_t{p.input_bytes},
          p.y_of[output] + of.first_slot * int64_t{target.out},
          of.rows};
}
template <typename Traits>
__device__ __forceinline__ void load_tile(LaneBlock<Traits>& to, const LowbitArguments& p, const TileAt& at, int tile,
                                          int block) {
  const int lane = threadIdx.x % 32;
  to.load(reinterpret_cast<const __half*>(at.w), at.row_block * kBlockRows + (at.tile + tile) * 16 + lane / 4,
          at.target->out - 1, block * kBlockColumns + lane % 4 * 8, p.columns);
}

// An OutputScale turns a sum into an output.
struct OutputScale {
  float factor = 1, row_factor = 1, bias = 0;
  bool has_bias = false;

  __device__ __forceinline__ float operator()(float sum) const {
    const float value = sum * factor * row_factor;
    return has_bias ? value + bias : value;
  }
};
__device__ __forceinline__ OutputScale scale_of(const LowbitTarget& target, int output) {
  return {target.factor, target.row_factor ? target.row_factor[output] : 1, target.bias ? target.bias[output] : 0,
          target.bias != nullptr};
}

// OwnOutputs is a thread's share of a thread block's outputs, [row][output]: one output of every few rows. Their
// addresses are computed before the kernel waits for the one before it. Reading a launch's arguments for the first
// time is slow. At the end of the kernel, with several targets, that was most of the microsecond after the last sum.
template <int kOutputs, int kRows>
struct OwnOutputs {
  static constexpr int kThreads = kParts * 32, kCount = (kOutputs * kRows + kThreads - 1) / kThreads;
  static_assert(kThreads % kOutputs == 0);
  float* y[kCount] = {};  // null if there is no such output
  float before[kCount] = {};
  OutputScale scale;

  __device__ __forceinline__ OwnOutputs(const LowbitArguments& p, const TileAt& at) {
    const LowbitTarget& target = *at.target;
    const int output = at.row_block * kBlockRows + at.tile * 16 + static_cast<int>(threadIdx.x) % kOutputs;
    if (output >= target.out) return;
    scale = scale_of(target, output);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int m = sum_of(i) / kOutputs;
      if (m < at.rows) y[i] = at.y + int64_t{m} * target.out + output;
    }
  }
  // Returns which of the thread block's sums is the thread's i-th.
  static __device__ __forceinline__ int sum_of(int i) { return static_cast<int>(threadIdx.x) + i * kThreads; }
  // Reads what the sums are added to. It must follow the wait for the earlier kernels.
  __device__ __forceinline__ void ask(const LowbitArguments& p) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (p.add && y[i]) before[i] = *y[i];
  }
  __device__ __forceinline__ float value(const LowbitArguments& p, int i, float sum) const {
    return p.add ? before[i] + scale(sum) : scale(sum);
  }
};

// Asks for a thread block's share of the next product's bytes, when its own last bytes are on their way. Each warp
// asks for one address, because requests of several lanes would be handled one after the other.
__device__ __forceinline__ void ask_for_upcoming(const LowbitArguments& p, int warp) {
  if (warp >= kMaxTogether || threadIdx.x % 32 > 0) return;
  const UpcomingShare& u = p.upcoming[warp];
  const uint32_t begin = (blockIdx.z * gridDim.x + blockIdx.x) * u.apart;
  if (begin < u.bytes)
    ptx::prefetch_into_l2(static_cast<const uint8_t*>(u.data) + begin, min(u.share, u.bytes - begin));
}
inline void share_upcoming(LowbitArguments& p, unsigned thread_blocks) {
  for (int i = 0; i < kMaxTogether; ++i) {
    UpcomingShare& u = p.upcoming[i];
    const uint32_t reach = thread_blocks * u.apart;
    if (u.apart == 0) {
      u.share = u.apart = (u.bytes / 16 + thread_blocks - 1) / thread_blocks * 16;
      // Another warp takes some of the pieces.
    } else if (u.bytes > reach && i + 1 < kMaxTogether && p.upcoming[i + 1].bytes == 0) {
      p.upcoming[i + 1] = {static_cast<const uint8_t*>(u.data) + reach, u.bytes - reach, u.share, u.apart};
      u.bytes = reach;
    }
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kDepth, int kResident>
__global__ void __launch_bounds__(kParts * 32, kResident) lowbit_kernel(const __grid_constant__ LowbitArguments p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kOutputs = kTiles * 16, kRows = kTokenTiles * 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::allow_dependents();
  const TileAt at = tile_at<Traits>(p, blockIdx.x * kTiles);
  const int first = part_begin(warp, p.column_blocks), last = part_begin(warp + 1, p.column_blocks);
  LaneBlock<Traits> ahead[kDepth][kTiles];
  const auto load = [&](LaneBlock<Traits>(&to)[kTiles], int block) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) load_tile(to[tile], p, at, tile, block);
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d)
    if (first + d < last) load(ahead[d], first + d);
  float* sums = reinterpret_cast<float*>(shared);  // [part][row m][output]

  constexpr int kXBytes = kInputBlockBytes<kRows>;
  const uint8_t* x = p.x + int64_t{first} * kXBytes;
  const int row = kTokenTiles == 1 ? min(lane / 4, p.rows - 1) : lane / 4;
  const uint8_t *halves = x + row * kInputHalves + lane % 4 * 16, *scales = x + half_scales_at(kRows) + lane % 4 * 8;
  float total[kTiles][kTokenTiles][4] = {};
  OwnOutputs<kOutputs, kRows> own(p, at);
  ptx::dependency_wait();
  own.ask(p);
#pragma unroll 1
  for (int block = first; block < last; block += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (block + d >= last) break;
      multiply_halves<Traits>(ahead[d], halves + d * kXBytes, scales + d * kXBytes, total);
      if (block + d + kDepth < last) load(ahead[d], block + d + kDepth);
    }
    halves += kDepth * kXBytes, scales += kDepth * kXBytes;
  }
  ask_for_upcoming(p, warp);

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = tile * 16 + lane / 4 + (i & 2 ? 8 : 0), m = n * 8 + 2 * (lane % 4) + (i & 1);
        sums[(warp * kRows + m) * kOutputs + output] = total[tile][n][i];
      }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < own.kCount; ++i) {
    if (!own.y[i]) continue;
    const auto part = [&](int from) { return sums[from * kRows * kOutputs + own.sum_of(i)]; };
    *own.y[i] =
        own.value(p, i, ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7))));
  }
}

// A kernel with this many tiles for each multiprocessor, as a vocabulary has, is long. It is not started before the
// kernel in front has ended. Starting it early would save a microsecond. But after products of integers, which use
// all of a multiprocessor's L1 as shared memory, it made a step of llama-3-8b 76 us slower (probably because thread
// blocks that start then have no L1; NOTES.md).
constexpr int kLongTiles = 32;

template <typename Traits, int kTiles, int kTokenTiles, int kDepth, int kResident>
void launch_lowbit(Stream stream, LowbitArguments p, int row_blocks) {
  const auto kernel = lowbit_kernel<Traits, kTiles, kTokenTiles, kDepth, kResident>;
  constexpr int kShared = kParts * kTokenTiles * 8 * kTiles * 16 * 4;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  const auto thread_blocks = static_cast<unsigned>(row_blocks * 8 / kTiles);
  share_upcoming(p, thread_blocks);
  LaunchShape shape{dim3(thread_blocks), kParts * 32, kShared};
  shape.early = row_blocks * 8 <= kLongTiles * multiprocessors();
  launch("launching a low-bit product", stream, shape, kernel, p);
}

}  // namespace fidelio::cuda
