// A barrier of all thread blocks of a launch, which all have to be on the device at once.
#pragma once
#include <cstdint>

namespace fidelio::cuda {

// `count` is 0 before the first launch that uses it. A barrier adds 2^31 to it in all, so that its highest bit turns
// when the last thread block arrives and the rest of it is 0 again: nobody has to reset it. What was written before
// arrive() is seen after wait() by every thread block, unless it is read as a constant.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(uint32_t* count) : count_(count) {}

  __device__ __forceinline__ void arrive() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    const uint32_t share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before_) : "l"(count_), "r"(share) : "memory");
  }
  __device__ __forceinline__ void wait() const {
    if (threadIdx.x == 0) {
      uint32_t now;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count_) : "memory");
      while (((now ^ before_) & 0x80000000u) == 0);
    }
    __syncthreads();
  }

 private:
  uint32_t* count_;
  uint32_t before_ = 0;  // thread 0's
};

}  // namespace fidelio::cuda
