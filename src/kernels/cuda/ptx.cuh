// The few instructions that have no C++ spelling, by their PTX names. Each has an sm_80 twin where Hopper's does not
// exist, so that a kernel is written once.
#pragma once
#include <cstdint>

namespace fidelio::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarrier: a counter in shared memory that threads arrive at and bytes are expected by; waits name a phase's
// parity.
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
      "{\n .reg .pred p;\n WAIT:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n "
      "DONE:\n}" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n .reg .pred p;\n WAIT:\n mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n "
      "DONE:\n}" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
#endif
}

// ---- Filling a stage of a ring, called by one whole warp (the producer). `full` counts kFillArrivals arrivals. On
// Hopper lane 0 announces the bytes and the copy engine moves them; before it each lane copies 16 bytes at a time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr uint32_t kFillArrivals = 1;
#else
constexpr uint32_t kFillArrivals = 32;
#endif

// One thread of a converged warp. On Hopper it alone fills; before, all lanes do.
__device__ __forceinline__ bool fills(int lane) {
#if __CUDA_ARCH__ >= 900
  uint32_t elected;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
#else
  return true;
#endif
}
__device__ __forceinline__ void fill_begin(uint64_t* full, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
               : "memory");
#endif
}
// L2 policy of what is read once: the first to leave.
__device__ __forceinline__ uint64_t streamed_policy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
// `bytes` (a multiple of 16) from an aligned address; with a policy or, 0, without.
template <bool with_policy>
__device__ __forceinline__ void fill_copy(uint64_t* full, void* to, const void* from, uint32_t bytes, uint64_t policy,
                                          int lane) {
#if __CUDA_ARCH__ >= 900
  if constexpr (with_policy)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
        : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
#else
  for (uint32_t i = lane * 16; i < bytes; i += 32 * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i),
                 "l"(static_cast<const char*>(from) + i)
                 : "memory");
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

// ---- Clusters: thread blocks that write into each other's shared memory.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}
// The address in member `rank` of what lies at `mine` here.
__device__ __forceinline__ uint32_t address_in(const void* mine, uint32_t rank) {
  uint32_t address = shared_address(mine);
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}
// Sends a value to a member's memory; four bytes are counted on its barrier when it is there.
__device__ __forceinline__ void send(uint32_t address, uint32_t barrier, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
#else
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

// All that members send has arrived (before Hopper: all that the block's threads stored).
__device__ __forceinline__ void wait_received(uint64_t* all_received) {
#if __CUDA_ARCH__ >= 900
  barrier_wait(all_received, 0);
#else
  __syncthreads();
#endif
}

// ---- Loads of what is read once: they leave no trace in L1 and are the first to leave L2.
__device__ __forceinline__ uint4 load_streamed(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_streamed(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_streamed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint16_t load_streamed(const uint16_t* p) {
  uint16_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

// ---- Arithmetic.
// (a & mask) | (b & ~mask) in one LOP3.
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "n"(mask), "r"(a), "r"(b));
  return r;
}
// c (16 x 8, FP32) += a (16 x 16, FP16) b (16 x 8, FP16). Lane 4 g + t holds rows g and g + 8 of a and c, column g of
// b.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fidelio::cuda::ptx
