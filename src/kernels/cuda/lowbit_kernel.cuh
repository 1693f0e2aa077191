// The one kernel of lowbit.h, a template over the code and the number of 8-row activation tiles.
//
// A thread block owns a row block of 128 outputs (or its share of the inputs: a cluster of up to eight splits the kParts parts).
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
constexpr int kSumSlack = 3 * kInputSumBytes;  // sums of row tiles that do not exist are read (and not used) past the last stage

template <CodeKind kind_, int bits_, bool byte_scale, int group_chunks>
struct CodeTraits {
  static constexpr CodeKind kind = kind_;
  static constexpr int bits = bits_, kGroupChunks = group_chunks;  // chunks of 32 inputs a group
  static constexpr bool kGrid = kind == CodeKind::grid;
  static constexpr int kScaleBytes = (kGrid || byte_scale) ? 1 : 2;
  static constexpr int kTableBytes = kGrid ? pair_table_bytes(bits) : 0;
  static constexpr int kCodeBytes = kBlockRows * kBlockColumns / 8 * bits;

  static constexpr int kGroupBytes = kBlockRows * (kScaleBytes + (kGrid ? 0 : 1));  // scales, then zeros, of one group

  // Scales and zeros of rows g and g + 8 of a tile; `records` is the block's first group's.
  static __device__ __forceinline__ float2 scales(const uint8_t* records, int group, int tile, int g) {
    const uint8_t* at = records + group * kGroupBytes + (tile * 8 + g) * 2 * kScaleBytes;
    if constexpr (kScaleBytes == 2) return __half22float2(*reinterpret_cast<const __half2*>(at));
    if constexpr (kGrid) {
      const char2 s = *reinterpret_cast<const char2*>(at);
      return {static_cast<float>(s.x), static_cast<float>(s.y)};
    }
    const uchar2 s = *reinterpret_cast<const uchar2*>(at);
    return {static_cast<float>(s.x), static_cast<float>(s.y)};
  }
  static __device__ __forceinline__ float2 zeros(const uint8_t* records, int group, int tile, int g) {
    const uchar2 z = *reinterpret_cast<const uchar2*>(records + group * kGroupBytes + kBlockRows * kScaleBytes + (tile * 8 + g) * 2);
    return {static_cast<float>(z.x), static_cast<float>(z.y)};
  }
};

__host__ __device__ inline int stage_bytes_of(const LowbitArguments& p) {
  return p.block_bytes + (static_cast<int>(input_block_bytes(p.rows)) + 127) / 128 * 128;
}

__host__ __device__ constexpr int tree_levels(int ranks) { return ranks == 8 ? 0 : ranks == 4 ? 1 : ranks == 2 ? 2 : 3; }

// Where the parts begin, in column blocks.
__device__ __forceinline__ int part_begin(int part, int column_blocks) { return part * column_blocks / kParts; }

__device__ inline void produce(const LowbitArguments& p, const uint8_t* weights, uint8_t* ring, int stage_bytes, uint64_t* full, uint64_t* empty,
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

// Sums of parts are added as a balanced binary tree, (0 + 1) + (2 + 3) and so on, so that it does not matter how many parts a
// thread block has. The tree of a thread block's own parts is built in `levels` (one [row m][output] array a level, every
// element touched by one thread only); its root goes to the cluster's member that finishes these outputs, into
// received[rank it came from][row m][output of the receiver].
template <typename Traits, int kTiles, int kTokenTiles>
__device__ __forceinline__ void end_part(float (&total)[kTiles][kTokenTiles][4], float* levels, float* received, int part, int parts, int ranks,
                                         int rank, int warp, int lane) {
  const int outputs = kBlockRows / ranks;  // a rank finishes
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (warp * kTiles + tile) * 16 + lane / 4 + (i & 2 ? 8 : 0), m = n * 8 + 2 * (lane % 4) + (i & 1);
        float value = total[tile][n][i] * code_unit(Traits::kind, Traits::bits, (i & 2) != 0);
        total[tile][n][i] = 0;
        float* level = levels + m * kBlockRows + row;
        for (int bit = part; bit & 1; bit >>= 1, level += 8 * kTokenTiles * kBlockRows) value = *level + value;
        if (part + 1 < parts) *level = value;
        else ptx::store_to_rank(&received[(rank * 8 * kTokenTiles + m) * outputs + row % outputs], row / outputs, value);
      }
}

template <typename Traits, int kTiles, int kTokenTiles>
__device__ __forceinline__ void consume_block(const uint8_t* codes, const uint8_t* x, const int (&x_offset)[kTokenTiles], int sums_offset, uint32_t table,
                                              float (&total)[kTiles][kTokenTiles][4], int warp, int lane) {
  const int g = lane / 4;
  const uint8_t* records = codes + Traits::kCodeBytes;
  float acc[kTiles][kTokenTiles][4];
  LaneCodes<Traits::bits> lane_codes[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) lane_codes[tile].load(codes, warp * kTiles + tile, lane);
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
    for (int n = 0; n < kTokenTiles; ++n)  // chunks 0, 1 and 2, 3 change places in odd rows: see LowbitInput
      b[n] = *reinterpret_cast<const uint4*>(x + (c % 2 ? x_offset[n] ^ 64 : x_offset[n]) + c / 2 * 128);
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
    if (c % Traits::kGroupChunks == Traits::kGroupChunks - 1) {  // a group ends
      constexpr int kFirstSum = Traits::kGroupChunks == 1 ? 0 : Traits::kGroupChunks == 2 ? 4 : 6;
      const int group = c / Traits::kGroupChunks;
      float2 sums[kTokenTiles] = {};
      if constexpr (!Traits::kGrid)
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
          sums[n] = *reinterpret_cast<const float2*>(x + sums_offset + n * kInputSumBytes + (kFirstSum + group) * 32);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float2 s = Traits::scales(records, group, warp * kTiles + tile, g);
        const float2 z = Traits::kGrid ? float2{0, 0} : Traits::zeros(records, group, warp * kTiles + tile, g);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float centred = Traits::kGrid ? acc[tile][n][i] : fmaf(-(i & 2 ? z.y : z.x), i & 1 ? sums[n].y : sums[n].x, acc[tile][n][i]);
            total[tile][n][i] = fmaf(i & 2 ? s.y : s.x, centred, total[tile][n][i]);
          }
      }
    }
  }
}

template <typename Traits, int kTiles, int kTokenTiles>
__device__ void consume(const LowbitArguments& p, const uint8_t* ring, int stage_bytes, uint64_t* full, uint64_t* empty, uint32_t table,
                        float* levels, float* received, int rank, int warp, int lane) {
  float total[kTiles][kTokenTiles][4] = {};
  int x_offset[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int m = min(n * 8 + lane / 4, p.rows - 1);  // columns past the rows compute what nobody reads
    x_offset[n] = m * 256 + m % 2 * 64 + lane % 4 * 16;
  }
  const int sums_offset = p.rows * 256 + lane % 4 * 8;
  int stage = 0, parity = 0;
  const uint8_t* slot = ring;
  const int parts = kParts / p.ranks;
  for (int part = 0; part < parts; ++part) {
    const int blocks = part_begin(rank * parts + part + 1, p.column_blocks) - part_begin(rank * parts + part, p.column_blocks);
    for (int i = 0; i < blocks; ++i) {
      ptx::barrier_wait(&full[stage], parity);
      consume_block<Traits, kTiles, kTokenTiles>(slot, slot + p.block_bytes, x_offset, sums_offset, table, total, warp, lane);
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(&empty[stage]);
      slot += stage_bytes;
      if (++stage == p.stages) stage = 0, parity ^= 1, slot = ring;
    }
    if (part + 1 == parts) ptx::cluster_wait();  // every member runs, so its memory may be written
    end_part<Traits>(total, levels, received, part, parts, p.ranks, rank, warp, lane);
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kResident>
__global__ void __launch_bounds__((consumer_warps(kTiles) + 1) * 32, kResident) lowbit_kernel(const __grid_constant__ LowbitArguments p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kWarps = consumer_warps(kTiles);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stage_bytes = stage_bytes_of(p);
  uint64_t* full = reinterpret_cast<uint64_t*>(shared);
  uint64_t* empty = full + p.stages;
  constexpr int kSumsOfBlock = 8 * kTokenTiles * kBlockRows;
  float* received = reinterpret_cast<float*>(shared + kRingBarrierBytes);
  float* levels = received + kSumsOfBlock;
  uint8_t* pair_table = reinterpret_cast<uint8_t*>(levels + tree_levels(p.ranks) * kSumsOfBlock);
  uint8_t* ring = pair_table + Traits::kTableBytes;  // 128-byte aligned, as every stage

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ptx::barrier_init(&full[i], ptx::kFillArrivals);
      ptx::barrier_init(&empty[i], kWarps);
    }
    ptx::barrier_init_fence();
  }
  if constexpr (Traits::kGrid)
    for (int i = threadIdx.x; i < Traits::kTableBytes / 4; i += blockDim.x) {
      const int2 codes = pair_codes(Traits::bits, i / 32);
      reinterpret_cast<__half2*>(pair_table)[i] = __halves2half2(__int2half_rn(p.grid[codes.x]), __int2half_rn(p.grid[codes.y]));
    }
  ptx::cluster_arrive();
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
    produce(p, weights, ring, stage_bytes, full, empty, first, last, lane);
    ptx::cluster_wait();
  } else {
    consume<Traits, kTiles, kTokenTiles>(p, ring, stage_bytes, full, empty, ptx::shared_address(pair_table) + lane * 4, levels, received, rank, warp,
                                         lane);
  }
  ptx::cluster_arrive();
  ptx::dependency_wait();
  ptx::cluster_wait();
  if (ranks == 1) __syncthreads();

  const int outputs = kBlockRows / ranks;
  for (int i = threadIdx.x; i < outputs * p.rows; i += blockDim.x) {
    const int m = i / outputs, r = i % outputs, row = local * kBlockRows + rank * outputs + r;
    if (row >= target.out) continue;
    const float* sums = received + m * outputs + r;
    const auto from = [&](int rank) { return sums[rank * 8 * kTokenTiles * outputs]; };
    float sum;
    if (ranks == 1) sum = from(0);
    else if (ranks == 2) sum = from(0) + from(1);
    else if (ranks == 4) sum = (from(0) + from(1)) + (from(2) + from(3));
    else sum = ((from(0) + from(1)) + (from(2) + from(3))) + ((from(4) + from(5)) + (from(6) + from(7)));
    float value = sum * (16777216.0f * p.x_scale[m]);
    if (target.row_factor) value *= target.row_factor[row];
    if (target.bias) value += target.bias[row];
    float& y = target.y[int64_t{m} * target.out + row];
    y = p.add ? y + value : value;
  }
}

template <typename Traits, int kTiles, int kTokenTiles, int kResident>
void launch_lowbit(Stream stream, const LowbitArguments& p, int row_blocks, const LowbitLaunch& how) {
  const auto kernel = lowbit_kernel<Traits, kTiles, kTokenTiles, kResident>;
  constexpr int kSharedOfSm = 227 * 1024, kReserved = 1024;
  const int fixed = kRingBarrierBytes + kBlockRows * 8 * kTokenTiles * 4 * (1 + tree_levels(how.cluster)) + Traits::kTableBytes + kSumSlack;
  const int stage_bytes = stage_bytes_of(p);
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
template <typename Traits>
void launch_lowbit_tiles(Stream stream, const LowbitArguments& p, int row_blocks, const LowbitLaunch& how) {
  if constexpr (Traits::kind == CodeKind::integer && Traits::bits == 4 && Traits::kScaleBytes == 2 && Traits::kGroupChunks == 4) {
    switch (how.variant) {
      case 114: return launch_lowbit<Traits, 1, 1, 4>(stream, p, row_blocks, how);
      case 113: return launch_lowbit<Traits, 1, 1, 3>(stream, p, row_blocks, how);
      case 214: return launch_lowbit<Traits, 2, 1, 4>(stream, p, row_blocks, how);
      case 216: return launch_lowbit<Traits, 2, 1, 6>(stream, p, row_blocks, how);
      case 414: return launch_lowbit<Traits, 4, 1, 4>(stream, p, row_blocks, how);
      case 123: return launch_lowbit<Traits, 1, 2, 3>(stream, p, row_blocks, how);
      case 224: return launch_lowbit<Traits, 2, 2, 4>(stream, p, row_blocks, how);
      case 142: return launch_lowbit<Traits, 1, 4, 2>(stream, p, row_blocks, how);
      case 242: return launch_lowbit<Traits, 2, 4, 2>(stream, p, row_blocks, how);
      case 243: return launch_lowbit<Traits, 2, 4, 3>(stream, p, row_blocks, how);
    }
  }
  if (p.rows <= 8) return launch_lowbit<Traits, 1, 1, 4>(stream, p, row_blocks, how);
  if (p.rows <= 16) return launch_lowbit<Traits, 1, 2, 3>(stream, p, row_blocks, how);
  launch_lowbit<Traits, 2, 4, 3>(stream, p, row_blocks, how);
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks, const LowbitLaunch& how) {
  if (p.group_chunks == 1) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 1>>(stream, p, row_blocks, how);
  if (p.group_chunks == 2) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 2>>(stream, p, row_blocks, how);
  launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 4>>(stream, p, row_blocks, how);
}

}  // namespace fidelio::cuda
