// This file multiplies integers and grids by 1 to 8 rows (before Hopper by any number of rows; on Hopper
// lowbit_panel.cuh takes more). A thread block has kTiles tiles of 16 outputs and one warp for each of the kParts
// parts of the inputs. Warps share nothing until the end. A warp walks through its part block by block (128 inputs):
//
//    DRAM --cp.async, kStages blocks ahead--> a ring of weights --> registers --mask--> tensor cores --> acc (a group)
//                                                                                        |
//                                                                   total += s f (acc - z sum)
//                                                                                        |
//    L2 --cp.async, kStages blocks ahead--> a ring of activations ------------------------'
//
// At the end the parts' totals meet in shared memory, where they are added as a balanced tree. The rings of weights,
// which are constants, fill before the kernel waits for the one before it. In a decode step the kernel may go on and
// make the next product's row (lowbit_join.cuh).
//
// It is important that activations come through a ring too. They lie in L2, but while weights stream in, a read from
// L2 takes a microsecond as well. When activations were loaded only one block ahead, each of the eight blocks of a
// part waited for them (8192 x 8192, 4 bits, one row: 10.6 us; with the ring 8.8, which is the time of copying the
// bytes).
#pragma once
#include <type_traits>

#include "kernels/cuda/linear/decode/lowbit_join.cuh"
#include "kernels/cuda/linear/decode/lowbit_ring.cuh"

namespace fidelio::cuda {

template <typename Traits, int kTiles, int kRows, int kStages>
struct StreamShape {
  static constexpr int kOutputs = kTiles * 16, kRowTiles = (kRows + kTileRows - 1) / kTileRows;
  static constexpr int kWeights = TileRing<Traits, kTiles>::kStage, kInput = kRows * kInputRow;  // bytes of a stage
  static constexpr int kRings = kStages * (kWeights + kInput), kSums = kRowTiles * kTileRows * kOutputs * 4;
  static constexpr int kWarpBytes = kRings > kSums ? kRings : kSums;  // the sums are written where the rings were
  static constexpr int kThreads = kParts * 32;
  // For a thread block that joins others' outputs: where those come, a barrier, and then the factors of rows.
  static constexpr int kMostRows = kRows, kReceived = kParts * kWarpBytes, kShared = kReceived + join_bytes(kRows),
                       kNormWeight = kReceived + received_bytes(kRows), kBarrier = kNormWeight + kBlockRows * 4,
                       kFactors = kBarrier + 16;
};

// Adds the parts' sums, which lie where their rings were, as a balanced tree.
template <typename Shape>
__device__ __forceinline__ float joined(const uint8_t* shared, int i) {
  const auto of = [&](int part) { return reinterpret_cast<const float*>(shared + part * Shape::kWarpBytes)[i]; };
  return ((of(0) + of(1)) + (of(2) + of(3))) + ((of(4) + of(5)) + (of(6) + of(7)));
}

template <typename Traits, int kTiles, int kRows, int kStages, bool kRounds, typename Arguments>
__device__ __forceinline__ void stream_product(const Arguments& p) {
  constexpr bool kRouted = !std::is_same_v<Arguments, LowbitArguments>, kTakesJoined = kRows <= kMostJoined && !kRouted,
                 kJoins = kTakesJoined && joins_rows(Traits::bits, kRows);
  extern __shared__ __align__(128) uint8_t shared[];
  using Shape = StreamShape<Traits, kTiles, kRows, kStages>;
  constexpr int kRowTiles = Shape::kRowTiles;
  // The shuffle tells the compiler that all lanes agree.
  const int part = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  ptx::allow_dependents();
  if constexpr (kRouted) ptx::dependency_wait();  // the kernel before it chooses whose weights these are
  const TileAt at = tile_at<Traits>(p, kRouted ? static_cast<int>(blockIdx.x) * kTiles : first_tile<kTiles>(p));
  if (kRouted && at.rows == 0) return;
  const int first = part_begin(part, p.column_blocks), count = part_begin(part + 1, p.column_blocks) - first;
  uint8_t* const own = shared + part * Shape::kWarpBytes;
  TileRing<Traits, kTiles> ring(p, own, at.w + int64_t{first} * block_stride<Traits>(p), at.tile);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < count) ring.ask(p, stage);
    ptx::commit_copies();
  }

  const typename Traits::Table table(at.target->grid);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kJoins)
    if (p.join.kind != LowbitJoin::Kind::none) begin_join<Shape>(p, shared);
#endif

  // The activations are laid out for this many rows. The kernel for kMaxRows also takes fewer.
  const int room = kRows == kMaxRows ? p.room : static_cast<int>(input_rows(kRows)),
            block_bytes = static_cast<int>(input_block_bytes(room));
  const uint8_t* const inputs = own + kStages * Shape::kWeights;
  const int pieces = min(kRows, at.rows) * (kInputRow / 16);
  const uint8_t* from = at.x + int64_t{first} * block_bytes + rows_at(room) + lane * 16;
  const uint32_t own_input = ring.own + kStages * Shape::kWeights;
  const auto ask_input = [&](int stage) {
#pragma unroll
    for (int i = 0; i < Shape::kInput; i += 512)
      if (lane + i / 16 < pieces) ptx::copy_async(own_input + stage * Shape::kInput + i, from + i);
    from += block_bytes;
  };
  const uint8_t* const of_products = inputs + min(g / 2, kRows - 1) * kInputRow + g % 2 * 64 + t * 16;
  const uint8_t* const record = inputs + min(t, kRows - 1) * kInputRow + kInputPlanes;
  float total[kTiles][kRowTiles][2] = {};
  OwnOutputs<Shape::kOutputs, kRows> outputs(p, at);
  if constexpr (!kRouted) ptx::dependency_wait();
  float factor[kRowTiles];  // factors of rows n * kTileRows + t
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) factor[n] = 1;
  const bool has_factor = kTakesJoined && p.norm.squares;
  if (has_factor) {  // each warp computes the factor of one row, for all
    const int row = kRows == 1 ? 0 : min(part, p.rows - 1);
    factor[0] = share_of_squares(p.norm.squares + row * p.column_blocks, p.column_blocks);
  }
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < count) ask_input(stage);
    ptx::commit_copies();
  }
  if (has_factor) {
    factor[0] = norm_factor(sum_of_warp(factor[0]), p.columns, p.norm.eps);
    if constexpr (kRows > 1) {
      float* const of_rows = reinterpret_cast<float*>(shared + Shape::kFactors);
      if (lane == 0) of_rows[part] = factor[0];
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) factor[n] = of_rows[n * kTileRows + t];
    }
  }
  outputs.ask(p);
  // All stages share one copy of the code. A copy for each would be kStages times as much code, which a step reads
  // again from memory for each product, and would take twice the time to compile (NOTES.md).
  int stage = 0;
#pragma unroll 1
  for (int block = 0; block < count; ++block) {
    ptx::wait_for_copies<kStages - 1>();
    __syncwarp();
    const auto load = [&](LaneIntegers<Traits::kGroupChunks>& x, int n) {
      const int from_first = stage * Shape::kInput + n * kTileRows * kInputRow;
      x.load(of_products + from_first, record + from_first);
      if constexpr (kTakesJoined) x.row.scale *= factor[n];
    };
    constexpr bool kFew = kRowTiles <= 2;  // these stay in registers for all tiles
    LaneIntegers<Traits::kGroupChunks> few[kFew ? kRowTiles : 1];
    if constexpr (kFew)
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) load(few[n], n);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      LaneBlock<Traits> w;
      ring.load(stage, tile, w);
      multiply_integers<Traits>(
          w, table,
          [&](int n) {
            if constexpr (kFew) return few[n];
            LaneIntegers<Traits::kGroupChunks> x;
            load(x, n);
            return x;
          },
          p.twice_middle, total[tile]);
    }
    __syncwarp();
    if (block + kStages < count) ring.ask(p, stage), ask_input(stage);
    ptx::commit_copies();
    if (++stage == kStages) stage = 0;
  }
  ask_for_upcoming(p, part);

  float* const sums = reinterpret_cast<float*>(own);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
      for (int up = 0; up < 2; ++up)
        sums[(n * kTileRows + t) * Shape::kOutputs + tile * 16 + g + 8 * up] =
            total[tile][n][up] * integer_unit<Traits>(p, up != 0);
  if constexpr (kJoins) ptx::wait_for_copies<0>();  // a part may have had no blocks to wait for
  __syncthreads();
  float values[outputs.kCount] = {};
#pragma unroll
  for (int i = 0; i < outputs.kCount; ++i) {
    if (!outputs.y[i]) continue;
    values[i] = outputs.value(p, i, joined<Shape>(shared, outputs.sum_of(i)));
    if (!kJoins || p.join.kind != LowbitJoin::Kind::gate) *outputs.y[i] = values[i];
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kJoins)
    if (p.join.kind != LowbitJoin::Kind::none) join_outputs<Shape, kRounds>(p, shared, outputs.y, values);
#endif
}

// Returns true for the kernels that are launched only on devices before Hopper. All others run only on Hopper, and
// neither are compiled for the other.
constexpr bool before_hopper(int tiles, int rows, int stages, int resident) {
  if (resident != 1) return false;
  return rows == kMaxRows || (stages == 2 && ((tiles == 2 && rows == 1) || (tiles == 1 && rows == 8)));
}
// kRounds says that a row which the product makes may be rounded to a coarse mode.
template <typename Traits, int kTiles, int kRows, int kStages, int kResident, bool kRounds, typename Arguments>
__global__ void __launch_bounds__(kParts * 32, kResident) stream_kernel(const __grid_constant__ Arguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the same condition as is_hopper()
  constexpr bool kUsed = !before_hopper(kTiles, kRows, kStages, kResident);
#else
  constexpr bool kUsed = before_hopper(kTiles, kRows, kStages, kResident);
#endif
  if constexpr (kUsed) stream_product<Traits, kTiles, kRows, kStages, kRounds>(p);
}
template <typename Traits, int kTiles, int kRows, int kStages, int kResident, bool kRounds = (kRows > 1),
          typename Arguments>
void launch_stream(Stream stream, Arguments p, int row_blocks) {
  using Shape = StreamShape<Traits, kTiles, kRows, kStages>;
  const auto kernel = stream_kernel<Traits, kTiles, kRows, kStages, kResident, kRounds, Arguments>;
  static const cudaError_t allowed = [&] {
    const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kShared);
    return first != cudaSuccess ? first
                                : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  }();
  cuda_check(allowed, "allowing a low-bit kernel its shared memory");
  const auto thread_blocks = static_cast<unsigned>(row_blocks * 8 / kTiles),
             cluster = static_cast<unsigned>(join_cluster(p.join.kind, kTiles));
  share_upcoming(p, thread_blocks);
  launch("launching a low-bit product", stream,
         LaunchShape{dim3(thread_blocks / cluster, 1, cluster), Shape::kThreads, Shape::kShared, cluster}, kernel, p);
}

}  // namespace fidelio::cuda
