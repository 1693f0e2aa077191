// The product for 9 to kMaxRows rows of activations, where they are as many bytes as the weights and must be shared: a
// thread block owns a whole block of 128 outputs, a warp a tile of 16, and all of them the activations of one block of
// inputs after the other in shared memory:
//
//      L2 --cp.async, kStages blocks--> ring in shared memory --+
//      DRAM --16-byte loads, kDepth ahead--> registers --mask---+--> tensor cores --> total of a part
//
// To fill the device the kParts parts of the inputs are dealt out to `splits` thread blocks. Each adds the parts that
// it has as the balanced tree of lowbit.h asks (finished subtrees wait in shared memory, as in a binary counter), and
// the last of a block's thread blocks to arrive adds up theirs: the same sums in the same order as lowbit_kernel.cuh's,
// so a row's result is the same bit for bit.
#pragma once
#include "kernels/cuda/lowbit_kernel.cuh"

namespace fidelio::cuda {

template <typename Traits>
constexpr int kManyDepth = Traits::kHalf       ? 1
                           : Traits::bits <= 4 ? 4
                           : Traits::bits <= 6 ? 3
                                               : 2;
template <typename Traits>
constexpr int kStages = Traits::kGrid ? 3 : 4;

template <typename Traits, int kTokenTiles>
__global__ void __launch_bounds__(kParts * 32, 2) lowbit_many(const __grid_constant__ LowbitArguments p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kDepth = kManyDepth<Traits>, kRing = kStages<Traits>, kThreads = kParts * 32, kValues = kTokenTiles * 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row_block = blockIdx.x / p.splits,
            split = blockIdx.x % p.splits;
  ptx::allow_dependents();
  const TileAt tile = tile_at<Traits>(p, row_block * 8 + warp);
  const LowbitTarget& target = *tile.target;
  const int parts = kParts / p.splits, part0 = split * parts, first = part_begin(part0, p.column_blocks),
            last = part_begin(part0 + parts, p.column_blocks);
  LaneBlock<Traits> ahead[kDepth][1];
#pragma unroll
  for (int d = 0; d < kDepth; ++d)
    if (first + d < last) load_tile(ahead[d][0], p, tile, first + d);

  uint8_t* pair_table = shared;
  if constexpr (Traits::kGrid) {
    fill_pair_table<Traits::bits>(pair_table, p.grid);
    __syncthreads();
  }
  const uint32_t table = ptx::shared_address(pair_table) + lane * 4;
  const int x_bytes = static_cast<int>(input_block_bytes(p.rows)), sums_offset = p.rows * 256 + lane % 4 * 8;
  int x_offset[kTokenTiles][2];
  offsets_of_rows<kTokenTiles>(p.rows, x_offset);
  float* waiting = reinterpret_cast<float*>(pair_table + Traits::kTableBytes) + threadIdx.x;  // [level][value][thread]
  uint8_t* ring = pair_table + Traits::kTableBytes + p.levels * kValues * kThreads * 4;
  ptx::dependency_wait();
  const auto stage = [&](int block, int place) {
    if (block < last)
      for (int at = threadIdx.x * 16; at < x_bytes; at += kThreads * 16)
        ptx::copy_async(ring + place * x_bytes + at, p.x + int64_t{block} * x_bytes + at);
    ptx::commit_copies();
  };
#pragma unroll
  for (int s = 0; s < kRing - 1; ++s) stage(first + s, s);

  float total[1][kTokenTiles][4] = {};
  int part = 0;
  const auto close_part = [&] {
#pragma unroll
    for (int i = 0; i < kValues; ++i) total[0][i / 4][i % 4] *= code_unit(Traits::kind, Traits::bits, (i & 2) != 0);
    int level = 0;
    for (; part >> level & 1; ++level)
#pragma unroll
      for (int i = 0; i < kValues; ++i) total[0][i / 4][i % 4] += waiting[(level * kValues + i) * kThreads];
    if (++part == parts) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      waiting[(level * kValues + i) * kThreads] = total[0][i / 4][i % 4];
      total[0][i / 4][i % 4] = 0;
    }
  };
  int place = 0, part_end = part_begin(part0 + 1, p.column_blocks);
#pragma unroll 1
  for (int block0 = first; block0 < last; block0 += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int block = block0 + d;
      if (block >= last) break;
      while (block == part_end) {
        close_part();
        part_end = part_begin(part0 + part + 1, p.column_blocks);
      }
      ptx::wait_for_copies<kRing - 2>();
      __syncthreads();
      stage(block + kRing - 1, place == 0 ? kRing - 1 : place - 1);
      multiply_block<Traits, kTokenTiles>(ahead[d], ring + place * x_bytes, x_offset, sums_offset, table, total);
      if (block + kDepth < last) load_tile(ahead[d][0], p, tile, block + kDepth);
      place = place + 1 == kRing ? 0 : place + 1;
    }
  }
  while (part < parts) close_part();
  ask_for_upcoming(p.upcoming);

  if (p.splits > 1) {
    const auto partial = [&](int of) {
      return p.partial + (int64_t{row_block} * p.splits + of) * kValues * kThreads + threadIdx.x;
    };
#pragma unroll
    for (int i = 0; i < kValues; ++i) partial(split)[i * kThreads] = total[0][i / 4][i % 4];
    __shared__ bool last_to_arrive;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto before = static_cast<unsigned>(p.splits - 1);
      last_to_arrive = atomicInc(p.arrived + row_block, before) == before;  // and back to 0
    }
    __syncthreads();
    if (!last_to_arrive) return;
    __threadfence();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float v[kParts];
#pragma unroll
      for (int of = 0; of < kParts; ++of) v[of] = of < p.splits ? __ldcg(partial(of) + i * kThreads) : 0.0f;
      total[0][i / 4][i % 4] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int m = i / 4 * 8 + 2 * (lane % 4) + i % 2,
              row = tile.row_block * kBlockRows + warp * 16 + lane / 4 + (i & 2 ? 8 : 0);
    if (m < p.rows && row < target.out) store_output(p, target, m, row, total[0][i / 4][i % 4]);
  }
}

template <typename Traits, int kTokenTiles>
void launch_many(Stream stream, LowbitArguments p, int row_blocks) {
  const auto kernel = lowbit_many<Traits, kTokenTiles>;
  constexpr int kMost = 113 * 1024;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost);
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  for (p.splits = 1, p.levels = 3; p.splits < kParts && row_blocks * p.splits <= multiprocessors(); p.splits *= 2)
    --p.levels;
  const auto bytes = Traits::kTableBytes + p.levels * kTokenTiles * 4 * kParts * 32 * 4 +
                     kStages<Traits> * static_cast<int>(input_block_bytes(p.rows));
  launch("launching a low-bit product", stream, dim3(static_cast<unsigned>(row_blocks * p.splits)), kParts * 32,
         static_cast<size_t>(bytes), kernel, p);
}

template <typename Traits>
void launch_traits(Stream stream, const LowbitArguments& p, int row_blocks) {
  constexpr int kFew = Traits::kHalf ? 2 : Traits::bits <= 6 ? 4 : 3;  // blocks ahead with two tiles a multiprocessor
  if (p.rows > 16) return launch_many<Traits, 4>(stream, p, row_blocks);
  if (p.rows > 8) return launch_many<Traits, 2>(stream, p, row_blocks);
  if (row_blocks * 8 <= 2 * multiprocessors()) return launch_few<Traits, kFew, 2>(stream, p, row_blocks);
  launch_few<Traits, Traits::bits <= 2 ? 2 : 1, Traits::kHalf ? 3 : 4>(stream, p, row_blocks);
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks) {
  if (p.group_chunks == 1) return launch_traits<CodeTraits<kind, bits, byte_scale, 1>>(stream, p, row_blocks);
  if (p.group_chunks == 2) return launch_traits<CodeTraits<kind, bits, byte_scale, 2>>(stream, p, row_blocks);
  launch_traits<CodeTraits<kind, bits, byte_scale, 4>>(stream, p, row_blocks);
}

}  // namespace fidelio::cuda
