// The end of a product of few rows that also makes the next one's (LowbitJoin of lowbit.h). Thread blocks that have 128
// outputs between them, or gate's and up's 128, are a cluster and give their outputs to the first of them, in shared
// memory: one step, where a kernel of its own would wait for this one's end, ask L2 for the row, and be waited for.
//
// Rejected: a whole step as one cooperative kernel whose warps ask for weights without a stop (docs/lab/gpu.md).
#pragma once
#include "kernels/cuda/linear/decode/lowbit_kernel.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

// Shared memory of it: of each row gate's and up's 128, and a barrier.
constexpr int join_bytes(int rows) { return rows <= kJoinRows ? rows * 2 * kBlockRows * 4 + 16 : 0; }

// How many thread blocks, a cluster, make what a join makes of 128 outputs: of a weight, or of gate and of up.
constexpr int join_cluster(LowbitJoin::Kind kind, int tiles) {
  return kind == LowbitJoin::Kind::none ? 1 : kBlockRows / 16 / tiles * (kind == LowbitJoin::Kind::gate ? 2 : 1);
}
// A thread block's first tile. Gate's and up's clusters have half of their thread blocks in either.
template <int kTiles>
__device__ __forceinline__ int first_tile(const LowbitArguments& p) {
  if (p.join.kind != LowbitJoin::Kind::gate) return (blockIdx.x * gridDim.z + blockIdx.z) * kTiles;
  const int half = gridDim.z / 2, rank = blockIdx.z;
  return (blockIdx.x + (rank < half ? 0 : p.target[1].first_row_block)) * (kBlockRows / 16) + rank % half * kTiles;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename Shape>
__device__ __forceinline__ int joined_rows(const LowbitArguments& p) {
  return Shape::kMostRows == 1 ? 1 : p.rows;
}
template <typename Shape>
__device__ __forceinline__ uint32_t join_barrier(uint8_t* shared) {
  return ptx::shared_address(shared + Shape::kReceived + Shape::kJoined);
}
// Before the kernel waits for the one before it: the barrier, and the norm's weights of a lane's four outputs, in a warp
// for each row.
template <typename Shape>
__device__ __forceinline__ float4 begin_join(const LowbitArguments& p, uint8_t* shared) {
  float4 w{};
  if (threadIdx.x < 32 * Shape::kMostRows && blockIdx.z == 0) {
    if (threadIdx.x == 0) {
      ptx::start_barrier(join_barrier<Shape>(shared), 1);
      ptx::publish_barriers();
      ptx::expect(join_barrier<Shape>(shared), joined_rows<Shape>(p) * gridDim.z * Shape::kOutputs * 4);
    }
    if (p.join.norm) w = *reinterpret_cast<const float4*>(p.join.norm + blockIdx.x * kBlockRows + threadIdx.x % 32 * 4);
    __syncwarp();
  }
  ptx::cluster_arrive_relaxed();
  return w;
}
// The end of a join: a thread's sums go to the first thread block of the cluster, of which a warp for each row makes a
// block of that row of the next product.
template <typename Shape, int kCount>
__device__ __forceinline__ void join_outputs(const LowbitArguments& p, uint8_t* shared, const float (&values)[kCount],
                                             float4 w) {
  static_assert(Shape::kOutputs % 32 == 0 && Shape::kMostRows <= kParts);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, output = threadIdx.x % Shape::kOutputs,
            rows = joined_rows<Shape>(p), width = gridDim.z * Shape::kOutputs;  // of a row, 128 or 256
  uint8_t* const received = shared + Shape::kReceived;
  const uint32_t barrier = join_barrier<Shape>(shared);
  if (threadIdx.x / Shape::kOutputs >= rows) return;
  ptx::cluster_wait();  // the barrier is there
  const uint32_t to_first = ptx::address_in(0, received), arrived = ptx::address_in(0, barrier);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = (threadIdx.x + i * Shape::kThreads) / Shape::kOutputs;
    if (row < rows)
      ptx::store_in_cluster(to_first + (row * width + blockIdx.z * Shape::kOutputs + output) * 4, values[i], arrived);
  }
  if (blockIdx.z > 0 || warp >= rows) return;
  ptx::wait(barrier, 0);
  const float4* const of_row = reinterpret_cast<const float4*>(received + warp * width * 4);
  const float4 v = of_row[lane];
  const InputPlaces to{p.join.blocks + blockIdx.x * input_block_bytes(1) + rows_at(8), 8, warp, false};
  if (p.join.kind == LowbitJoin::Kind::norm) {
    prepare_integers(v * w, 1, to);
    const float squares = squares_of_block(v);
    if (lane == 0) p.join.squares[warp * gridDim.x + blockIdx.x] = squares;
  } else {
    prepare_integers(gated(v, of_row[32 + lane]), 1, to);
  }
}
#endif

}  // namespace fidelio::cuda
