// This file computes y = x w^T for dense weights; it is compiled once per instruction set. A tile is R rows of x by
// NB blocks of 16 outputs, over all of K:
//
//            k ->                   acc[r][b] += x[r][k] * w[b][k][0..15]
//     w b0  |################|
//     w b1  |################|
//     x r0  |................|
//     x r1  |................|
//
// Every accumulator is its own chain over k, so M and the shape of the tile change nothing in a result. Four blocks
// are four streams, enough for one core to saturate its share of memory bandwidth at M = 1. At M = 512 a group of
// four blocks (16 K bytes of BF16 a column) stays in L2 while the rows of x pass by; x is read once per group, with
// 1/10 of the traffic of w. The loop is not blocked over K: storing partial sums in y would save nothing until 64
// columns of w outgrow L2.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/simd.h"

namespace fidelio::cpu {
namespace {

constexpr int kUnits = kBlock / W;  // vectors per block
constexpr int kGroup = 4;           // blocks taken together
constexpr int kAhead = 4096;        // bytes prefetched ahead in every stream
// These are the largest R, and the blocks per tile for R rows. They fit the registers: AVX-512 has 32 vectors, other
// instruction sets 16.
constexpr int kTileRows = W == 4 ? 3 : 6;
constexpr int tile_blocks(int rows) { return W == 16 ? 4 : W == 8 ? (rows == 1 ? 4 : rows <= 3 ? 2 : 1) : 1; }

// Each of these structs describes a weight type: kStep columns lie together in one piece of kBytes, and load()
// returns column k of them for the outputs of one vector.
struct WeightF32 {
  static constexpr int kStep = 1, kBytes = 64;
  static V load(const std::byte* p, int unit, int) { return cpu::load(reinterpret_cast<const float*>(p) + unit * W); }
};
struct WeightF16 {
  static constexpr int kStep = 1, kBytes = 32;
  static V load(const std::byte* p, int unit, int) { return load_halves(p + unit * W * 2); }
};
struct WeightBf16 {
  static constexpr int kStep = 2, kBytes = 64;
  static V load(const std::byte* p, int unit, int k) {
    const U pair = load_words(p + unit * W * 4);
#if defined(__AVX2__)
    // Two shifts replace a mask, which would take the last of 16 registers from a tile of 6 rows: a sum would then
    // live in memory, and every step would wait for the previous step's store.
    if (k == 1) {
      U high = pair >> 16;
      asm("" : "+v"(high));  // keeps g++ from turning the shifts back into a mask
      return (V)(high << 16);
    }
#endif
    return (V)(k == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

// An E4M3 value placed at the top of an FP32's fields has an exponent that is 120 too small; one multiplication
// corrects that, also for subnormals.
struct WeightE4m3 {
  static constexpr int kStep = 1, kBytes = 16;
  static V load(const std::byte* p, int unit, int) {
    const U code = load_bytes(p + unit * W), magnitude = code & 0x7f;
    const V value = (V)(magnitude << 20 | (code & 0x80) << 24) * 0x1p120f;
    return (V)((U)value | (U)(magnitude == 0x7f));  // all ones is a NaN
  }
};

template <typename Weight>
struct Fma {
  static constexpr int kStep = Weight::kStep, kBytes = Weight::kBytes, kInput = 4 * kStep;
  // Adds one step of k: the first `count` of its kStep columns.
  template <int R, int NB>
  [[gnu::always_inline]] static void step(V (&acc)[R][NB * kUnits], const std::byte* const (&w)[NB], const std::byte* x,
                                          int64_t x_stride, int count) {
    FIDELIO_UNROLL for (int k = 0; k < kStep; ++k) {
      if (k >= count) break;
      V column[NB * kUnits];
      FIDELIO_UNROLL for (int i = 0; i < NB * kUnits; ++i) column[i] = Weight::load(w[i / kUnits], i % kUnits, k);
      FIDELIO_UNROLL for (int r = 0; r < R; ++r) {
        const V value = splat(reinterpret_cast<const float*>(x + r * x_stride)[k]);
        FIDELIO_UNROLL for (int i = 0; i < NB * kUnits; ++i) acc[r][i] = fma(column[i], value, acc[r][i]);
      }
    }
  }
};

#if defined(__AVX512BF16__)
struct DotBf16 {  // x is BF16 too, padded to an even length: acc += w[k] x[k] + w[k+1] x[k+1]
  static constexpr int kStep = 2, kBytes = 64, kInput = 4;
  template <int R, int NB>
  [[gnu::always_inline]] static void step(V (&acc)[R][NB * kUnits], const std::byte* const (&w)[NB], const std::byte* x,
                                          int64_t x_stride, int) {
    __m512i pairs[NB];
    FIDELIO_UNROLL for (int b = 0; b < NB; ++b) pairs[b] = _mm512_loadu_si512(w[b]);
    FIDELIO_UNROLL for (int r = 0; r < R; ++r) {
      int32_t two;
      __builtin_memcpy(&two, x + r * x_stride, sizeof two);
      const __m512i input = _mm512_set1_epi32(two);
      FIDELIO_UNROLL for (int b = 0; b < NB; ++b) acc[r][b] =
          _mm512_dpbf16_ps(acc[r][b], (__m512bh)pairs[b], (__m512bh)input);
    }
  }
};
#endif

inline void write_block(const DenseArgs& a, int64_t row, int64_t block, const V* sums) {
  float* y = a.y + row * a.y_stride + block * kBlock;
  const int64_t valid = a.out - block * kBlock;
  if (valid >= kBlock) {
    for (int unit = 0; unit < kUnits; ++unit) {
      V sum = sums[unit];
      if (a.row_scale) sum *= load(a.row_scale + block * kBlock + unit * W);
      if (a.bias) sum += load(a.bias + block * kBlock + unit * W);
      if (a.add) sum += load(y + unit * W);
      store(y + unit * W, sum);
    }
    return;
  }
  float values[kBlock];
  for (int unit = 0; unit < kUnits; ++unit) store(values + unit * W, sums[unit]);
  for (int64_t i = 0; i < valid; ++i) {
    float sum = values[i];
    if (a.row_scale) sum *= a.row_scale[block * kBlock + i];
    if (a.bias) sum += a.bias[block * kBlock + i];
    y[i] = a.add ? y[i] + sum : sum;
  }
}

template <typename Form, int R, int NB>
void tile(const DenseArgs& a, int64_t row, int64_t block) {
  V acc[R][NB * kUnits] = {};
  const std::byte* w[NB];
  for (int b = 0; b < NB; ++b) w[b] = a.packed + (block + b) * a.block_stride;
  const std::byte* x = a.x + row * a.x_stride;
  int64_t k = 0;
  for (; k + Form::kStep <= a.in; k += Form::kStep, x += Form::kInput) {
    Form::template step<R, NB>(acc, w, x, a.x_stride, Form::kStep);
    FIDELIO_UNROLL for (int b = 0; b < NB; ++b) {
      __builtin_prefetch(w[b] + kAhead);
      w[b] += Form::kBytes;
    }
  }
  if (k < a.in) Form::template step<R, NB>(acc, w, x, a.x_stride, 1);
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < NB; ++b) write_block(a, row + r, block + b, &acc[r][b * kUnits]);
}

// Computes blocks [first, last), at most kGroup of them, for R rows.
template <typename Form, int R>
void tile_rows(const DenseArgs& a, int64_t row, int64_t first, int64_t last) {
  constexpr int NB = tile_blocks(R);
  for (; first + NB <= last; first += NB) tile<Form, R, NB>(a, row, first);
  if constexpr (NB > 1)
    for (; first < last; ++first) tile<Form, R, 1>(a, row, first);
}

template <typename Form>
void multiply(const DenseArgs& a, int64_t first_block, int64_t last_block) {
  for (int64_t first = first_block; first < last_block; first += kGroup) {
    const int64_t last = first + kGroup < last_block ? first + kGroup : last_block;
    int64_t row = 0;
    for (; row + kTileRows <= a.rows; row += kTileRows) tile_rows<Form, kTileRows>(a, row, first, last);
    switch (a.rows - row) {
      case 5:
        if constexpr (kTileRows > 5) tile_rows<Form, 5>(a, row, first, last);
        break;
      case 4:
        if constexpr (kTileRows > 4) tile_rows<Form, 4>(a, row, first, last);
        break;
      case 3:
        if constexpr (kTileRows > 3) tile_rows<Form, 3>(a, row, first, last);
        break;
      case 2:
        tile_rows<Form, 2>(a, row, first, last);
        break;
      case 1:
        tile_rows<Form, 1>(a, row, first, last);
        break;
      default:
        break;
    }
  }
}

}  // namespace
}  // namespace fidelio::cpu
