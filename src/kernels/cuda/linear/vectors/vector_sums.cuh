// This file sums a unit of rows of W over one span, and loads the codebooks that the sums read.
#pragma once
#include "kernels/cuda/linear/vectors/vector_inputs.cuh"

namespace fidelio::cuda {

constexpr int kVectorWarps = 16, kVectorThreads = 32 * kVectorWarps;  // warps and threads of a thread block
constexpr int book_bytes(bool high) { return kVectorPlaces * 8 * (high ? 2 : 1); }

// Copies 4 or 8 bytes from global to shared memory without a register, as a part of the thread's next group of
// copies.
template <int bytes>
__device__ __forceinline__ void copy_few(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(ptx::shared_address(shared)), "l"(global), "n"(bytes)
               : "memory");
}

// A Book is a codebook in shared memory. Entries lie there as they are multiplied; with one sign their negations lie
// there too. Few entries are stored 16 times, once for each pair of banks; many are stored twice.
template <int kSigns, bool kHigh>
struct Book {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static constexpr bool kFetched = kHigh;  // one thread fetches it, which needs no instructions of the others
#else
  static constexpr bool kFetched = false;
#endif
  __device__ static const uint2* entries(const VectorWeight& w, int block) {
    return reinterpret_cast<const uint2*>(w.codebook) + int64_t{block} * w.entries;
  }
  // If kFetched, one thread calls this after the others have finished with the memory. `arrived` is a barrier in
  // shared memory.
  __device__ static void fetch(const VectorWeight& w, int block, int count, std::byte* to, uint32_t arrived) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    ptx::expect(arrived, static_cast<uint32_t>(count * w.entries * 8));
    for (int i = 0; i < count; ++i)
      ptx::fetch(ptx::shared_address(to) + i * book_bytes(kHigh), entries(w, block + i),
                 static_cast<uint32_t>(w.entries * 8), arrived);
#endif
  }
  __device__ static void wait(uint32_t arrived, int parity) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    ptx::wait(arrived, parity);
#endif
  }
  // Otherwise each thread copies its part of many centroids, in its next group of copies.
  __device__ static void copy(const VectorWeight& w, int block, std::byte* to) {
    if constexpr (kHigh) {
      const uint2* const from = entries(w, block);
#pragma unroll 4
      for (int i = threadIdx.x; i < w.entries / 2; i += kVectorThreads)
        ptx::copy_async(ptx::shared_address(to) + 16 * i, from + 2 * i);
    }
  }
  // Writes the rest of the codebook. For many centroids, that is the second place of what was copied or fetched; for
  // few, it is all of it. (Copying few centroids with eight-byte copies that need no register took 4 us of a product
  // in a chain.)
  __device__ static void complete(const VectorWeight& w, int block, std::byte* book) {
    auto* entry = reinterpret_cast<uint2*>(book);
    if constexpr (kHigh) {
#pragma unroll 4
      for (int i = threadIdx.x; i < w.entries / 2; i += kVectorThreads) {
        const uint4 two = reinterpret_cast<const uint4*>(book)[i];
        put(entry, w.entries, 2 * i, {two.x, two.y});
        put(entry, w.entries, 2 * i + 1, {two.z, two.w});
      }
    } else {
      constexpr int kEach = kVectorPlaces / kVectorThreads;
      const uint2* const from = entries(w, block) + threadIdx.x / 16;
      uint2 own[kEach] = {};
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (threadIdx.x + j * kVectorThreads < w.entries * 16) own[j] = __ldg(from + j * kVectorThreads / 16);
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (threadIdx.x + j * kVectorThreads < w.entries * 16) entry[threadIdx.x + j * kVectorThreads] = own[j];
    }
  }
  // Writes the second place of centroid i, which is in its first place already.
  __device__ static void put(uint2* entry, int entries, int i, uint2 centroid) {
    entry[second_place(i)] = centroid;
    if constexpr (kSigns == 1)
      entry[entries + i] = entry[second_place(entries + i)] = {__vneg4(centroid.x), __vneg4(centroid.y)};
  }
};

// Multiplies as ptx::mma does for bytes, but with signed bytes in a.
__device__ __forceinline__ void multiply_chunk(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A SpanSum is the sum of a unit's rows g and g + 8 over a span. Lane 4 g + t has columns 2 t and 2 t + 1 of every
// eight (c[0] and c[1] for row g, c[2] and c[3] for row g + 8). Entries are at most 127 in magnitude, and whole
// numbers of two planes at most 32,513, so the sum of both planes over 512 columns fits an int as well.
template <int kSigns, bool kHigh, typename Inputs>
struct SpanSum {
  static constexpr int kColumns = Inputs::kColumns, kEights = (kColumns + 7) / 8;
  static constexpr int kPairs = kVectorSpan / 8;  // pairs of chunks
  int c[kEights][4] = {};

  // A Read is what two chunks are multiplied from. It is asked for a pair ahead, because a multiprocessor has few
  // warps.
  struct Read {
    uint4 x[kEights] = {};
    uint2 entry[4];
    __device__ __forceinline__ void load(const SpanWords<kSigns, kHigh>& words, const std::byte* books, uint32_t book,
                                         const Inputs& inputs, int span, int pair) {
      const int n = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        entry[i] = *reinterpret_cast<const uint2*>(books + words.centroid_at(4 * pair + i, book));
#pragma unroll
      for (int i = 0; i < kEights; ++i)
        if (n + 8 * i < kColumns) x[i] = inputs.pair(span * kPairs + pair)[(n + 8 * i) * 4 + t];
    }
  };

  __device__ __forceinline__ void add(const SpanWords<kSigns, kHigh>& words, const std::byte* books, uint32_t book,
                                      const Inputs& x, int span) {
    int less[kEights][4] = {};  // -1 for every entry that is negated: flipping its bits makes it one too low
    Read read[2];
    read[0].load(words, books, book, x, span, 0);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (pair + 1 < kPairs) read[(pair + 1) % 2].load(words, books, book, x, span, pair + 1);
      const Read& now = read[pair % 2];
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint2 &upper = now.entry[2 * chunk], &lower = now.entry[2 * chunk + 1];
        uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y}, turned[4] = {};
        if constexpr (kSigns > 1) {
#pragma unroll
          for (int i = 0; i < 4; ++i) turned[i] = words.negated(4 * pair + 2 * chunk + i % 2, i / 2), a[i] ^= turned[i];
        }
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          const uint4& b = now.x[i];
          const uint32_t low = chunk == 0 ? b.x : b.z, high = chunk == 0 ? b.y : b.w;
          multiply_chunk(c[i], a, low, high);
          if constexpr (kSigns > 1) multiply_chunk(less[i], turned, low, high);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kEights; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) c[i][j] -= less[i][j];
  }

  // Returns the sum for row g + 8 h of W and row 4 i + t of x, in lane 4 g + t.
  __device__ __forceinline__ float total(int i, int h) const {
    const int(&pair)[4] = c[i];
    const auto high = static_cast<float>(pair[2 * h] * 256 + pair[2 * h + 1]);
    if constexpr (kColumns != 3) return high;
    const int third = __shfl_down_sync(~0u, pair[2 * h], 1);
    return fmaf(high, 256.0f, static_cast<float>(third));
  }
};

struct Correction {
  uint2 levels;
  uint32_t tag;
  __device__ int place() const { return static_cast<int>(tag & 0xFFFF); }
};
// Returns what a correction adds: its 8 bytes times 8 columns of x, times its scale. A signed byte b becomes the
// float 2^23 + 128 + b, minus 2^23 + 128.
__device__ __forceinline__ float product_of(const Correction& c, float4 low, float4 high) {
  const uint32_t biased[2] = {c.levels.x ^ 0x80808080u, c.levels.y ^ 0x80808080u};
  const float inputs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float own = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    own = fmaf(__uint_as_float(__byte_perm(biased[j / 4], 0x4B000000u, 0x7440 + j % 4)) - 8388736.0f, inputs[j], own);
  return __fmul_rn(own, __half2float(__ushort_as_half(static_cast<uint16_t>(c.tag >> 16))));
}

}  // namespace fidelio::cuda
