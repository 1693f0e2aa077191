#include "io/gguf/blocks.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "formats/small_float.h"
#include "io/gguf/block_bits.h"
#include "io/gguf/grid_blocks.h"

namespace fidelio::gguf {
namespace {

void decode_f32(const uint8_t* block, float* values) { std::memcpy(values, block, 4); }
void decode_f16(const uint8_t* block, float* values) { *values = half_at(block); }
void decode_bf16(const uint8_t* block, float* values) { *values = to_float(bf16{bits_at(block)}); }

// The bytes are a u32 of fifth bits, then the nibbles.
void five_bits(const uint8_t* bytes, uint8_t* q) {
  nibbles(bytes + 4, q);
  for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(q[i] | (bytes[i / 8] >> (i % 8) & 1) << 4);
}

void codes_q4_0(const uint8_t* block, uint8_t* q) { nibbles(block + 2, q); }
void codes_q4_1(const uint8_t* block, uint8_t* q) { nibbles(block + 4, q); }
void codes_q5_0(const uint8_t* block, uint8_t* q) { five_bits(block + 2, q); }
void codes_q5_1(const uint8_t* block, uint8_t* q) { five_bits(block + 4, q); }
// Signed bytes from -128 become codes from 0.
void codes_q8_0(const uint8_t* block, uint8_t* q) {
  for (int i = 0; i < 32; ++i) q[i] = block[2 + i] ^ 0x80;
}

constexpr IntegerCoding kQ4_0{4, false, codes_q4_0}, kQ4_1{4, true, codes_q4_1}, kQ5_0{5, false, codes_q5_0},
    kQ5_1{5, true, codes_q5_1}, kQ8_0{8, false, codes_q8_0};

template <const IntegerCoding& coding>
void decode_integer(const uint8_t* block, float* values) {
  uint8_t q[32];
  coding.codes(block, q);
  const float d = half_at(block), m = coding.minimum ? half_at(block + 2) : 0.0f;
  for (int i = 0; i < 32; ++i)
    values[i] =
        coding.minimum ? d * static_cast<float>(q[i]) + m : d * static_cast<float>(q[i] - (1 << (coding.bits - 1)));
}

// A block of 256 consists of two halves of 128. A half has four runs of 32 elements, whose codes overlap in the same 32
// bytes: element i has half i / 128, run i % 128 / 32 and byte i % 32. Sixteen elements share a scale.

void decode_q2_k(const uint8_t* block, float* values) {
  const float d = half_at(block + 80), m = half_at(block + 82);
  for (int s = 0; s < 16; ++s) {
    const int half = s / 8, run = s % 8 / 2;
    const uint8_t* codes = block + 16 + 32 * half + s % 2 * 16;
    const float scale = d * static_cast<float>(block[s] & 15), minimum = m * static_cast<float>(block[s] >> 4);
    for (int i = 0; i < 16; ++i) values[16 * s + i] = scale * static_cast<float>(codes[i] >> (2 * run) & 3) - minimum;
  }
}

void decode_q3_k(const uint8_t* block, float* values) {
  const uint8_t* packed = block + 96;
  const float d = half_at(block + 108);
  for (int s = 0; s < 16; ++s) {
    const int half = s / 8, run = s % 8 / 2;
    const uint8_t *high = block + s % 2 * 16, *codes = block + 32 + 32 * half + s % 2 * 16;
    const int low_bits = packed[s % 8] >> (s / 8 * 4) & 15, top_bits = packed[8 + s % 4] >> (s / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low_bits | top_bits << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      const int low = codes[i] >> (2 * run) & 3, third = high[i] >> (4 * half + run) & 1;
      values[16 * s + i] = scale * static_cast<float>((low | third << 2) - 4);
    }
  }
}

// Eight scales and eight minima of 6 bits are packed in 12 bytes. Those of the first four runs are in the low bits of
// bytes 0-3 and 4-7. Those of the last four are in the nibbles of bytes 8-11, with their two high bits above the
// others.
struct ScaleAndMinimum {
  float scale, minimum;
};
ScaleAndMinimum unpack_six_bits(const uint8_t* packed, int run) {
  int s, t;
  if (run < 4) {
    s = packed[run] & 63;
    t = packed[run + 4] & 63;
  } else {
    s = (packed[run + 4] & 15) | packed[run - 4] >> 6 << 4;
    t = packed[run + 4] >> 4 | packed[run] >> 6 << 4;
  }
  return {static_cast<float>(s), static_cast<float>(t)};
}

// Runs 2c and 2c + 1 are the low and high nibbles of the same 32 bytes.
void decode_q4_k(const uint8_t* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int run = 0; run < 8; ++run) {
    const ScaleAndMinimum six = unpack_six_bits(block + 4, run);
    const float scale = d * six.scale, minimum = m * six.minimum;
    const uint8_t* codes = block + 16 + run / 2 * 32;
    for (int i = 0; i < 32; ++i)
      values[32 * run + i] = scale * static_cast<float>(codes[i] >> (run % 2 * 4) & 15) - minimum;
  }
}

void decode_q5_k(const uint8_t* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  const uint8_t* high = block + 16;
  for (int run = 0; run < 8; ++run) {
    const ScaleAndMinimum six = unpack_six_bits(block + 4, run);
    const float scale = d * six.scale, minimum = m * six.minimum;
    const uint8_t* codes = block + 48 + run / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = (codes[i] >> (run % 2 * 4) & 15) | (high[i] >> run & 1) << 4;
      values[32 * run + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_q6_k(const uint8_t* block, float* values) {
  const float d = half_at(block + 208);
  for (int s = 0; s < 16; ++s) {
    const int half = s / 8, run = s % 8 / 2, begin = s % 2 * 16;
    const uint8_t *low = block + 64 * half + 32 * (run % 2) + begin, *high = block + 128 + 32 * half + begin;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + s]));
    for (int i = 0; i < 16; ++i) {
      const int q = ((low[i] >> (run / 2 * 4) & 15) | (high[i] >> (2 * run) & 3) << 4) - 32;
      values[16 * s + i] = scale * static_cast<float>(q);
    }
  }
}

void decode_mxfp4(const uint8_t* block, float* values) {
  uint8_t q[32];
  nibbles(block + 1, q);
  const float scale = std::ldexp(1.0f, block[0] - 127);
  for (int i = 0; i < 32; ++i) values[i] = scale * kE2m1[q[i]];
}

constexpr IntegerCoding kNone{0, false, nullptr};
constexpr std::array<BlockType, 26> kTypes = {{{0, "F32", 1, 4, decode_f32, kNone},
                                               {1, "F16", 1, 2, decode_f16, kNone},
                                               {2, "Q4_0", 32, 18, decode_integer<kQ4_0>, kQ4_0},
                                               {3, "Q4_1", 32, 20, decode_integer<kQ4_1>, kQ4_1},
                                               {6, "Q5_0", 32, 22, decode_integer<kQ5_0>, kQ5_0},
                                               {7, "Q5_1", 32, 24, decode_integer<kQ5_1>, kQ5_1},
                                               {8, "Q8_0", 32, 34, decode_integer<kQ8_0>, kQ8_0},
                                               {10, "Q2_K", 256, 84, decode_q2_k, kNone},
                                               {11, "Q3_K", 256, 110, decode_q3_k, kNone},
                                               {12, "Q4_K", 256, 144, decode_q4_k, kNone},
                                               {13, "Q5_K", 256, 176, decode_q5_k, kNone},
                                               {14, "Q6_K", 256, 210, decode_q6_k, kNone},
                                               {16, "IQ2_XXS", 256, 66, decode_iq2_xxs, kNone},
                                               {17, "IQ2_XS", 256, 74, decode_iq2_xs, kNone},
                                               {18, "IQ3_XXS", 256, 98, decode_iq3_xxs, kNone},
                                               {19, "IQ1_S", 256, 50, decode_iq1_s, kNone},
                                               {20, "IQ4_NL", 32, 18, decode_iq4_nl, kNone},
                                               {21, "IQ3_S", 256, 110, decode_iq3_s, kNone},
                                               {22, "IQ2_S", 256, 82, decode_iq2_s, kNone},
                                               {23, "IQ4_XS", 256, 136, decode_iq4_xs, kNone},
                                               {29, "IQ1_M", 256, 56, decode_iq1_m, kNone},
                                               {30, "BF16", 1, 2, decode_bf16, kNone},
                                               {34, "TQ1_0", 256, 54, decode_tq1_0, kNone},
                                               {35, "TQ2_0", 256, 66, decode_tq2_0, kNone},
                                               {39, "MXFP4", 32, 17, decode_mxfp4, kNone},
                                               {40, "NVFP4", 64, 36, decode_nvfp4, kNone}}};

struct Unread {
  uint32_t number;
  std::string_view name;
};
constexpr std::array<Unread, 10> kUnread = {{{9, "Q8_1"},
                                             {15, "Q8_K"},
                                             {24, "I8"},
                                             {25, "I16"},
                                             {26, "I32"},
                                             {27, "I64"},
                                             {28, "F64"},
                                             {4, "Q4_2"},
                                             {5, "Q4_3"},
                                             {41, "Q1_0"}}};

}  // namespace

const BlockType* block_type(uint32_t number) {
  for (const BlockType& type : kTypes)
    if (type.number == number) return &type;
  return nullptr;
}

std::string_view known_block_types() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 and NVFP4";
}

std::string_view name_of_unread_type(uint32_t number) {
  for (const Unread& type : kUnread)
    if (type.number == number) return type.name;
  return "";
}

void decode_row(const BlockType& type, const uint8_t* row, std::span<float> values) {
  const size_t blocks = values.size() / static_cast<size_t>(type.elements);
  for (size_t b = 0; b < blocks; ++b)
    type.decode(row + b * static_cast<size_t>(type.bytes), values.data() + b * static_cast<size_t>(type.elements));
}

uint16_t scale_bits(const uint8_t* block) { return bits_at(block); }
float scale_of(const uint8_t* block) { return half_at(block); }
float minimum_of(const uint8_t* block) { return half_at(block + 2); }

std::optional<int> exact_zero(float d, float m, int bits) {
  if (d == 0) return m == 0 ? std::optional(0) : std::nullopt;
  const double z = -static_cast<double>(m) / d;
  if (!(z >= 0 && z <= (1 << bits) - 1)) return std::nullopt;
  const double nearest = std::nearbyint(z);
  // 11 bits of d times 8 bits of z is exact in double, so == tests exact equality.
  return nearest * d == -static_cast<double>(m) ? std::optional(static_cast<int>(nearest)) : std::nullopt;
}

}  // namespace fidelio::gguf
