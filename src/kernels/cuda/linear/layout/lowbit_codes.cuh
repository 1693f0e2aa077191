// This file turns stored bits into the A fragments of matrix products.
//
// A warp has a tile of 16 rows and walks through its 128 columns in four chunks of 32. Each chunk is two m16n8k16
// products h = 0, 1. Lane 4 g + t gives product (c, h) four pairs of halves. So that activations can be read in their
// natural order, the columns of a pair are these of the chunk:
//      a0: row g      columns 8 t + 4 h + {0, 1}         a2: row g      columns 8 t + 4 h + {2, 3}
//      a1: row g + 8  columns 8 t + 4 h + {0, 1}         a3: row g + 8  columns 8 t + 4 h + {2, 3}
//
// Products of integers (m16n8k32, one for each chunk) take four codes of a row in a register: the bytes of the same
// words, with the columns 8 t + 4 h + {0, 2, 1, 3}.
//
// A code becomes a half by masking alone: the bits q << o with o + b <= 10 are the FP16 subnormal q 2^o 2^-24,
// exactly, and matrix units multiply subnormals at full speed. (The usual 0x6400 | q needs its 1024 subtracted again
// and costs the sums ten bits.) The factor 2^o 2^-24 is removed at the end, per row; zero points are stored times
// 2^o.
//
// Integers of 2..4 bits: a 32-bit word v holds one product's eight codes as nibbles (the high bits of a nibble may be
// garbage):
//      bit  31   28 27   24 23   20 19   16 15   12 11    8 7     4 3     0
//           [a3.hi ][a2.hi ][a1.hi ][a0.hi ][a3.lo ][a2.lo ][a1.lo ][a0.lo ]
//           .lo: the pair's first column, .hi: its second
//      a0 = v & 0x000f000f, a1 = v & 0x00f000f0 (so rows g + 8 carry 2^4), a2, a3 = the same of v >> 8.
//   4 bits: v is the stored word. 2 bits: product h of a chunk has bits [2 h, 2 h + 2) of each nibble of its chunk's
//   word. 3 bits: bits 1..2 come from the 2-bit plane's word (stored at nibble bits 1, 2 for h = 0 and, rotated by two,
//   3, 4 for h = 1), bit 0 from bit 2 (c mod 2) + h of each nibble of the 1-bit plane's word of the half block.
// Integers of 5..8 bits: the high nibble comes from the 4-bit plane (same word as above), moved to bits 4..7 of each
// byte (v even: a0 and a2 from w << 4; v odd: a1 and a3 from w). The lower planes' bits are put right below it, so
// that the code ends at bit 8 whatever its width (factor 2^(8 - b), both rows):
//      byte  [h h h h|1|. . .]  5 bits      [h h h h|2 2|. .]  6 bits
//            [h h h h|2 2|1|0]  7 bits      [h h h h|l l l l]  8 bits
//   In a 2-bit plane's word (one for each chunk), pair p = 2 h + odd of each byte belongs to (h, odd). In a 1-bit
//   plane's word (one for each half block), it is bit 4 (c mod 2) + 2 h + odd.
// If only the four high bits are read (a view), the byte is [h h h h|0 0 0 0], whatever the width. Grids have the
// same words with their nibbles in another order: row g's four codes are in the low half and row g + 8's in the high
// one, each nibble at its byte's place. So a half selects four entries of a table in registers (with prmt, of eight
// bytes). With 4 bits and more, a nibble's own high bit is bit 3 of another code, and all of row g's end bytes. Their
// signs, spread over the bytes, choose between the lower and the upper eight entries. Bits 4 and 5 of codes lie in
// the narrower plane, where integers have their lowest bits. (Therefore the planes of a file, which have the high
// bits first, are packed anew.) Shifted to the ends of bytes, they choose among the sixteens and among the
// thirty-twos. That takes 20 instructions of the integer pipe for four codes of 6 bits, twice the time in which their
// bytes arrive. So where a polynomial gives the entries (curve), it is evaluated instead, in the pipe of halves, and
// codes lie like integers.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/linear/layout/lowbit.h"
#include "kernels/cuda/linear/layout/lowbit_curve.cuh"

namespace fidelio::cuda {

constexpr bool has_plane4(int bits) { return bits >= 4; }
constexpr bool has_plane2(int bits) { return bits == 2 || bits == 3 || bits == 6 || bits == 7; }
constexpr bool has_plane1(int bits) { return bits == 3 || bits == 5 || bits == 7; }
// Calls `plane` with the number of bytes that a tile has of each plane, in their order.
template <int bits, typename Plane>
__device__ __forceinline__ void for_planes(const Plane& plane) {
  if constexpr (has_plane4(bits)) plane(1024);
  if constexpr (bits == 8) plane(1024);
  if constexpr (has_plane2(bits)) plane(512);
  if constexpr (has_plane1(bits)) plane(256);
}

// Returns the exponent o of the factor of rows g and g + 8.
__host__ __device__ constexpr int code_shift(CodeKind kind, int bits, bool upper) {
  return kind != CodeKind::integer ? 0 : bits >= 5 ? 8 - bits : upper ? 4 : 0;
}

// Returns the factor for a sum over codes as they enter the products. All sums are kept in units of 2^-24, which
// integers have by themselves and which the epilogue removes.
__host__ __device__ constexpr float code_unit(CodeKind kind, int bits, bool upper) {
  return kind != CodeKind::integer ? 0x1p-24f : 1.0f / static_cast<float>(1 << code_shift(kind, bits, upper));
}

// Returns where a code is in its word, for rows g and g + 8 and their columns (`r` numbers a0..a3 as above, and
// `pair` is the column within the pair).
__host__ __device__ constexpr int nibble_of(CodeKind kind, int r, int pair) {
  return kind == CodeKind::grid ? 16 * (r % 2) + 4 * (r / 2 + 2 * pair) : 16 * pair + 4 * r;
}
// Returns the highest bit of a 4-bit code of a grid.
__host__ __device__ constexpr int high_bit_of(int r, int pair) { return 8 * (r / 2 + 2 * pair) + (r % 2 ? 3 : 7); }

// A GridTable holds a grid's entries with their signs flipped, so that each is 128 more, as products of unsigned
// bytes take them.
template <int bits>
struct GridTable {
  static constexpr int kWords = bits == 2 ? 1 : 1 << (bits - 2);
  uint32_t words[kWords];

  __device__ __forceinline__ explicit GridTable(const int8_t* grid) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint32_t*>(grid)[i] ^ 0x80808080u;
  }
  static __device__ __forceinline__ uint32_t signs(uint32_t v) { return ptx::permute(v, 0, 0xba98); }
  static __device__ __forceinline__ uint32_t chosen(uint32_t by, uint32_t upper, uint32_t lower) {
    return (upper & by) | (lower & ~by);
  }
  __device__ __forceinline__ uint32_t eight(int i, uint32_t low) const {
    return ptx::permute(words[2 * i], words[bits == 2 ? 2 * i : 2 * i + 1], low);
  }
  __device__ __forceinline__ uint32_t sixteen(int i, uint32_t low, uint32_t by3) const {
    return chosen(by3, eight(2 * i + 1, low), eight(2 * i, low));
  }
  // Returns the entries of four codes, from the nibbles of their three low bits and words in whose bytes the sign
  // bits are bits 3, 4 and 5 of the codes.
  __device__ __forceinline__ uint32_t four(uint32_t low, uint32_t bit3, uint32_t bit4, uint32_t bit5) const {
    if constexpr (bits <= 3) return eight(0, low);
    if constexpr (bits >= 4) {
      const uint32_t by3 = signs(bit3);
      if constexpr (bits == 4) return sixteen(0, low, by3);
      const uint32_t by4 = signs(bit4), lower = chosen(by4, sixteen(bits >= 5 ? 1 : 0, low, by3), sixteen(0, low, by3));
      if constexpr (bits == 5) return lower;
      constexpr int kThird = bits == 6 ? 2 : 0;
      return chosen(signs(bit5), chosen(by4, sixteen(kThird + 1, low, by3), sixteen(kThird, low, by3)), lower);
    }
  }
};
struct NoTable {
  __device__ __forceinline__ explicit NoTable(const int8_t*) {}
};

// LaneCodes is one lane's words of a tile's 128 x 16 codes.
template <int bits>
struct LaneCodes {
  // The word of product (c, h) is w4[c / 2][2 (c mod 2) + h]. With 8 bits the low nibbles follow.
  uint4 w4[has_plane4(bits) ? (bits == 8 ? 4 : 2) : 1];
  uint4 w2;  // the word of chunk c
  uint2 w1;  // the word of half block c / 2

  // `codes` points at the planes of `tiles` tiles: a block in global memory, or some of its tiles in shared memory.
  template <int tiles, typename From>
  __device__ __forceinline__ void load(const uint8_t* codes, int tile, int lane, From from) {
    if constexpr (has_plane4(bits)) {
#pragma unroll
      for (int plane = 0; plane < (bits == 8 ? 2 : 1); ++plane) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          w4[2 * plane + i] = from(reinterpret_cast<const uint4*>(codes + tile * 1024 + i * 512 + lane * 16));
        codes += tiles * 1024;
      }
    }
    if constexpr (has_plane2(bits)) {
      w2 = from(reinterpret_cast<const uint4*>(codes + tile * 512 + lane * 16));
      codes += tiles * 512;
    }
    if constexpr (has_plane1(bits)) w1 = from(reinterpret_cast<const uint2*>(codes + tile * 256 + lane * 8));
  }
  static __device__ __forceinline__ uint32_t pick(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  static __device__ __forceinline__ uint32_t shifted(uint32_t v, int right) {
    return right >= 0 ? v >> right : v << -right;
  }
  static __device__ __forceinline__ uint32_t rotated(uint32_t v, int right) { return __funnelshift_r(v, v, right); }

  // Returns the fragments of product (c, h) for integers. After unrolling, all indices are compile-time constants.
  __device__ __forceinline__ void integer(int c, int h, uint32_t (&a)[4]) const {
    if constexpr (bits <= 4) {
      const uint32_t v = narrow(c, h);
      constexpr uint32_t low = ((1u << bits) - 1) * 0x00010001u, high = low << 4;
      a[0] = v & low;
      a[1] = v & high;
      a[2] = (v >> 8) & low;
      a[3] = (v >> 8) & high;
    } else {
      constexpr uint32_t mask = kWideMask * 0x00010001u;
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t v = wide(c, h, odd);
        a[odd] = v & mask;
        a[2 + odd] = (v >> 8) & mask;
      }
    }
  }
  // Returns the same codes as bytes, for products of integers: for chunk c, rows g and g + 8 and their columns 8 t +
  // 4 h + {0, 2, 1, 3} in a[2 h] and a[2 h + 1], with the same powers of two.
  __device__ __forceinline__ void bytes(int c, uint32_t (&a)[4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (bits <= 4) {
        const uint32_t v = narrow(c, h);
        constexpr uint32_t low = ((1u << bits) - 1) * 0x01010101u;
        a[2 * h] = v & low;
        a[2 * h + 1] = v & low << 4;
      } else {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) a[2 * h + odd] = wide(c, h, odd) & (kWideMask * 0x01010101u);
      }
    }
  }
  // Does the same if only the high bits are read. These codes are the high plane, each at the upper end of its byte.
  __device__ __forceinline__ void high_bytes(int c, uint32_t (&a)[4]) const {
    static_assert(bits == 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t w = pick(w4[c / 2], 2 * (c % 2) + h);
      a[2 * h] = w << 4 & 0xf0f0f0f0u;
      a[2 * h + 1] = w & 0xf0f0f0f0u;
    }
  }
  // For 2 to 4 bits, returns eight codes, each at the lower end of its half byte, with garbage above them. For grids
  // of 5 and 6 bits it returns their four low bits.
  __device__ __forceinline__ uint32_t narrow(int c, int h) const {
    if constexpr (bits >= 4) return pick(w4[c / 2], 2 * (c % 2) + h);
    if constexpr (bits == 2) return shifted(pick(w2, c), 2 * h);
    if constexpr (bits == 3)
      return ptx::select_bits<0x66666666>(h == 0 ? pick(w2, c) : rotated(pick(w2, c), 2),
                                          shifted(c / 2 == 0 ? w1.x : w1.y, 2 * (c % 2) + h));
  }
  // For 5 to 8 bits, returns four codes, each at the upper end of its byte, with garbage below them.
  static constexpr uint32_t kWideMask = 0xffu & ~((1u << (8 - bits)) - 1);
  __device__ __forceinline__ uint32_t wide(int c, int h, int odd) const {
    const uint32_t w = pick(w4[c / 2], 2 * (c % 2) + h);
    uint32_t lower;
    if constexpr (bits == 8) lower = shifted(pick(w4[2 + c / 2], 2 * (c % 2) + h), 4 * odd);
    if constexpr (bits == 7) lower = ptx::select_bits<0x0c0c0c0c>(two(c, h, odd), one(c, h, odd, 1));
    if constexpr (bits == 6) lower = two(c, h, odd);
    if constexpr (bits == 5) lower = one(c, h, odd, 3);
    return ptx::select_bits<0xf0f0f0f0>(odd ? w : w << 4, lower);
  }
  // These move bits of the lower planes to bits 2..3, or to bit `to`, of each byte.
  __device__ __forceinline__ uint32_t two(int c, int h, int odd) const {
    return shifted(pick(w2, c), 2 * (2 * h + odd) - 2);
  }
  __device__ __forceinline__ uint32_t one(int c, int h, int odd, int to) const {
    return shifted(c / 2 == 0 ? w1.x : w1.y, 4 * (c % 2) + 2 * h + odd - to);
  }

  // For grids, returns the entries of product (c, h), as bytes like those of integers, or as halves without the added
  // 128.
  __device__ __forceinline__ void entries(int c, int h, const GridTable<bits>& table, uint32_t (&a)[2]) const {
    const uint32_t v = narrow(c, h), low = v & 0x77777777u;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
      a[odd] = table.four(low >> 16 * odd, v << 4 * odd, above(c, h, odd, 4), above(c, h, odd, 5));
  }
  // Returns bit 4 or 5 of four codes of a grid, moved to the ends of the bytes.
  __device__ __forceinline__ uint32_t above(int c, int h, int odd, int bit) const {
    if constexpr (bits == 5) return shifted(c / 2 == 0 ? w1.x : w1.y, 4 * (c % 2) + 2 * h + odd - 7);
    if constexpr (bits == 6) return shifted(pick(w2, c), 2 * (2 * h + odd) + bit - 4 - 7);
    return 0;
  }
  __device__ __forceinline__ void entries(int c, int h, const CurveTable<bits>& curve, uint32_t (&a)[2]) const {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) a[odd] = curve.four(wide(c, h, odd));
  }
  template <typename Table>
  __device__ __forceinline__ void grid(int c, int h, const Table& table, uint32_t (&a)[4]) const {
    uint32_t four[2];
    entries(c, h, table, four);
#pragma unroll
    for (int r = 0; r < 4; ++r) {  // 1024 + b is the half 0x6400 | b
      const uint32_t more = ptx::permute(four[r % 2], 0x64646464u, r < 2 ? 0x4240 : 0x4341);
      const __half2 pair = __hsub2(*reinterpret_cast<const __half2*>(&more), __half2half2(__ushort_as_half(0x6480)));
      a[r] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
};

}  // namespace fidelio::cuda
