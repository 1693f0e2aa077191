// The one kernel of lowbit.h, a template over the code, the number of 8-row activation tiles and the 16-output tiles of
// a warp.
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
// Many tiles want many warps (four thread blocks a multiprocessor, one block ahead: 163 instructions a block and little
// parallelism within a warp); where there are only two tiles a multiprocessor, each warp must have more in flight.
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
#include "kernels/cuda/lowbit_block.cuh"
#include "kernels/cuda/lowbit_codes.cuh"
#include "kernels/cuda/lowbit_launch.cuh"
#include "kernels/cuda/pair_table.cuh"

namespace fidelio::cuda {

// total += this block's share. `x` is the block's activations.
template <typename Traits, int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_block(const LaneBlock<Traits> (&w)[kTiles], const uint8_t* x,
                                               const int (&x_offset)[kTokenTiles][2], int sums_offset, uint32_t table,
                                               float (&total)[kTiles][kTokenTiles][4]) {
  float acc[kTiles][kTokenTiles][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c % Traits::kGroupChunks == 0) {  // a group begins
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[tile][n][i] = 0;
    }
    uint4 b[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) b[n] = *reinterpret_cast<const uint4*>(x + x_offset[n][c % 2] + c * 64);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        if constexpr (Traits::kHalf)
          w[tile].fragment(c, h, a);
        else if constexpr (Traits::kGrid)
          w[tile].codes.grid(c, h, table, a);
        else
          w[tile].codes.integer(c, h, a);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) ptx::mma(acc[tile][n], a, h ? b[n].z : b[n].x, h ? b[n].w : b[n].y);
      }
    if (c % Traits::kGroupChunks == Traits::kGroupChunks - 1) {  // a group ends
      constexpr int kFirstSum = Traits::kGroupChunks == 1 ? 0 : Traits::kGroupChunks == 2 ? 4 : 6;
      const int group = c / Traits::kGroupChunks;
      float2 sums[kTokenTiles] = {}, f[kTokenTiles];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const uint8_t* of_rows = x + sums_offset + n * kInputSumBytes;
        f[n] = *reinterpret_cast<const float2*>(of_rows + kInputScale * 32);
        if constexpr (Traits::kCentred) sums[n] = *reinterpret_cast<const float2*>(of_rows + (kFirstSum + group) * 32);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float2 s{1, 1}, z{0, 0};
        if constexpr (!Traits::kHalf) s = w[tile].scales(group);
        if constexpr (Traits::kCentred) z = w[tile].zeros(group);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float centred = !Traits::kCentred
                                      ? acc[tile][n][i]
                                      : fmaf(-(i & 2 ? z.y : z.x), i & 1 ? sums[n].y : sums[n].x, acc[tile][n][i]);
            total[tile][n][i] = fmaf(i & 2 ? s.y : s.x, centred * (i & 1 ? f[n].y : f[n].x), total[tile][n][i]);
          }
      }
    }
  }
}

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

// Where a lane's activations are in a block, of even and of odd chunks; columns past the rows there are compute what
// nobody reads.
template <int kTokenTiles>
__device__ __forceinline__ void offsets_of_rows(int rows, int (&x_offset)[kTokenTiles][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int m = min(n * 8 + lane / 4, rows - 1), at = m * 256 + lane % 4 * 16;
    x_offset[n][0] = at + m % 2 * 64;
    x_offset[n][1] = at - m % 2 * 64;
  }
}

__device__ __forceinline__ void store_output(const LowbitArguments& p, const LowbitTarget& target, int m, int row,
                                             float sum) {
  float value = sum * 16777216.0f * target.factor;
  if (target.row_factor) value *= target.row_factor[row];
  if (target.bias) value += target.bias[row];
  float& y = target.y[int64_t{m} * target.out + row];
  y = p.add ? y + value : value;
}

// The last thing a thread block does: its share of what comes next.
__device__ __forceinline__ void ask_for_upcoming(const Upcoming (&upcoming)[kMaxTogether]) {
  if (threadIdx.x >= kMaxTogether) return;
  const Upcoming& u = upcoming[threadIdx.x];
  const auto begin_of = [&](unsigned block) {
    return static_cast<uint32_t>(uint64_t{u.bytes / 16} * block / gridDim.x) * 16;
  };
  const uint32_t begin = begin_of(blockIdx.x), end = begin_of(blockIdx.x + 1);
  if (end > begin) ptx::prefetch_into_l2(static_cast<const uint8_t*>(u.data) + begin, end - begin);
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
  uint8_t* pair_table = shared + kParts * kRows * kOutputs * 4;
  if constexpr (Traits::kGrid) {
    fill_pair_table<Traits::bits>(pair_table, p.grid);
    __syncthreads();
  }
  const uint32_t table = ptx::shared_address(pair_table) + lane * 4;

  int x_offset[kTokenTiles][2];
  offsets_of_rows<kTokenTiles>(p.rows, x_offset);
  const int sums_offset = p.rows * 256 + lane % 4 * 8, x_bytes = static_cast<int>(input_block_bytes(p.rows));
  float total[kTiles][kTokenTiles][4] = {};
  ptx::dependency_wait();
  const uint8_t* x = p.x + int64_t{first} * x_bytes;
#pragma unroll 1
  for (int block = first; block < last; block += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (block + d >= last) break;
      multiply_block<Traits, kTiles, kTokenTiles>(ahead[d], x, x_offset, sums_offset, table, total);
      if (block + d + kDepth < last) load(ahead[d], block + d + kDepth);
      x += x_bytes;
    }
  }
  ask_for_upcoming(p.upcoming);

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = tile * 16 + lane / 4 + (i & 2 ? 8 : 0), m = n * 8 + 2 * (lane % 4) + (i & 1);
        sums[(warp * kRows + m) * kOutputs + output] =
            total[tile][n][i] * code_unit(Traits::kind, Traits::bits, (i & 2) != 0);
      }
  __syncthreads();
  for (int i = threadIdx.x; i < kOutputs * p.rows; i += blockDim.x) {
    const int m = i / kOutputs, output = i % kOutputs, row = at.row_block * kBlockRows + at.tile * 16 + output;
    if (row >= at.target->out) continue;
    const auto part = [&](int from) { return sums[(from * kRows + m) * kOutputs + output]; };
    const float sum = ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7)));
    store_output(p, *at.target, m, row, sum);
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kDepth, int kResident>
void launch_lowbit(Stream stream, const LowbitArguments& p, int row_blocks) {
  const auto kernel = lowbit_kernel<Traits, kTiles, kTokenTiles, kDepth, kResident>;
  constexpr int kShared = kParts * kTokenTiles * 8 * kTiles * 16 * 4 + Traits::kTableBytes;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  launch("launching a low-bit product", stream, dim3(static_cast<unsigned>(row_blocks * 8 / kTiles)), kParts * 32,
         kShared, kernel, p);
}

template <typename Traits>
void launch_lowbit_tiles(Stream stream, const LowbitArguments& p, int row_blocks) {
  constexpr bool kHalf = Traits::kHalf;
  constexpr int kFew = kHalf ? 2 : Traits::bits <= 6 ? 4 : 3;  // blocks ahead with two tiles a multiprocessor
  if (p.rows > 16) return launch_lowbit < Traits, kHalf ? 2 : 4, 4, 1, 1 > (stream, p, row_blocks);
  if (p.rows > 8) {
    constexpr int kDepth = Traits::bits <= 4 ? 2 : 1;
    return launch_lowbit < Traits, kHalf ? 1 : 2, 2, kDepth, kHalf ? 3 : 2 > (stream, p, row_blocks);
  }
  if (row_blocks * 8 <= 2 * multiprocessors()) return launch_lowbit<Traits, 1, 1, kFew, 2>(stream, p, row_blocks);
  launch_lowbit<Traits, 1, 1, Traits::bits <= 2 ? 2 : 1, kHalf ? 3 : 4>(stream, p, row_blocks);
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks) {
  if (p.group_chunks == 1) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 1>>(stream, p, row_blocks);
  if (p.group_chunks == 2) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 2>>(stream, p, row_blocks);
  launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 4>>(stream, p, row_blocks);
}

}  // namespace fidelio::cuda
