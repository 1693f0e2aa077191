// Products of integers. A thread block owns kTeam x kTiles tiles of 16 outputs and has a team of kTeam warps for each
// of the kParts parts of the inputs; teams share nothing until the end. A warp walks its part block by block (128
// inputs):
//
//      DRAM --cp.async, kStages blocks ahead--> the warp's ring --> registers --mask--> tensor cores --> acc (a group)
//                                                                                        |
//                                                                   total += s f (acc - z sum)
//                                                                                        |
//      L2 --cp.async, kStages blocks ahead--> the team's ring ----------------------------'
//
// and at the end the parts' totals meet in shared memory, where they are added as a balanced tree. The rings of weights
// (constants) fill before the kernel waits for the one before it.
//
// That activations come through a ring too is what counts: they lie in L2, but while weights stream in an answer from
// there takes a microsecond as well, and a load of them a block ahead made each of the eight blocks of a part wait for
// it (8192 x 8192, 4 bits, one row: 10.6 us so, 8.8 with the ring, which is what copying the bytes takes).
//
// Tried and no faster at 16 rows: teams of two warps (12.5 us, one warp with four tiles 12.6). Slower at 16 and 32
// rows: panels of 128 or 256 outputs by wgmma, activations in shared memory for all warps, sums by distributed shared
// memory of a cluster (M = 16: 17 us at best, M = 32: 28); pairs of thread blocks that each fetch half of the
// activations for both (multicast; 16.6 and 22 to 24 us where this kernel takes 12.6 and 18.8).
#pragma once
#include "kernels/cuda/lowbit_kernel.cuh"
#include "kernels/cuda/lowbit_ring.cuh"

namespace fidelio::cuda {

constexpr int kMostShared = 227 * 1024;  // of a Hopper multiprocessor, with 1 KB for each thread block on it

template <typename Traits, int kTiles, int kTeam, int kBlocks, int kRows, int kStages>
struct StreamShape {
  static constexpr int kOwnParts = kParts / kBlocks;
  static constexpr int kOutputs = kTeam * kTiles * 16, kRowTiles = (kRows + kTileRows - 1) / kTileRows;
  static constexpr int kWeights = TileRing<Traits, kTiles>::kStage, kInput = kRows * kInputRow;  // of a stage
  static constexpr int kRings = kStages * (kTeam * kWeights + kInput), kSums = kRowTiles * kTileRows * kOutputs * 4;
  static constexpr int kTeamBytes = kRings > kSums ? kRings : kSums;  // the sums come where the rings were
  static constexpr int kReceived = kBlocks == 1 ? 0 : kSums / 2;      // from the other of a pair
  static constexpr int kThreads = kOwnParts * kTeam * 32, kShared = kOwnParts * kTeamBytes + kReceived;
};

template <int kTeam>
__device__ __forceinline__ void wait_for_team(int part) {
  if constexpr (kTeam == 1)
    __syncwarp();
  else
    ptx::wait_for_warps(1 + part, kTeam * 32);
}

// The parts' sums, which lie where their rings were: a balanced tree, and the output.
template <typename Shape, int kBlocks>
__device__ __forceinline__ void join_parts(const LowbitArguments& p, const TileAt& to, uint8_t* shared, int rank) {
  const auto sums = [&](int of) { return reinterpret_cast<float*>(shared + of * Shape::kTeamBytes); };
  const auto sum_of = [&](int i) {
    const auto of = [&](int from) { return sums(from)[i]; };
    const float first_half = (of(0) + of(1)) + (of(2) + of(3));
    if constexpr (kBlocks == 2) return first_half;
    return first_half + ((of(4) + of(5)) + (of(6) + of(7)));
  };
  const auto store = [&](int m, int output, float sum) {
    output += to.row_block * kBlockRows + to.tile * 16;
    if (output < to.target->out) store_output(p, *to.target, m, output, sum);
  };
  if constexpr (kBlocks == 1) {
    for (int i = threadIdx.x; i < Shape::kOutputs * p.rows; i += Shape::kThreads)
      store(i / Shape::kOutputs, i % Shape::kOutputs, sum_of(i));
  } else {  // each of the pair finishes half of the outputs
    constexpr int kHalf = Shape::kOutputs / 2;
    float* const received = reinterpret_cast<float*>(shared + Shape::kOwnParts * Shape::kTeamBytes);
    ptx::cluster_wait();  // for the other to have begun
    for (int i = threadIdx.x * 2; i < kHalf * p.rows; i += Shape::kThreads * 2) {
      const int theirs = i / kHalf * Shape::kOutputs + (1 - rank) * kHalf + i % kHalf;
      ptx::store_in_cluster(ptx::address_in(1 - rank, received + i), float2{sum_of(theirs), sum_of(theirs + 1)});
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    for (int i = threadIdx.x; i < kHalf * p.rows; i += Shape::kThreads) {
      const int output = rank * kHalf + i % kHalf;
      store(i / kHalf, output, sum_of(i / kHalf * Shape::kOutputs + output) + received[i]);
    }
  }
}

template <typename Traits, int kTiles, int kTeam, int kBlocks, int kRows, int kStages>
__device__ __forceinline__ void stream_product(const LowbitArguments& p) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Shape = StreamShape<Traits, kTiles, kTeam, kBlocks, kRows, kStages>;
  constexpr int kRowTiles = Shape::kRowTiles;
  // The shuffle shows the compiler that all lanes agree.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), own_part = warp / kTeam, member = warp % kTeam;
  const int rank = blockIdx.z, group = blockIdx.x, part = rank * Shape::kOwnParts + own_part;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if constexpr (kBlocks == 2) ptx::cluster_arrive();
  ptx::allow_dependents();
  const TileAt at = tile_at<Traits>(p, (group * kTeam + member) * kTiles);
  const int first = part_begin(part, p.column_blocks), count = part_begin(part + 1, p.column_blocks) - first;
  uint8_t* const own = shared + own_part * Shape::kTeamBytes;
  TileRing<Traits, kTiles> ring(own + member * kStages * Shape::kWeights, at.w + int64_t{first} * Traits::kBlockBytes,
                                at.tile);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < count) ring.ask(stage);
    ptx::commit_copies();
  }

  // What the activations are laid out for. The kernel for kMaxRows takes fewer too.
  const int room = static_cast<int>(input_rows(kRows == kMaxRows ? p.rows : kRows)),
            block_bytes = static_cast<int>(input_block_bytes(room));
  uint8_t* const inputs = own + kStages * kTeam * Shape::kWeights;
  const int piece = member * 32 + lane, pieces = min(kRows, p.rows) * (kInputRow / 16);
  const uint8_t* from = p.x + int64_t{first} * block_bytes + rows_at(room) + piece * 16;
  const auto ask_input = [&](int stage) {
#pragma unroll
    for (int i = 0; i < Shape::kInput; i += kTeam * 512)
      if (piece + i / 16 < pieces) ptx::copy_async(inputs + stage * Shape::kInput + piece * 16 + i, from + i);
    from += block_bytes;
  };
  const uint8_t* const of_products = inputs + min(g / 2, kRows - 1) * kInputRow + g % 2 * 64 + t * 16;
  const uint8_t* const record = inputs + min(t, kRows - 1) * kInputRow + kInputPlanes;
  float total[kTiles][kRowTiles][2] = {};
  ptx::dependency_wait();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < count) ask_input(stage);
    ptx::commit_copies();
  }
#pragma unroll 1
  for (int block = 0; block < count; block += kStages) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (block + stage >= count) break;
      ptx::wait_for_copies<kStages - 1>();
      wait_for_team<kTeam>(own_part);
      const auto load = [&](LaneIntegers<Traits::kGroupChunks>& x, int n) {
        const int from_first = stage * Shape::kInput + n * kTileRows * kInputRow;
        x.load(of_products + from_first, record + from_first);
      };
      // Few rows stay in registers for all tiles, of many each tile of rows for two tiles of outputs.
      constexpr bool kFew = kRowTiles <= 2;
      constexpr int kPair = kFew || kTiles == 1 ? 1 : 2;
      LaneIntegers<Traits::kGroupChunks> few[kFew ? kRowTiles : 1];
      if constexpr (kFew)
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) load(few[n], n);
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += kPair) {
        LaneBlock<Traits> w[kPair];
#pragma unroll
        for (int i = 0; i < kPair; ++i) ring.load(stage, tile + i, w[i]);
        multiply_integers<Traits>(
            w,
            [&](int n) {
              if constexpr (kFew) return few[n];
              LaneIntegers<Traits::kGroupChunks> x;
              load(x, n);
              return x;
            },
            &total[tile]);
      }
      wait_for_team<kTeam>(own_part);
      if (block + stage + kStages < count) ring.ask(stage), ask_input(stage);
      ptx::commit_copies();
    }
  }
  ask_for_upcoming(p.upcoming);

  float* const sums = reinterpret_cast<float*>(own);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int up = 0; up < 2; ++up)
        sums[(n * kTileRows + t) * Shape::kOutputs + (member * kTiles + tile) * 16 + g + 8 * up] =
            total[tile][n][up] * integer_unit<Traits>(up != 0);
  __syncthreads();
  join_parts<Shape, kBlocks>(p, tile_at<Traits>(p, group * kTeam * kTiles), shared, rank);
}

template <typename Traits, int kTiles, int kTeam, int kBlocks, int kRows, int kStages, int kResident>
__global__ void __launch_bounds__(kParts / kBlocks * kTeam * 32, kResident)
    stream_kernel(const __grid_constant__ LowbitArguments p) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kUsed = true;
#else
  constexpr bool kUsed = kTiles == 1;  // the only one that is launched there
#endif
  if constexpr (kUsed) stream_product<Traits, kTiles, kTeam, kBlocks, kRows, kStages>(p);
}
template <typename Traits, int kTiles, int kTeam, int kBlocks, int kRows, int kStages, int kResident>
void launch_stream(Stream stream, LowbitArguments p, int row_blocks) {
  using Shape = StreamShape<Traits, kTiles, kTeam, kBlocks, kRows, kStages>;
  const auto kernel = stream_kernel<Traits, kTiles, kTeam, kBlocks, kRows, kStages, kResident>;
  static const cudaError_t allowed = [&] {
    const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kShared);
    return first != cudaSuccess ? first
                                : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  }();
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  const auto groups = static_cast<unsigned>(row_blocks * 8 / (kTiles * kTeam));
  share_upcoming(p, groups * kBlocks);
  launch_clusters("launching a low-bit product", stream, dim3(groups, 1, kBlocks), kBlocks, Shape::kThreads,
                  Shape::kShared, kernel, p);
}

}  // namespace fidelio::cuda
