// A GridBarrier lets all thread blocks of a launch wait for each other. All of them must run at the same time.
#pragma once
#include <cstdint>

namespace fidelio::cuda {

// `count` must be 0 before the first launch that uses it. A barrier adds 2^31 to it in all. So its highest bit flips
// when the last thread block arrives, and the other bits are 0 again; nobody has to reset it. What was written before
// arrive() is visible after wait() to every thread block, unless it is read as a constant.
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
  uint32_t before_ = 0;  // only in thread 0
};

}  // namespace fidelio::cuda
