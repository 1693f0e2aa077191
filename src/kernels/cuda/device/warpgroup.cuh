// This file has Hopper's instructions for a thread block whose warpgroups have different jobs and which works in a
// cluster: products of a warpgroup with 128 or 256 columns, registers passed between warpgroups, and copies to, and
// barriers of, all thread blocks of a cluster.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda::ptx {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// ---- Products: c (64 x 2 count(c), FP32) = or += a (64 x 16) b (16 x ..). They are like wgmma() of ptx.cuh, but b
// lies in shared memory as rows of 64 halves of its transpose, 128 bytes each, whose 16-byte pieces are permuted:
// piece i of row r is at i ^ (r % 8). The pieces of a product are named by `b` = swizzled_rows(first row's address, a
// multiple of 1024) + 2 x product.
__device__ __forceinline__ uint64_t swizzled_rows(uint32_t shared) {
  return ((shared & 0x3ffff) >> 4) | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// Makes the compiler read these registers anew: it keeps nothing about them that is older than this place.
template <int count>
__device__ __forceinline__ void settle(float (&c)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
#define FIDELIO_8(c, i)                                                                                       \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
__device__ __forceinline__ void multiply(float (&c)[32], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n setp.eq.b32 keep, %37, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, keep, 1, 1, 0;\n}"
      : FIDELIO_8(c, 0), FIDELIO_8(c, 8), FIDELIO_8(c, 16), FIDELIO_8(c, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{fresh}));
}
__device__ __forceinline__ void multiply(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n setp.eq.b32 keep, %69, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, keep, 1, 1, 0;\n}"
      : FIDELIO_8(c, 0), FIDELIO_8(c, 8), FIDELIO_8(c, 16), FIDELIO_8(c, 24), FIDELIO_8(c, 32), FIDELIO_8(c, 40),
        FIDELIO_8(c, 48), FIDELIO_8(c, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{fresh}));
}

__device__ __forceinline__ void multiply(float (&c)[128], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n setp.eq.b32 keep, %133, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "
      "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
      "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
      "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, keep, 1, 1, 0;\n}"
      : FIDELIO_8(c, 0), FIDELIO_8(c, 8), FIDELIO_8(c, 16), FIDELIO_8(c, 24), FIDELIO_8(c, 32), FIDELIO_8(c, 40),
        FIDELIO_8(c, 48), FIDELIO_8(c, 56), FIDELIO_8(c, 64), FIDELIO_8(c, 72), FIDELIO_8(c, 80), FIDELIO_8(c, 88),
        FIDELIO_8(c, 96), FIDELIO_8(c, 104), FIDELIO_8(c, 112), FIDELIO_8(c, 120)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{fresh}));
}

// Computes c (64 x 2 count(c), int32) = or += a (64 x 32, unsigned bytes) b (32 x .., signed bytes), with a as for
// mma(). b lies in shared memory as groups of 8 columns, 1 KB each: [chunk of 32][half]{column: 16 bytes}. A chunk is
// named by panel_rows(first group's address) + 16 x chunk, which is the lower half of what the instruction takes.
__device__ __forceinline__ uint32_t panel_rows(uint32_t shared) { return (shared & 0x3ffff) >> 4 | (128 >> 4) << 16; }
template <int count>
__device__ __forceinline__ void settle(int (&c)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(c[i])::"memory");
}
#define FIDELIO_I8(c, i)                                                                                      \
  "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]), "+r"(c[i + 6]), \
      "+r"(c[i + 7])
__device__ __forceinline__ void multiply(int (&c)[16], const uint32_t (&a)[4], uint32_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n .reg .b64 rows;\n setp.eq.b32 keep, %21, 0;\n mov.b64 rows, {%20, 64};\n"
      " wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, rows, keep;\n}"
      : FIDELIO_I8(c, 0), FIDELIO_I8(c, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(int{fresh}));
}
__device__ __forceinline__ void multiply(int (&c)[32], const uint32_t (&a)[4], uint32_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n .reg .b64 rows;\n setp.eq.b32 keep, %37, 0;\n mov.b64 rows, {%36, 64};\n"
      " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, rows, keep;\n}"
      : FIDELIO_I8(c, 0), FIDELIO_I8(c, 8), FIDELIO_I8(c, 16), FIDELIO_I8(c, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(int{fresh}));
}
// Does the same for signed bytes, with b as rows of 128 bytes (swizzled_rows() + 2 x chunk).
__device__ __forceinline__ void multiply(int (&c)[64], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n .reg .pred keep;\n setp.eq.b32 keep, %69, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, keep;\n}"
      : FIDELIO_I8(c, 0), FIDELIO_I8(c, 8), FIDELIO_I8(c, 16), FIDELIO_I8(c, 24), FIDELIO_I8(c, 32), FIDELIO_I8(c, 40),
        FIDELIO_I8(c, 48), FIDELIO_I8(c, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{fresh}));
}
#undef FIDELIO_I8
#undef FIDELIO_8

// Loads two floats that copies have brought to shared memory.
__device__ __forceinline__ float2 load_shared_pair(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
  return v;
}

// ---- Registers of a warpgroup's threads.
template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- Clusters. The first function arrives at the barrier of another thread block, given by address_in(). It orders
// only this thread block's ordinary memory. (The form that orders the cluster's memory is a fence of all memory,
// which waits for every load under way.)
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Does fetch() into the same place of all thread blocks in `mask`. Their barriers at the same place count the bytes.
__device__ __forceinline__ void fetch_for(uint16_t mask, uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(mask)
      : "memory");
}
#endif

}  // namespace fidelio::cuda::ptx
