// The one kernel of lowbit.h, a template over the code and the number of 8-row activation tiles.
//
// A thread block owns a row block of 128 outputs (or its share of the inputs: a cluster of four splits the kParts parts).
// One producer warp fills a ring of stages, each a weight block and the matching activation block; 8 / kTiles consumer warps
// each own kTiles tiles of 16 rows and need no barrier between them but the ring's:
//
//      DRAM --bulk copy--> [stage 0][stage 1] ... [stage S-1]  --LDS--> registers --mask--> tensor cores --> acc (a group)
//                           full/empty mbarriers                                                 total += s (acc - z sum x)
//
// The producer asks for weights before it waits for the kernel before (they are constants), so that with programmatic
// dependent launch memory never idles between the layers of a decode step.
#pragma once
#include <algorithm>

#include "kernels/cuda/cuda_error.cuh"
#include "kernels/cuda/lowbit_codes.cuh"
#include "kernels/cuda/lowbit_launch.cuh"

namespace fidelio::cuda {

constexpr int consumer_warps(int tiles) { return 8 / tiles; }
constexpr int kMaxStages = 16, kRingBarrierBytes = 2 * 8 * kMaxStages;
constexpr int kRingSlack = 128;  // the last stage's activation sums are read up to a whole tile past the rows there are

template <CodeKind kind, int bits, bool byte_scale>
struct CodeTraits {
  static constexpr bool kGrid = kind == CodeKind::grid;
  static constexpr int kScaleBytes = (kGrid || byte_scale) ? 1 : 2;
  static constexpr int kTableBytes = kGrid ? pair_table_bytes(bits) : 0;
  static constexpr int kCodeBytes = kBlockRows * kBlockColumns / 8 * bits;

  // Scales of rows g, g + 8 of a tile.
  static __device__ __forceinline__ float2 scales(const uint8_t* scale, int group, int tile, int g) {
    const int pair = (group * 8 + tile) * 8 + g;
    if constexpr (kScaleBytes == 2) return __half22float2(reinterpret_cast<const __half2*>(scale)[pair]);
    if constexpr (kGrid) {
      const char2 s = reinterpret_cast<const char2*>(scale)[pair];
      return {static_cast<float>(s.x), static_cast<float>(s.y)};
    }
    const uchar2 s = reinterpret_cast<const uchar2*>(scale)[pair];
    return {static_cast<float>(s.x), static_cast<float>(s.y)};
  }
  static __device__ __forceinline__ float2 zeros(const uint8_t* zero, int group, int tile, int g) {
    const uchar2 z = reinterpret_cast<const uchar2*>(zero)[(group * 8 + tile) * 8 + g];
    return {static_cast<float>(z.x), static_cast<float>(z.y)};
  }
};

// Where the parts begin, in column blocks.
__device__ __forceinline__ int part_begin(int part, int column_blocks) { return part * column_blocks / kParts; }

template <typename Traits>
__device__ void produce(const LowbitArguments& p, const uint8_t* weights, uint8_t* ring, int stage_bytes, uint64_t* full, uint64_t* empty,
                        int first, int last, int lane) {
  const uint32_t x_bytes = static_cast<uint32_t>(input_block_bytes(p.rows)), w_bytes = static_cast<uint32_t>(p.block_bytes);
  const auto fill_weights = [&](int block, int stage) {
    ptx::fill_begin(&full[stage], w_bytes + x_bytes, lane);
    ptx::fill_copy<true>(&full[stage], ring + stage * stage_bytes, weights + int64_t{block} * w_bytes, w_bytes, lane);
  };
  const auto fill_x = [&](int block, int stage) {
    ptx::fill_copy<false>(&full[stage], ring + stage * stage_bytes + w_bytes, p.x + int64_t{block} * x_bytes, x_bytes, lane);
    ptx::fill_end(&full[stage]);
  };
  const int ahead = min(p.stages, last - first);
  for (int i = 0; i < ahead; ++i) fill_weights(first + i, i);
  ptx::dependency_wait();
  for (int i = 0; i < ahead; ++i) fill_x(first + i, i);
  int stage = 0, parity = 0;
  for (int block = first + ahead; block < last; ++block) {
    ptx::barrier_wait(&empty[stage], parity);
    fill_weights(block, stage);
    fill_x(block, stage);
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }
}

template <typename Traits, CodeKind kind, int bits, int kTiles, int kTokenTiles>
__device__ void consume(const LowbitArguments& p, const uint8_t* ring, int stage_bytes, uint64_t* full, uint64_t* empty, uint32_t table,
                        float* partial, int first, int last, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, rows8 = (p.rows + 7) / 8 * 8, flush_mask = p.group_chunks - 1;
  float total[kTiles][kTokenTiles][4] = {}, acc[kTiles][kTokenTiles][4] = {};
  float sums[kTokenTiles][2] = {};
  int stage = 0, parity = 0, part = 0;
  while (part_begin(part + 1, p.column_blocks) <= first) ++part;
  bool begun = false;  // whether `partial` holds earlier parts

  const auto end_part = [&] {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = (warp * kTiles + tile) * 16 + g + (i & 2 ? 8 : 0), m = n * 8 + 2 * t + (i & 1);
          const float unit = i & 2 ? 1.0f / (1 << code_shift(kind, bits, true)) : 1.0f / (1 << code_shift(kind, bits, false));
          const float value = total[tile][n][i] * unit;
          float& sum = partial[m * kBlockRows + row];
          sum = begun ? sum + value : value;
          total[tile][n][i] = 0;
        }
    begun = true;
  };

  for (int block = first; block < last; ++block) {
    while (block >= part_begin(part + 1, p.column_blocks)) {
      end_part();
      ++part;
    }
    const uint8_t* codes = ring + stage * stage_bytes;
    const uint8_t* scale = codes + Traits::kCodeBytes;
    const uint8_t* zero = scale + (4 / p.group_chunks) * kBlockRows * Traits::kScaleBytes;
    const uint8_t* x = codes + p.block_bytes;
    const float* x_sums = reinterpret_cast<const float*>(x + p.rows * 256);
    ptx::barrier_wait(&full[stage], parity);

    LaneCodes<bits> lane_codes[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) lane_codes[tile].load(codes, warp * kTiles + tile, lane);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint4 b[kTokenTiles];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const int m = n * 8 + g;
        b[n] = m < p.rows ? *reinterpret_cast<const uint4*>(x + (c * p.rows + m) * 64 + t * 16) : uint4{0, 0, 0, 0};
        if constexpr (!Traits::kGrid) {
          const float2 s = *reinterpret_cast<const float2*>(x_sums + c * rows8 + n * 8 + 2 * t);
          sums[n][0] += s.x;
          sums[n][1] += s.y;
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t a[4];
          if constexpr (Traits::kGrid) lane_codes[tile].grid(c, h, table, a);
          else lane_codes[tile].integer(c, h, a);
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) ptx::mma(acc[tile][n], a, h ? b[n].z : b[n].x, h ? b[n].w : b[n].y);
        }
      if ((c & flush_mask) == flush_mask) {  // a group ends
        const int group = c / p.group_chunks;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float2 s = Traits::scales(scale, group, warp * kTiles + tile, g);
          const float2 z = Traits::kGrid ? float2{0, 0} : Traits::zeros(zero, group, warp * kTiles + tile, g);
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float centred = Traits::kGrid ? acc[tile][n][i] : fmaf(-(i & 2 ? z.y : z.x), sums[n][i & 1], acc[tile][n][i]);
              total[tile][n][i] = fmaf(i & 2 ? s.y : s.x, centred, total[tile][n][i]);
              acc[tile][n][i] = 0;
            }
        }
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) sums[n][0] = sums[n][1] = 0;
      }
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&empty[stage]);
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }
  end_part();
}

template <CodeKind kind, int bits, bool byte_scale, int kTiles, int kTokenTiles, int kResident>
__global__ void __launch_bounds__((consumer_warps(kTiles) + 1) * 32, kResident) lowbit_kernel(const __grid_constant__ LowbitArguments p) {
  using Traits = CodeTraits<kind, bits, byte_scale>;
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kWarps = consumer_warps(kTiles);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stage_bytes = p.block_bytes + static_cast<int>(input_block_bytes(p.rows));
  uint64_t* full = reinterpret_cast<uint64_t*>(shared);
  uint64_t* empty = full + p.stages;
  float* partial = reinterpret_cast<float*>(shared + kRingBarrierBytes);
  uint8_t* pair_table = shared + kRingBarrierBytes + kBlockRows * 8 * kTokenTiles * 4;
  uint8_t* ring = pair_table + Traits::kTableBytes;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ptx::barrier_init(&full[i], ptx::kFillArrivals);
      ptx::barrier_init(&empty[i], kWarps);
    }
    ptx::barrier_init_fence();
  }
  if constexpr (Traits::kGrid)
    for (int i = threadIdx.x; i < Traits::kTableBytes / 4; i += blockDim.x) {
      const int2 codes = pair_codes(bits, i / 32);
      reinterpret_cast<__half2*>(pair_table)[i] = __halves2half2(__int2half_rn(p.grid[codes.x]), __int2half_rn(p.grid[codes.y]));
    }
  __syncthreads();
  ptx::allow_dependents();

  // Which row block of which target, and which of the parts.
  const int ranks = p.ranks, row_block = blockIdx.x / ranks, rank = blockIdx.x % ranks, parts = kParts / ranks;
  int which = 0;
  while (which + 1 < p.targets && row_block >= p.target[which + 1].first_row_block) ++which;
  const LowbitTarget& target = p.target[which];
  const int local = row_block - target.first_row_block;
  const uint8_t* weights = target.blocks + int64_t{local} * p.column_blocks * p.block_bytes;
  const int first = part_begin(rank * parts, p.column_blocks), last = part_begin((rank + 1) * parts, p.column_blocks);

  if (warp == kWarps) {
    produce<Traits>(p, weights, ring, stage_bytes, full, empty, first, last, lane);
  } else {
    consume<Traits, kind, bits, kTiles, kTokenTiles>(p, ring, stage_bytes, full, empty, ptx::shared_address(pair_table) + lane * 4, partial, first,
                                                     last, warp, lane);
  }
  ptx::dependency_wait();

  // Each rank finishes its share of the rows, adding the ranks' sums in order.
  if (ranks > 1) ptx::cluster_barrier();
  else __syncthreads();
  const int rows_here = kBlockRows / ranks;
  for (int i = threadIdx.x; i < rows_here * p.rows; i += blockDim.x) {
    const int m = i / rows_here, r = rank * rows_here + i % rows_here, row = local * kBlockRows + r;
    if (row >= target.out) continue;
    float sum = 0;
    if (ranks == 1) sum = partial[m * kBlockRows + r];
    else
      for (int from = 0; from < ranks; ++from) {
        const float part = ptx::load_from_rank(&partial[m * kBlockRows + r], from);
        sum = from == 0 ? part : sum + part;
      }
    float value = sum * (16777216.0f * p.x_scale[m]);
    if (target.row_factor) value *= target.row_factor[row];
    if (target.bias) value += target.bias[row];
    float& y = target.y[int64_t{m} * target.out + row];
    y = p.add ? y + value : value;
  }
  if (ranks > 1) ptx::cluster_barrier();  // others may still be reading this block's sums
}

template <CodeKind kind, int bits, bool byte_scale, int kTiles, int kTokenTiles, int kResident>
void launch_lowbit(Stream stream, const LowbitArguments& p, int row_blocks, const LowbitLaunch& how) {
  using Traits = CodeTraits<kind, bits, byte_scale>;
  const auto kernel = lowbit_kernel<kind, bits, byte_scale, kTiles, kTokenTiles, kResident>;
  constexpr int kSharedOfSm = 227 * 1024, kReserved = 1024;
  const int fixed = kRingBarrierBytes + kBlockRows * 8 * kTokenTiles * 4 + Traits::kTableBytes + kRingSlack;
  const int stage_bytes = p.block_bytes + static_cast<int>(input_block_bytes(p.rows));
  LowbitArguments arguments = p;
  arguments.stages = how.stages > 0 ? how.stages : (kSharedOfSm / kResident - kReserved - fixed) / stage_bytes;
  arguments.stages = std::clamp(arguments.stages, 2, kMaxStages);
  arguments.ranks = how.cluster;
  const int shared = fixed + arguments.stages * stage_bytes;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedOfSm);
  cuda_check(allowed, "allowing 227 KB of shared memory");

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(row_blocks * how.cluster));
  config.blockDim = dim3((consumer_warps(kTiles) + 1) * 32);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (how.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
    ++count;
  }
  if (how.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  config.attrs = attributes;
  config.numAttrs = count;
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments), "launching a low-bit product");
}

// Chooses the activation tiles. More than 16 rows share each unpacked weight's activations between two tiles of a warp.
template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks, const LowbitLaunch& how) {
  if (p.rows <= 8) return launch_lowbit<kind, bits, byte_scale, 1, 1, 3>(stream, p, row_blocks, how);
  if (p.rows <= 16) return launch_lowbit<kind, bits, byte_scale, 1, 2, 3>(stream, p, row_blocks, how);
  launch_lowbit<kind, bits, byte_scale, 2, 4, 3>(stream, p, row_blocks, how);
}

}  // namespace fidelio::cuda
