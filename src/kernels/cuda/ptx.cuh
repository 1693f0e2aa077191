// The few instructions that have no C++ spelling, by their PTX names. Each has an sm_80 twin where Hopper's does not exist,
// so that a kernel is written once.
#pragma once
#include <cstdint>

namespace fidelio::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- mbarrier: a counter in shared memory that threads arrive at and bytes are expected by; waits name a phase's parity.
__device__ __forceinline__ void barrier_init(uint64_t* bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine; a __syncthreads() follows.
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) {
  asm volatile("{\n .reg .b64 t;\n mbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred p;\n WAIT:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:\n}" ::"r"(
          shared_address(bar)),
      "r"(parity)
      : "memory");
#else
  asm volatile("{\n .reg .pred p;\n WAIT:\n mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:\n}" ::"r"(
                   shared_address(bar)),
               "r"(parity)
               : "memory");
#endif
}

// ---- Filling a stage of a ring, called by one whole warp (the producer). `full` counts kFillArrivals arrivals. On Hopper
// lane 0 announces the bytes and the copy engine moves them; before it each lane copies 16 bytes at a time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr uint32_t kFillArrivals = 1;
#else
constexpr uint32_t kFillArrivals = 32;
#endif

__device__ __forceinline__ void fill_begin(uint64_t* full, uint32_t bytes, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0)
    asm volatile("{\n .reg .b64 t;\n mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;\n}" ::"r"(shared_address(full)), "r"(bytes) : "memory");
#endif
}
// 16-byte aligned, a multiple of 16 bytes. `streamed`: read once, so the first to leave L2.
template <bool streamed>
__device__ __forceinline__ void fill_copy(uint64_t* full, void* to, const void* from, uint32_t bytes, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    if constexpr (streamed) {
      uint64_t policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                       shared_address(to)),
                   "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
                   : "memory");
    } else {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                   "l"(from), "r"(bytes), "r"(shared_address(full))
                   : "memory");
    }
  }
#else
  for (uint32_t i = lane * 16; i < bytes; i += 32 * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i), "l"(static_cast<const char*>(from) + i) : "memory");
#endif
}
__device__ __forceinline__ void fill_end(uint64_t* full) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

// ---- Programmatic dependent launch: the next kernel's blocks may start (and fetch weights) while this one still runs;
// dependency_wait() returns once everything the kernels before wrote is visible.
__device__ __forceinline__ void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Clusters: blocks of one cluster read each other's shared memory.
__device__ __forceinline__ uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}
// A barrier of the cluster in two halves; what a member wrote before arriving, others see after waiting.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// *(the same place in the shared memory of member `rank`) = value
__device__ __forceinline__ void store_to_rank(float* mine, uint32_t rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n .reg .b32 a;\n mapa.shared::cluster.u32 a, %0, %1;\n st.shared::cluster.f32 [a], %2;\n}" ::"r"(shared_address(mine)), "r"(rank),
               "f"(value)
               : "memory");
#else
  *mine = value;
#endif
}

// ---- Arithmetic.
// (a & mask) | (b & ~mask) in one LOP3.
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "n"(mask), "r"(a), "r"(b));
  return r;
}
// c (16 x 8, FP32) += a (16 x 16, FP16) b (16 x 8, FP16). Lane 4 g + t holds rows g and g + 8 of a and c, column g of b.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fidelio::cuda::ptx
