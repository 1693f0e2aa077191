#include "io/gguf/blocks.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "formats/small_float.h"
#include "io/gguf/block_bits.h"
#include "io/gguf/grid_blocks.h"
#include "io/gguf/super/super_blocks.h"

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

template <uint32_t number>
void decode_super(const uint8_t* block, float* values) {
  decode_block(*super_type(number), block, values);
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
                                               {10, "Q2_K", 256, 84, decode_super<10>, kNone},
                                               {11, "Q3_K", 256, 110, decode_super<11>, kNone},
                                               {12, "Q4_K", 256, 144, decode_super<12>, kNone},
                                               {13, "Q5_K", 256, 176, decode_super<13>, kNone},
                                               {14, "Q6_K", 256, 210, decode_super<14>, kNone},
                                               {16, "IQ2_XXS", 256, 66, decode_iq2_xxs, kNone},
                                               {17, "IQ2_XS", 256, 74, decode_iq2_xs, kNone},
                                               {18, "IQ3_XXS", 256, 98, decode_iq3_xxs, kNone},
                                               {19, "IQ1_S", 256, 50, decode_iq1_s, kNone},
                                               {20, "IQ4_NL", 32, 18, decode_super<20>, kNone},
                                               {21, "IQ3_S", 256, 110, decode_iq3_s, kNone},
                                               {22, "IQ2_S", 256, 82, decode_iq2_s, kNone},
                                               {23, "IQ4_XS", 256, 136, decode_super<23>, kNone},
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
