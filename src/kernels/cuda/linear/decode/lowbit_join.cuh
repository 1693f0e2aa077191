// The end of a product of one row that also makes the next one's (LowbitJoin of lowbit.h). Thread blocks that have 128
// outputs between them, or gate's and up's 128, are a cluster and give their outputs to the first of them, in shared
// memory: one step, where a kernel of its own would wait for this one's end, ask L2 for the row, and be waited for.
//
// Rejected: a whole step as one cooperative kernel whose warps ask for weights without a stop (docs/lab/gpu.md).
#pragma once
#include "kernels/cuda/linear/decode/lowbit_kernel.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

// Shared memory of it: gate's and up's 128, and a barrier.
constexpr int kJoinBytes = 2 * kBlockRows * 4 + 16;

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
__device__ __forceinline__ uint32_t join_barrier(uint8_t* shared) {
  return ptx::shared_address(shared + Shape::kReceived + 2 * kBlockRows * 4);
}
// Before the kernel waits for the one before it: the barrier, and the norm's weights of a lane's four outputs.
template <typename Shape>
__device__ __forceinline__ float4 begin_join(const LowbitArguments& p, uint8_t* shared) {
  float4 w{};
  if (threadIdx.x < 32 && blockIdx.z == 0) {
    if (threadIdx.x == 0) {
      ptx::start_barrier(join_barrier<Shape>(shared), 1);
      ptx::publish_barriers();
      ptx::expect(join_barrier<Shape>(shared), gridDim.z * Shape::kOutputs * 4);
    }
    if (p.join.norm) w = *reinterpret_cast<const float4*>(p.join.norm + blockIdx.x * kBlockRows + threadIdx.x * 4);
    __syncwarp();
  }
  ptx::cluster_arrive_relaxed();
  return w;
}
// The end of a join: output `thread` of each thread block goes to the first one of the cluster, of which a warp makes a
// block of the next product's row.
template <typename Shape>
__device__ __forceinline__ void join_outputs(const LowbitArguments& p, uint8_t* shared, float value, float4 w) {
  const int lane = threadIdx.x % 32;
  uint8_t* const received = shared + Shape::kReceived;
  const uint32_t barrier = join_barrier<Shape>(shared);
  const bool norm = p.join.kind == LowbitJoin::Kind::norm;
  if (threadIdx.x >= Shape::kOutputs) return;
  static_assert(Shape::kOutputs == 32);  // a warp
  ptx::cluster_wait();                   // the barrier is there
  ptx::store_in_cluster(ptx::address_in(0, received) + (blockIdx.z * Shape::kOutputs + lane) * 4, value,
                        ptx::address_in(0, barrier));
  if (blockIdx.z > 0) return;
  ptx::wait(barrier, 0);
  const float4 v = reinterpret_cast<const float4*>(received)[lane];
  const InputPlaces to{p.join.blocks + blockIdx.x * input_block_bytes(1) + rows_at(8), 8, 0, false};
  const auto as_seen = [&](float4 row) {
    const Rounding& how = p.join.rounding;
    return how.group > 0 ? rounded(row, blockIdx.x * kBlockRows + lane * 4, how) : row;
  };
  if (norm) {
    prepare_integers(as_seen(v * w), 1, to);
    const float squares = squares_of_block(v);
    if (lane == 0) p.join.squares[blockIdx.x] = squares;
  } else {
    const float4 up = reinterpret_cast<const float4*>(received)[32 + lane];
    prepare_integers(as_seen(gated(v, up)), 1, to);
  }
}
#endif

}  // namespace fidelio::cuda
