// This file multiplies low-bit weights by activations of 16 bits with AVX2. They are INT16 words, and one vpmaddwd
// takes two columns of 8 rows, exact in INT32.
//
// AVX2 has no exact product of unsigned and signed bytes that is not narrow (lowbit_avx2.cc), so two planes of INT8
// would cost 8-bit weights nine instructions for 32 products of 16 bits. As words they cost four, and the two
// instructions that widen the codes are shared by all rows of activations at once:
//
//     bytes of a quad, 8 rows     c0 c1 c2 c3 | c0 c1 c2 c3 | ..
//     even = bytes & 0x00ff       c0    c2    | c0    c2    | ..     times x0 x2 | x0 x2 | ..
//     odd  = bytes >> 8           c1    c3    | c1    c3    | ..     times x1 x3 | x1 x3 | ..
//
// Codes stay unsigned and grids are entries + 128, so sums fit: 255 * 16319 * 128 columns < 2^30. A few rows of
// activations (up to eight) keep their sums in registers while a half of a block's group passes; more rows meet words
// that were unpacked before.
#include <cstring>

#include "kernels/cpu/linear/lowbit_avx2.h"

namespace fidelio::cpu::lowbit {
namespace {

template <int kCoding>
struct Block {
  const uint8_t* base;
  Planes<kCoding> planes;
  ZeroReader<kCoding, false> zeros;
  Block(const Layout& l, const uint8_t* b) : base(b), planes(l, b), zeros(l, b) {}
};

// Adds a group's spans for 8 of the block's outputs, those of half 0 or 1.
template <int kCoding, int kRows>
FIDELIO_INLINE void add_group(const Job& job, const Block<kCoding>& block, const Table<kCoding>& table, int64_t first,
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

// Computes partial += (s_w s_x) float(integer - zero sum).
template <int kRows>
FIDELIO_INLINE void close_rows(const Job& job, int64_t group, int64_t m0, int half, __m256 scale, __m256i zero,
                               const __m256i (&integers)[kRows], float (*partial)[kBlock]) {
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
    const int64_t at = group * job.rows + m0 + m;
    const __m256i exact = _mm256_sub_epi32(integers[m], _mm256_mullo_epi32(zero, _mm256_set1_epi32(job.sum[at])));
    const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(job.scale[at]));
    float* p = partial[m] + 8 * half;
    _mm256_store_ps(p, _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), factor, _mm256_load_ps(p)));
  }
}
template <int kCoding, int kRows>
FIDELIO_INLINE void close_group(const Job& job, const Block<kCoding>& block, int64_t group, int64_t weight_group,
                                int64_t m0, int half, const __m256i (&sums)[kRows], float (*partial)[kBlock]) {
  __m256i integers[kRows];
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) integers[m] = placed<kCoding>(job.layout, sums[m]);
  close_rows(job, group, m0, half, scales_of<kCoding>(job.layout, block.base, weight_group, half),
             block.zeros(weight_group, half), integers, partial);
}

template <int kCoding, int kRows>
void multiply_tile(const Job& job, int64_t block, int64_t m0, const Table<kCoding>& table) {
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

// Adds a pair of quads for one row of activations. Both halves of a block are taken at once, so that a word of x is
// read once for both, and each word of a pair has a sum of its own. They are added in order, as above; left to itself
// g++ adds the sums up at once and keeps parts of them on the stack.
template <int kCoding, int kPair>
FIDELIO_INLINE void add_pair_of_row(const uint8_t* const (&at)[2][3], const Table<kCoding>& table, const int8_t* x,
                                    __m256i (&upper)[4], __m256i (&lower)[4]) {
  const __m256i even = _mm256_set1_epi16(0x00ff);
  __m256i a, b, c, d;
  unpack_pair<kCoding, kPair, false>(at[0], table, a, b);
  unpack_pair<kCoding, kPair, false>(at[1], table, c, d);
  const __m256i first[4] = {_mm256_and_si256(a, even), _mm256_srli_epi16(a, 8), _mm256_and_si256(b, even),
                            _mm256_srli_epi16(b, 8)};
  const __m256i second[4] = {_mm256_and_si256(c, even), _mm256_srli_epi16(c, 8), _mm256_and_si256(d, even),
                             _mm256_srli_epi16(d, 8)};
  FIDELIO_UNROLL for (int i = 0; i < 4; ++i) {
    const __m256i value = broadcast(x + 16 * kPair + 4 * i);
    upper[i] = _mm256_add_epi32(upper[i], _mm256_madd_epi16(first[i], value));
    lower[i] = _mm256_add_epi32(lower[i], _mm256_madd_epi16(second[i], value));
    asm("" : "+x"(upper[i]), "+x"(lower[i]));
  }
}

template <int kCoding>
void multiply_row(const Job& job, int64_t block, int64_t m, const Table<kCoding>& table) {
  const Layout& l = job.layout;
  const Block<kCoding> b(l, job.packed + l.front + block * l.block_bytes);
  alignas(32) float partial[1][kBlock] = {};
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t weight_group = s / l.group_spans;
    const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
    __m256i upper[4], lower[4];
    FIDELIO_UNROLL for (int i = 0; i < 4; ++i) upper[i] = lower[i] = _mm256_setzero_si256();
    for (; s < end; ++s) {
      b.planes.prefetch(s);
      const uint8_t* const at[2][3] = {{b.planes.at(0, s), b.planes.at(1, s), b.planes.at(2, s)},
                                       {b.planes.at(0, s) + 32, b.planes.at(1, s) + 32, b.planes.at(2, s) + 32}};
      const int8_t* x = job.planes + (s * job.rows + m) * kWordBytes;
      add_pair_of_row<kCoding, 0>(at, table, x, upper, lower);
      add_pair_of_row<kCoding, 1>(at, table, x, upper, lower);
      add_pair_of_row<kCoding, 2>(at, table, x, upper, lower);
      add_pair_of_row<kCoding, 3>(at, table, x, upper, lower);
    }
    const auto sum = [](const __m256i(&part)[4]) {
      return _mm256_add_epi32(_mm256_add_epi32(part[0], part[1]), _mm256_add_epi32(part[2], part[3]));
    };
    const __m256i sums[2][1] = {{sum(upper)}, {sum(lower)}};
    close_group(job, b, g, weight_group, m, 0, sums[0], partial);
    close_group(job, b, g, weight_group, m, 1, sums[1], partial);
  }
  store(job, block, m, partial[0], l.scale != Scale::f16);
}

// Many rows are multiplied in tiles of six. The words of a group, unpacked once, stay in L1 while the tiles meet all
// 16 outputs. A word of x is thus read for two products in place of one, and unpacking costs a fortieth of what it
// does for tiles of eight rows that unpack for themselves.
//
//     pair of columns      0          1
//     words of 8 outputs   half 0 | half 1 | half 0 | half 1 | ..     16 pairs a span
constexpr int64_t kPairs = kSpan / 2, kPairBytes = 2 * 32, kMostSpans = 128 / kSpan;

struct Group {
  alignas(64) uint8_t words[kMostSpans * kPairs * kPairBytes];
  alignas(32) float partial[kMaxRows][kBlock];
};

// Stores the words of a pair of quads, shifted if they are a view's and stand for larger integers.
template <int kCoding, int kPair>
FIDELIO_INLINE void store_words(const uint8_t* const* at, const Table<kCoding>& table, __m128i shift, uint8_t* to) {
  __m256i a, b;
  unpack_pair<kCoding, kPair, false>(at, table, a, b);
  const __m256i even = _mm256_set1_epi16(0x00ff);
  const __m256i w[4] = {_mm256_and_si256(a, even), _mm256_srli_epi16(a, 8), _mm256_and_si256(b, even),
                        _mm256_srli_epi16(b, 8)};
  for (int i = 0; i < 4; ++i)
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + (4 * kPair + i) * kPairBytes), _mm256_sll_epi16(w[i], shift));
}

template <int kCoding>
void unpack_group(const Block<kCoding>& block, const Table<kCoding>& table, __m128i shift, int64_t first, int64_t last,
                  uint8_t* to) {
  for (int64_t s = first; s < last; ++s, to += kPairs * kPairBytes) {
    block.planes.prefetch(s);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const at[3] = {block.planes.at(0, s) + 32 * half, block.planes.at(1, s) + 32 * half,
                                    block.planes.at(2, s) + 32 * half};
      store_words<kCoding, 0>(at, table, shift, to + 32 * half);
      store_words<kCoding, 1>(at, table, shift, to + 32 * half);
      store_words<kCoding, 2>(at, table, shift, to + 32 * half);
      store_words<kCoding, 3>(at, table, shift, to + 32 * half);
    }
  }
}

// Sets upper[m] and lower[m] to the group's words of either half . row m of x; the spans of a row are `stride` apart.
// There are two arrays and no loop over them, since what is indexed by a variable lives in memory.
template <int kRows>
FIDELIO_INLINE void add_words(const uint8_t* words, const int8_t* x, int64_t stride, int64_t spans,
                              __m256i (&upper)[kRows], __m256i (&lower)[kRows]) {
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) upper[m] = lower[m] = _mm256_setzero_si256();
  for (; spans > 0; --spans, x += stride)
    for (int64_t pair = 0; pair < kPairs; ++pair, words += kPairBytes) {
      const __m256i first = load(words), second = load(words + 32);
      FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
        const __m256i value = broadcast(x + kWordBytes * m + 4 * pair);
        upper[m] = _mm256_add_epi32(upper[m], _mm256_madd_epi16(first, value));
        lower[m] = _mm256_add_epi32(lower[m], _mm256_madd_epi16(second, value));
        asm("" : "+x"(upper[m]), "+x"(lower[m]));  // added in order, as above
      }
    }
}

// A Closing is how a group of many rows treats words, zeros and scales, for a whole weight or a view alike; so a view
// needs no instance of its own.
struct Closing {
  int below;  // bits that a view leaves out
  __m128i shift;
  __m256 factor;

  Closing(const Layout& l, int bits) : below(is_grid(l.coding) ? 0 : l.code_bits - bits) {
    shift = _mm_cvtsi32_si128(below > 0 ? below + 1 : 0);
    factor = _mm256_set1_ps(below > 0 ? 0.5f : 1.0f);
  }
  FIDELIO_INLINE __m256i zero(__m256i whole) const {
    return below > 0 ? _mm256_sub_epi32(_mm256_slli_epi32(whole, 1), _mm256_set1_epi32((1 << below) - 1)) : whole;
  }
};

template <int kCoding, int kRows>
FIDELIO_INLINE void close_many(const Job& job, const Block<kCoding>& block, const Closing& closing, int64_t group,
                               int64_t weight_group, int64_t m0, int half, const __m256i (&sums)[kRows],
                               float (*partial)[kBlock]) {
  const __m256 scale = _mm256_mul_ps(scales_of<kCoding>(job.layout, block.base, weight_group, half), closing.factor);
  close_rows(job, group, m0, half, scale, closing.zero(block.zeros.whole(weight_group, half)), sums, partial);
}

template <int kCoding, int kRows>
void multiply_group(const Job& job, const Block<kCoding>& block, const Closing& closing, int64_t group, int64_t first,
                    int64_t last, int64_t m0, const uint8_t* words, float (*partial)[kBlock]) {
  const int64_t weight_group = first / job.layout.group_spans;
  __m256i upper[kRows], lower[kRows];
  add_words(words, job.planes + (first * job.rows + m0) * kWordBytes, job.rows * kWordBytes, last - first, upper,
            lower);
  close_many(job, block, closing, group, weight_group, m0, 0, upper, partial);
  close_many(job, block, closing, group, weight_group, m0, 1, lower, partial);
}

// Multiplies many rows by one block. kCoding is a coding of integers or grids; views are unpacked like the integers
// of their width.
template <int kCoding>
void multiply_many(const Job& job, int64_t block, int64_t m0, int64_t rows) {
  const Layout& l = job.layout;
  const Block<kCoding> b(l, job.packed + l.front + block * l.block_bytes);
  const Table<kCoding> table = load_table<kCoding, false>(job);
  const Closing closing(l, bits_of(kCoding));
  Group group;
  std::memset(group.partial, 0, static_cast<size_t>(rows) * sizeof group.partial[0]);
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
    unpack_group(b, table, closing.shift, s, end, group.words);
    const auto take = [&]<int kRows>(int64_t m) {
      multiply_group<kCoding, kRows>(job, b, closing, g, s, end, m0 + m, group.words, group.partial + m);
    };
    int64_t m = 0;
    for (; m + 6 <= rows; m += 6) take.template operator()<6>(m);
    if (rows - m >= 4) take.template operator()<4>(m), m += 4;
    if (rows - m >= 2) take.template operator()<2>(m), m += 2;
    if (rows - m == 1) take.template operator()<1>(m);
    s = end;
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, group.partial[m], l.scale != Scale::f16);
}

// Verification of drafts brings a few rows more than one. Up to eight rows are one tile, except for six, which are
// treated as many rows (faster by a twentieth), and seven, which are four and three. A tile of one row costs nearly
// as much as one of three.
template <int kCoding>
void multiply(const Job& job) {
  using Of = void (*)(const Job&, int64_t, int64_t, const Table<kCoding>&);
  constexpr Of kFew[9] = {nullptr,
                          multiply_row<kCoding>,
                          multiply_tile<kCoding, 2>,
                          multiply_tile<kCoding, 3>,
                          multiply_tile<kCoding, 4>,
                          multiply_tile<kCoding, 5>,
                          nullptr,
                          nullptr,
                          multiply_tile<kCoding, 8>};
  const Table<kCoding> table = load_table<kCoding, false>(job);
  for (int64_t block = job.first; block < job.last; ++block)
    for (int64_t m = 0, rows = 0; m < job.rows; m += rows) {
      const int64_t left = job.rows - m;
      rows = left > kMaxRows ? kMaxRows : left == 7 ? 4 : left;
      if (rows > 8 || rows == 6)
        multiply_many<is_view(kCoding) ? kCoding - kFirstView : kCoding>(job, block, m, rows);
      else
        kFew[rows](job, block, m, table);
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
