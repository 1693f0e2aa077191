// AVX2, activations of 16 bits: INT16 words, two columns of 8 rows a vpmaddwd, exact in INT32.
//
// AVX2 has no exact product of unsigned and signed bytes that is not narrow (lowbit_avx2.cc), so two planes of INT8 would
// cost 8-bit weights nine instructions for 32 products of 16 bits. As words they cost four, and what widens the codes,
// two instructions, is shared by all rows of activations at once:
//
//     bytes of a quad, 8 rows     c0 c1 c2 c3 | c0 c1 c2 c3 | ..
//     even = bytes & 0x00ff       c0    c2    | c0    c2    | ..     times x0 x2 | x0 x2 | ..
//     odd  = bytes >> 8           c1    c3    | c1    c3    | ..     times x1 x3 | x1 x3 | ..
//
// Codes stay unsigned, grids are entries + 128: 255 * 16319 * 128 columns < 2^30. Eight or fewer rows of activations
// keep their sums in registers while a half of a block's group passes; the next ones take the block from L1 or L2 once more.
#include "kernels/cpu/linear/lowbit_avx2.h"

#define FIDELIO_UNROLL _Pragma("GCC unroll 16")

namespace fidelio::cpu::lowbit {
namespace {

constexpr int64_t kWordBytes = 2 * kSpan;  // a row of activations in a span

template <int kCoding>
struct Block {
  const uint8_t* base;
  Planes<kCoding> planes;
  ZeroReader<kCoding, false> zeros;
  Block(const Layout& l, const uint8_t* b) : base(b), planes(l, b), zeros(l, b) {}
};

// sums[m] += codes of quads 2 kPair and 2 kPair + 1 . x
template <int kCoding, int kPair, int kRows>
FIDELIO_INLINE void add_pair(const uint8_t* const* at, const Table& table, const int8_t* x, __m256i (&sums)[kRows]) {
  __m256i a, b;
  unpack_pair<kCoding, kPair, false>(at, table, a, b);
  const __m256i even = _mm256_set1_epi16(0x00ff);
  const __m256i w[4] = {_mm256_and_si256(a, even), _mm256_srli_epi16(a, 8), _mm256_and_si256(b, even),
                        _mm256_srli_epi16(b, 8)};
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
    FIDELIO_UNROLL for (int i = 0; i < 4; ++i) {
      const __m256i pairs = _mm256_madd_epi16(w[i], broadcast(x + kWordBytes * m + 16 * kPair + 4 * i));
      sums[m] = _mm256_add_epi32(sums[m], pairs);
      // Here, and not later: g++ is free to add integers in another order, and keeps 64 products on the stack to do so. A
      // row alone has registers enough, and gains by it.
      if constexpr (kRows > 1) asm("" : "+x"(sums[m]));
    }
  }
}

// A group's spans for 8 of the block's outputs, half 0 or 1.
template <int kCoding, int kRows>
FIDELIO_INLINE void add_group(const Job& job, const Block<kCoding>& block, const Table& table, int64_t first,
                              int64_t last, int64_t m0, int half, __m256i (&sums)[kRows]) {
  for (int64_t s = first; s < last; ++s) {
    if (half == 0) block.planes.prefetch(s);
    const uint8_t* const at[3] = {block.planes.at(0, s) + 32 * half, block.planes.at(1, s) + 32 * half,
                                  block.planes.at(2, s) + 32 * half};
    const int8_t* x = job.planes + (s * job.rows + m0) * kWordBytes;
    add_pair<kCoding, 0>(at, table, x, sums);
    add_pair<kCoding, 1>(at, table, x, sums);
    add_pair<kCoding, 2>(at, table, x, sums);
    add_pair<kCoding, 3>(at, table, x, sums);
  }
}

// partial += (s_w s_x) float(integer - zero sum)
template <int kCoding, int kRows>
FIDELIO_INLINE void close_group(const Job& job, const Block<kCoding>& block, int64_t group, int64_t weight_group,
                                int64_t m0, int half, const __m256i (&sums)[kRows], float (*partial)[kBlock]) {
  const __m256 scale = scales_of<kCoding>(job.layout, block.base, weight_group, half);
  const __m256i zero = block.zeros(weight_group, half);
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
    const int64_t at = group * job.rows + m0 + m;
    const __m256i exact = _mm256_sub_epi32(placed<kCoding>(job.layout, sums[m]),
                                           _mm256_mullo_epi32(zero, _mm256_set1_epi32(job.sum[at])));
    const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(job.scale[at]));
    float* p = partial[m] + 8 * half;
    _mm256_store_ps(p, _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), factor, _mm256_load_ps(p)));
  }
}

template <int kCoding, int kRows>
void multiply_tile(const Job& job, int64_t block, int64_t m0, const Table& table) {
  const Layout& l = job.layout;
  const Block<kCoding> b(l, job.packed + l.front + block * l.block_bytes);
  alignas(32) float partial[kRows][kBlock] = {};
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
    for (int half = 0; half < 2; ++half) {
      __m256i sums[kRows];
      FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) sums[m] = _mm256_setzero_si256();
      add_group(job, b, table, s, end, m0, half, sums);
      close_group(job, b, g, s / l.group_spans, m0, half, sums, partial);
    }
    s = end;
  }
  for (int m = 0; m < kRows; ++m) store(job, block, m0 + m, partial[m], l.scale != Scale::f16);
}

// Verification brings a few rows more than one: what is left of eights is one tile, but for seven, which are four and
// three. A tile of a row costs nearly what one of three does.
template <int kCoding>
void multiply(const Job& job) {
  using Of = void (*)(const Job&, int64_t, int64_t, const Table&);
  constexpr Of kRest[8] = {nullptr,
                           multiply_tile<kCoding, 1>,
                           multiply_tile<kCoding, 2>,
                           multiply_tile<kCoding, 3>,
                           multiply_tile<kCoding, 4>,
                           multiply_tile<kCoding, 5>,
                           multiply_tile<kCoding, 6>,
                           nullptr};
  const Table table = load_table<kCoding, false>(job.packed);
  for (int64_t block = job.first; block < job.last; ++block) {
    int64_t m = 0;
    for (; m + 8 <= job.rows; m += 8) multiply_tile<kCoding, 8>(job, block, m, table);
    if (job.rows - m == 7) multiply_tile<kCoding, 4>(job, block, m, table), m += 4;
    if (m < job.rows) kRest[job.rows - m](job, block, m, table);
  }
}

constexpr IntegerProducts products() {
  IntegerProducts all{};
  for_each_coding([&]<int kCoding>() {
    if constexpr (kCoding != kFp4) all.a16[kCoding] = multiply<kCoding>;
  });
  return all;
}

}  // namespace

constinit const IntegerProducts kAvx2Words = products();

}  // namespace fidelio::cpu::lowbit
