// This file lets a product of few rows also make the rows of the next product (LowbitJoin of lowbit.h). The thread
// blocks that together have 128 outputs, or 128 of gate and 128 of up, are a cluster. They give their outputs to the
// first of them, in shared memory, where one warp makes one row. A kernel of its own would have to wait for this
// one's end, read the rows from L2, and be waited for. Kernels for one row that round what they make to a coarse mode
// are separate ones, because code that is jumped over makes a step of one row 1 to 2% slower.
//
// Rejected: a whole step as one cooperative kernel whose warps ask for weights without a stop (NOTES.md).
#pragma once
#include "kernels/cuda/linear/decode/lowbit_kernel.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

// Its shared memory holds 128 outputs of gate and of up for each row, 128 weights of the norm, a barrier, and the
// factors of rows that were made so.
constexpr int received_bytes(int rows) { return rows * 2 * kBlockRows * 4; }
constexpr int join_bytes(int rows) {
  return rows <= kMostJoined ? received_bytes(rows) + kBlockRows * 4 + 16 + kParts * 4 : 0;
}
static_assert(kMostJoined <= kParts, "a warp a row");

// Returns how many thread blocks, a cluster, make what a join makes of 128 outputs of a weight, or of gate and of up.
constexpr int join_cluster(LowbitJoin::Kind kind, int tiles) {
  return kind == LowbitJoin::Kind::none ? 1 : kBlockRows / 16 / tiles * (kind == LowbitJoin::Kind::gate ? 2 : 1);
}
// Returns a thread block's first tile. In clusters for gate and up, half of the thread blocks have tiles of each.
template <int kTiles>
__device__ __forceinline__ int first_tile(const LowbitArguments& p) {
  if (p.join.kind != LowbitJoin::Kind::gate) return (blockIdx.x * gridDim.z + blockIdx.z) * kTiles;
  const int half = gridDim.z / 2, rank = blockIdx.z;
  return (blockIdx.x + (rank < half ? 0 : p.target[1].first_row_block)) * (kBlockRows / 16) + rank % half * kTiles;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename Shape>
__device__ __forceinline__ uint32_t join_barrier(uint8_t* shared) {
  return ptx::shared_address(shared + Shape::kBarrier);
}
// Prepares the barrier and asks for the norm's weights before the kernel waits for the one before it. The weights
// come with what the warp asks for next.
template <typename Shape>
__device__ __forceinline__ void begin_join(const LowbitArguments& p, uint8_t* shared) {
  if (threadIdx.x < 32 && blockIdx.z == 0) {
    if (threadIdx.x == 0) {
      ptx::start_barrier(join_barrier<Shape>(shared), 1);
      ptx::publish_barriers();
      ptx::expect(join_barrier<Shape>(shared), gridDim.z * Shape::kOutputs * 4 * (Shape::kMostRows == 1 ? 1 : p.rows));
    }
    if (p.join.norm)
      ptx::copy_async(ptx::shared_address(shared + Shape::kNormWeight) + threadIdx.x * 16,
                      p.join.norm + blockIdx.x * kBlockRows + threadIdx.x * 4);
    __syncwarp();
  }
  ptx::cluster_arrive_relaxed();
}
// Ends a join. A thread's values, where it has outputs, go to the first thread block of the cluster, as
// [row][output]. Its warp m makes a block of row m of the next product from them.
template <typename Shape, bool kRounds, int kCount>
__device__ __forceinline__ void join_outputs(const LowbitArguments& p, uint8_t* shared, float* const (&outputs)[kCount],
                                             const float (&values)[kCount]) {
  constexpr int kThreads = kParts * 32, kOutputs = Shape::kOutputs;
  constexpr bool kOne = Shape::kMostRows == 1;
  const int lane = threadIdx.x % 32, m = kOne ? 0 : threadIdx.x / 32, width = static_cast<int>(gridDim.z) * kOutputs;
  uint8_t* const received = shared + Shape::kReceived;
  const uint32_t barrier = join_barrier<Shape>(shared);
  const bool norm = p.join.kind == LowbitJoin::Kind::norm;
  if (kOne && threadIdx.x >= kOutputs) return;
  ptx::cluster_wait();  // the barrier is ready
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!kOne && !outputs[i]) continue;
    const int sum = static_cast<int>(threadIdx.x) + i * kThreads,
              at = sum / kOutputs * width + static_cast<int>(blockIdx.z) * kOutputs + sum % kOutputs;
    ptx::store_in_cluster(ptx::address_in(0, received) + at * 4, values[i], ptx::address_in(0, barrier));
  }
  if (blockIdx.z > 0 || (!kOne && m >= p.rows)) return;
  ptx::wait(barrier, 0);
  const float4* const row = reinterpret_cast<const float4*>(received) + m * width / 4;
  const float4 v = row[lane];
  constexpr int kRoom = static_cast<int>(input_rows(kMostJoined));
  const InputPlaces to{p.join.blocks + blockIdx.x * input_block_bytes(kRoom) + rows_at(kRoom), kRoom, m, false};
  float4 made =
      norm ? v * reinterpret_cast<const float4*>(shared + Shape::kNormWeight)[lane] : gated(v, row[32 + lane]);
  if constexpr (kRounds) made = as_seen(made, blockIdx.x, p.join.rounding);
  prepare_integers(made, 1, to);
  if (!norm) return;
  const float squares = squares_of_block(v);
  if (lane == 0) p.join.squares[m * gridDim.x + blockIdx.x] = squares;
}
#endif

}  // namespace fidelio::cuda
