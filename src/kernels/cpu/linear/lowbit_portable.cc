// This file multiplies the packed layout of lowbit.h in plain C++: these are the kernels of any machine, and the
// readable twin of the fast ones.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/dtype.h"
#include "kernels/cpu/linear/lowbit_merge.h"
#include "kernels/cpu/linear/lowbit_prepare.h"

namespace fidelio::cpu::lowbit {
namespace {

using Codes = uint8_t[kSpan / 4][4 * kBlock];  // of a span, indexed by quad and 4 row + column
using Partial = float[kBlock];

// Returns the value of an E4M3 code. Placed at the top of an FP32's fields it has an exponent that is 120 too small;
// one multiplication corrects that, also for subnormals.
inline float from_e4m3(uint8_t code) {
  uint32_t u = (code & 0x7fu) << 20;
  if ((code & 0x7f) == 0x7f) u = 0x7fc00000u;
  u |= (code & 0x80u) << 24;
  float value;
  std::memcpy(&value, &u, 4);
  return value * 0x1p120f;
}

// Returns 2^(x - 128): half of what E8M0 says, as the grid is 2 x E2M1. The smallest two are subnormal.
inline float half_power(uint8_t x) {
  const uint32_t u = x > 1 ? static_cast<uint32_t>(x - 1) << 23 : 0x200000u << x;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

struct Block {
  const Layout& l;
  const uint8_t* packed;
  const uint8_t* base;

  Block(const Job& job, int64_t block)
      : l(job.layout), packed(job.packed), base(job.packed + l.front + block * l.block_bytes) {}

  float row_scale(int r) const {
    if (l.scale == Scale::f16) return 1;
    float value;
    std::memcpy(&value, base + 4 * r, 4);
    return value;
  }
  float scale(int64_t group, int r) const {
    const uint8_t* p = base + l.scale_offset;
    const int64_t i = group * kBlock + r;
    if (l.scale == Scale::u8) return static_cast<float>(p[i]);
    if (l.scale == Scale::i8) return static_cast<float>(static_cast<int8_t>(p[i]));
    if (l.scale == Scale::e8m0) return half_power(p[i]);
    if (l.scale == Scale::e4m3) return from_e4m3(p[i]) / 2;  // the grid is 2 x E2M1
    f16 value;
    std::memcpy(&value, p + 2 * i, 2);
    return to_float(value);
  }
  float offset(int64_t group, int r) const {
    return l.has_zero ? from_e4m3(base[l.zero_offset + group * kBlock + r]) : 0;
  }
  int zero(int64_t group, int r) const {
    const int b = l.code_bits;
    if (!l.has_zero) return is_grid(l.coding) ? 128 : 1 << (b - 1);
    const uint8_t* p = base + l.zero_offset + group * 2 * b + r * b / 8;
    return ((p[0] | p[1] << 8) >> (r * b % 8)) & ((1 << b) - 1);
  }
};

// Terms are the scale, the zero and the shift with which a coding's integers are (code << shift) - zero; those of a
// view are doubled.
template <int kCoding>
struct Terms {
  float scale;
  int32_t zero;
  int shift = 0;

  Terms(const Block& b, int64_t group, int r) : scale(b.scale(group, r)), zero(b.zero(group, r)) {
    if constexpr (is_view(kCoding)) {
      const int below = b.l.code_bits - bits_of(kCoding);
      scale /= 2, zero = 2 * zero - ((1 << below) - 1), shift = below + 1;
    }
  }
};

template <int kWidth>
void append_plane(const uint8_t* span, Codes& codes) {
  constexpr int kQuads = 8 / kWidth;  // quads of a vector
  for (int q = 0; q < kSpan / 4; ++q) {
    const uint8_t* vector = span + 64 * (q / kQuads);
    const int shift = field_shift(kWidth, q % kQuads);
    for (int i = 0; i < 64; ++i)
      codes[q][i] = static_cast<uint8_t>(codes[q][i] << kWidth | ((vector[i] >> shift) & ((1 << kWidth) - 1)));
  }
}

// Unpacks what multiplies the activations: codes, or the grid's entries + 128.
template <int kCoding>
void unpack_span(const Block& block, int64_t s, Codes& codes) {
  constexpr int kBits = bits_of(kCoding);
  std::memset(codes, 0, sizeof codes);
  int plane = 0;
  const auto next = [&](int width) { return block.base + block.l.plane_offset[plane++] + s * 64 * width; };
  if constexpr (has_plane4(kBits)) append_plane<4>(next(4), codes);
  if constexpr (kBits == 8) append_plane<4>(next(4), codes);
  if constexpr (has_plane2(kBits)) append_plane<2>(next(2), codes);
  if constexpr (has_plane1(kBits)) append_plane<1>(next(1), codes);
  if constexpr (is_grid(kCoding))
    for (auto& quad : codes)
      for (uint8_t& code : quad) code = block.packed[block.l.table + code];
}

void store(const Job& job, int64_t block, int64_t m, const Partial& value, bool scaled) {
  const Block b(job, block);
  const int rows = static_cast<int>(std::min<int64_t>(kBlock, job.layout.out - block * kBlock));
  float* y = job.y + m * job.y_stride + block * kBlock;
  for (int r = 0; r < rows; ++r) {
    float v = scaled ? value[r] : value[r] * b.row_scale(r);
    if (job.bias) v += job.bias[block * kBlock + r];
    y[r] = job.add ? y[r] + v : v;
  }
}

// Adds code * x, summed over quads [first, last) of the span, to integer[r], for one row of activations.
template <bool kTwo>
void dot_quads(const Codes& codes, const int8_t* x, int first, int last, int32_t (&integer)[kBlock]) {
  for (int q = first; q < last; ++q) {
    int32_t v[4];
    for (int j = 0; j < 4; ++j) v[j] = kTwo ? 128 * x[4 * q + j] + x[kSpan + 4 * q + j] : x[4 * q + j];
    for (int r = 0; r < kBlock; ++r)
      integer[r] +=
          codes[q][4 * r] * v[0] + codes[q][4 * r + 1] * v[1] + codes[q][4 * r + 2] * v[2] + codes[q][4 * r + 3] * v[3];
  }
}

template <int kCoding, bool kTwo>
void multiply_tile(const Job& job, int64_t block, int64_t m0, int64_t rows) {
  const Layout& l = job.layout;
  const Block b(job, block);
  constexpr int64_t kRowBytes = kTwo ? 2 * kSpan : kSpan;
  Partial partial[kMaxRows] = {};
  int32_t integer[kMaxRows][kBlock];
  Codes codes;
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t weight_group = s / l.group_spans, end = std::min(l.spans, s + l.activation_group_spans);
    std::memset(integer, 0, sizeof integer);
    for (; s < end; ++s) {
      unpack_span<kCoding>(b, s, codes);
      for (int64_t m = 0; m < rows; ++m)
        dot_quads<kTwo>(codes, job.planes + (s * job.rows + m0 + m) * kRowBytes, 0, kSpan / 4, integer[m]);
    }
    for (int r = 0; r < kBlock; ++r) {
      const Terms<kCoding> t(b, weight_group, r);
      for (int64_t m = 0; m < rows; ++m) {
        const int64_t at = g * job.rows + m0 + m;
        // Unsigned arithmetic is used because a view's two terms may each pass 2^31 although their difference does
        // not.
        const auto exact = static_cast<int32_t>((static_cast<uint32_t>(integer[m][r]) << t.shift) -
                                                static_cast<uint32_t>(t.zero) * static_cast<uint32_t>(job.sum[at]));
        partial[m][r] += static_cast<float>(exact) * (t.scale * job.scale[at]);
      }
    }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m], false);
}

// In FP4 every half of a span has its own scale and offset.
template <bool kTwo>
void multiply_fp4_tile(const Job& job, int64_t block, int64_t m0, int64_t rows) {
  const Block b(job, block);
  constexpr int64_t kRowBytes = kTwo ? 2 * kSpan : kSpan;
  Partial partial[kMaxRows] = {};
  Codes codes;
  for (int64_t s = 0; s < job.layout.spans; ++s) {
    unpack_span<kFp4>(b, s, codes);
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = s * job.rows + m0 + m;
      const int8_t* x = job.planes + at * kRowBytes;
      const int32_t sums[2] = {job.half[at], job.sum[at] - job.half[at]};
      for (int half = 0; half < 2; ++half) {
        int32_t integer[kBlock] = {};
        dot_quads<kTwo>(codes, x, half * 4, half * 4 + 4, integer);
        const int64_t group = 2 * s + half;
        for (int r = 0; r < kBlock; ++r) {
          const float exact = static_cast<float>(integer[r] - 128 * sums[half]);
          partial[m][r] += exact * (b.scale(group, r) * job.scale[at]) +
                           static_cast<float>(sums[half]) * (b.offset(group, r) * job.scale[at]);
        }
      }
    }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m], false);
}

template <int kCoding, bool kTwo>
void multiply(const Job& job) {
  const auto tile = kCoding == kFp4 ? multiply_fp4_tile<kTwo> : multiply_tile<kCoding, kTwo>;
  for (int64_t block = job.first; block < job.last; ++block)
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows)
      tile(job, block, m0, std::min<int64_t>(kMaxRows, job.rows - m0));
}

template <int kCoding>
void multiply_f32(const Job& job) {
  const Layout& l = job.layout;
  Codes codes;
  Partial partial[kMaxRows];
  for (int64_t block = job.first; block < job.last; ++block) {
    const Block b(job, block);
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
      const int64_t rows = std::min<int64_t>(kMaxRows, job.rows - m0);
      std::memset(partial, 0, sizeof partial);
      for (int64_t s = 0; s < l.spans; ++s) {
        unpack_span<kCoding>(b, s, codes);
        float weights[kSpan][kBlock];
        for (int r = 0; r < kBlock; ++r) {
          const Terms<kCoding> t(b, s / l.group_spans, r);
          for (int k = 0; k < kSpan; ++k) {
            const int code = codes[k / 4][4 * r + k % 4];
            if constexpr (kCoding == kFp4) {
              const int64_t group = 2 * s + k / kHalf;
              weights[k][r] =
                  b.row_scale(r) * (b.scale(group, r) * static_cast<float>(code - 128) + b.offset(group, r));
            } else {
              weights[k][r] = b.row_scale(r) * t.scale * static_cast<float>((code << t.shift) - t.zero);
            }
          }
        }
        const int64_t columns = std::min<int64_t>(kSpan, l.in - s * kSpan);
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t k = 0; k < columns; ++k) {
            const float x = job.values[(m0 + m) * l.in + s * kSpan + k];
            for (int r = 0; r < kBlock; ++r) partial[m][r] += x * weights[k][r];
          }
      }
      for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m], true);
    }
  }
}

void prepare16(const PrepareJob& job) { prepare_rows<Split::two>(job); }
void prepare8(const PrepareJob& job) { prepare_rows<Split::one>(job); }

constexpr Kernels kernels() {
  Kernels all{};
  for_each_coding([&]<int kCoding>() {
    all.integer.a16[kCoding] = multiply<kCoding, true>;
    all.integer.a8[kCoding] = multiply<kCoding, false>;
    all.f32[kCoding] = multiply_f32<kCoding>;
  });
  all.prepare16 = prepare16, all.prepare8 = prepare8;
  all.merge[0] = merge_plane<2, 1, 1>, all.merge[1] = merge_plane<1, 1, 2>, all.merge[2] = merge_plane<1, 1, 0>;
  return all;
}

}  // namespace

constinit const Kernels kPortable = kernels();

}  // namespace fidelio::cpu::lowbit
