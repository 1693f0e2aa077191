// This file has the few instructions that have no C++ spelling, under names close to their PTX ones. If only Hopper
// has an instruction, the call does nothing on earlier devices, so that a kernel is written once.
#pragma once
#include <cstdint>

namespace fidelio::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Programmatic dependent launch. The next kernel's thread blocks may start (and fetch weights) while this one
// still runs. dependency_wait() returns when everything that earlier kernels wrote is visible.
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

// Returns a multiprocessor's clock.
__device__ __forceinline__ uint32_t cycles() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(count)::"memory");
  return count;
}

// ---- Loads of data that are read only once. They are not kept in L1 and are the first to leave L2.
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

// Copies 16 bytes from global to shared memory without a register. commit_copies() closes a group of copies.
// wait_for_copies() waits until all but the last `left` groups have arrived (for the calling thread).
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Copies 16 bytes, or writes 16 zero bytes.
__device__ __forceinline__ void copy_async_or_zeros(uint32_t shared, const void* global, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Loads four matrices of 8 x 8 halves from shared memory, where each lane's address is that of a row. The second
// function transposes them.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// Asks for bytes to be brought into L2. The address and the number of bytes must be multiples of 16.
__device__ __forceinline__ void prefetch_into_l2(const void* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// ---- Thread block clusters (Hopper): a barrier in two steps for the threads of a cluster that have not ended, and
// stores into another thread block's shared memory, which are visible there when both are past a barrier.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Does the same, but makes only barriers visible that were published before. It has no fence of all memory, which
// would wait for every load under way.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Returns the address, in thread block `rank` of the cluster, that corresponds to `shared` in this one.
__device__ __forceinline__ uint32_t address_in(int rank, uint32_t shared) {
  uint32_t there = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
#endif
  return there;
}
__device__ __forceinline__ uint32_t address_in(int rank, const void* shared) {
  return address_in(rank, shared_address(shared));
}
// Returns a pointer to the same object in thread block `rank` of the cluster, which can be written to like any
// memory.
template <typename T>
__device__ __forceinline__ T* in_thread_block(int rank, T* shared) {
  uint64_t there = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
#endif
  return reinterpret_cast<T*>(there);
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float4 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
#endif
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float2 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
#endif
}

// ---- Barriers in shared memory (Hopper), by shared address. They count arrivals and bytes: expect() arrives and
// says how many bytes will come, fetch() copies them (in multiples of 16 bytes, and so are all addresses), and wait()
// returns when the phase of that parity (0, 1, 0, ..) is over.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void start_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @done bra over;\n bra again;\n over:\n}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}
// Returns whether the phase is over, without waiting.
__device__ __forceinline__ bool is_over(uint32_t barrier, int parity) {
  int over;
  asm volatile(
      "{\n .reg .pred over;\n mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n selp.s32 %0, 1, 0, over;\n}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over;
}

// These use clusters with such barriers. After meet_cluster(), every thread of the cluster that has not ended has
// come so far, and all know the barriers that were published before. store_in_cluster() with a barrier writes into
// another thread block's shared memory. The bytes count on its barrier when they have arrived, so no fence is needed.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float4 v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float2 v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(to), "f"(v.x),
               "f"(v.y), "r"(barrier)
               : "memory");
}
#endif

// Waits at a barrier of some warps of a thread block. There are 16 of them; 0 is that of __syncthreads().
__device__ __forceinline__ void wait_for_warps(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Arithmetic. The first function returns 2^x to 2 ulp; below 2^-126 the result is 0.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Returns (a & mask) | (b & ~mask), in one LOP3 instruction.
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "n"(mask), "r"(a), "r"(b));
  return r;
}
// Returns bytes that are picked from the eight bytes of (b, a). Nibble i of `select` is the index of byte i. If the
// nibble's high bit is set, the byte is filled with that byte's sign.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t select) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
  return r;
}
// Computes c (16 x 8, FP32) += a (16 x 16, FP16) b (16 x 8, FP16). Lane 4 g + t holds rows g and g + 8 of a and c,
// and column g of b.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Computes c (16 x 8, FP32) += a (16 x 8, TF32) b (8 x 8, TF32). Lane 4 g + t holds the columns t and t + 4 of rows g
// and g + 8 of a (a[1] and a[3] are of row g + 8), the rows t and t + 4 of column g of b, and c as above.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Computes c (16 x 8, int32) += a (16 x 32, unsigned bytes) b (32 x 8, signed bytes). Lane 4 g + t holds four bytes
// of row g from k = 4 t on in a[0] and from 16 + 4 t on in a[2], the same of row g + 8 in a[1] and a[3], and the same
// k of column g in b0 and b1.
__device__ __forceinline__ void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// ---- Products of warpgroups. Registers may be touched again when wait_for_products() has returned. fence_products()
// must come before a product, with the `a` that it will use.
template <int count>
__device__ __forceinline__ void fence_products(uint32_t (&a)[count][4]) {
#pragma unroll
  for (int i = 0; i < count; ++i)
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
#endif

}  // namespace fidelio::cuda::ptx
