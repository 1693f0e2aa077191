#include "io/gguf/grid_blocks.h"

#include <bit>

#include "core/dtype.h"
#include "formats/small_float.h"
#include "io/gguf/block_bits.h"
#include "io/gguf/grids.h"

namespace fidelio::gguf {
namespace {

uint32_t u16_at(const uint8_t* bytes) { return bits_at(bytes); }
uint32_t u32_at(const uint8_t* bytes) { return u16_at(bytes) | u16_at(bytes + 2) << 16; }
uint32_t nibble(const uint8_t* bytes, int i) { return bytes[i / 2] >> (i % 2 * 4) & 15u; }
uint32_t even_signs(uint32_t seven) { return seven | (std::popcount(seven) & 1u) << 7; }

constexpr float kValues2[4] = {8, 25, 43, 0};
constexpr float kValues3xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62}, kValues3s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// Writes `count` values of a grid point. `signs` gives one sign bit for each value.
void put_point(uint32_t point, const float* of, int bits, int count, float scale, uint32_t signs, float* values) {
  for (int i = 0; i < count; ++i) {
    const float magnitude = scale * of[point >> (bits * i) & ((1u << bits) - 1)];
    values[i] = (signs >> i & 1) != 0 ? -magnitude : magnitude;
  }
}
void put_eight(uint32_t point, float scale, uint32_t signs, float* values) {
  put_point(point, kValues2, 2, 8, scale, signs, values);
}
void put_two_fours(uint32_t first, uint32_t second, const float* of, float scale, uint32_t signs, float* values) {
  put_point(first, of, 3, 4, scale, signs, values);
  put_point(second, of, 3, 4, scale, signs >> 4, values + 4);
}
void put_shifted(uint32_t point, float scale, float shift, float* values) {
  for (int i = 0; i < 8; ++i) values[i] = scale * (static_cast<float>(point >> (2 * i) & 3) - 1 + shift);
}
float quarter(float d, uint32_t s) { return d * (static_cast<float>(s) + 0.5f) * 0.25f; }
float odd(float d, uint32_t s) { return d * static_cast<float>(2 * s + 1); }

// A byte is 256 / 243 of five digits in base 3, rounded up. Multiplied by 3^k it begins with digit k.
float third(uint8_t byte, int k) {
  constexpr uint32_t kPower[5] = {1, 3, 9, 27, 81};
  return static_cast<float>(((byte * kPower[k] & 255) * 3) >> 8) - 1;
}

// This is E4M3 without a sign. llama.cpp reads 0x7f as zero and 0xff as a number.
float unsigned_e4m3(uint8_t code) { return code == 0x7F ? 0.0f : code == 0xFF ? 480.0f : e4m3_to_float(code & 0x7F); }

}  // namespace

void decode_iq2_xxs(const uint8_t* block, float* values) {
  for (int run = 0; run < 8; ++run) {
    const uint8_t* points = block + 2 + 8 * run;
    const uint32_t packed = u32_at(points + 4);
    for (int i = 0; i < 4; ++i)
      put_eight(kGrid2xxs[points[i]], quarter(half_at(block), packed >> 28), even_signs(packed >> (7 * i) & 127),
                values + 32 * run + 8 * i);
  }
}

void decode_iq2_xs(const uint8_t* block, float* values) {
  for (int e = 0; e < 32; ++e) {
    const uint32_t packed = u16_at(block + 2 + 2 * e);
    put_eight(kGrid2xs[packed & 511], quarter(half_at(block), nibble(block + 66, e / 2)), even_signs(packed >> 9),
              values + 8 * e);
  }
}

void decode_iq2_s(const uint8_t* block, float* values) {
  for (int e = 0; e < 32; ++e) {
    const uint32_t point = block[2 + e] | (block[66 + e / 4] >> (e % 4 * 2) & 3u) << 8;
    put_eight(kGrid2s[point], quarter(half_at(block), nibble(block + 74, e / 2)), block[34 + e], values + 8 * e);
  }
}

void decode_iq3_xxs(const uint8_t* block, float* values) {
  for (int run = 0; run < 8; ++run) {
    const uint32_t packed = u32_at(block + 66 + 4 * run);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* points = block + 2 + 8 * run + 2 * i;
      put_two_fours(kGrid3xxs[points[0]], kGrid3xxs[points[1]], kValues3xxs, 2 * quarter(half_at(block), packed >> 28),
                    even_signs(packed >> (7 * i) & 127), values + 32 * run + 8 * i);
    }
  }
}

void decode_iq3_s(const uint8_t* block, float* values) {
  for (int e = 0; e < 32; ++e) {
    const uint8_t* points = block + 2 + 2 * e;
    const uint32_t ninth = block[66 + e / 4] >> (e % 4 * 2);
    put_two_fours(kGrid3s[points[0] | (ninth & 1) << 8], kGrid3s[points[1] | (ninth >> 1 & 1) << 8], kValues3s,
                  odd(half_at(block), nibble(block + 106, e / 4)), block[74 + e], values + 8 * e);
  }
}

void decode_iq1_s(const uint8_t* block, float* values) {
  for (int e = 0; e < 32; ++e) {
    const uint32_t packed = u16_at(block + 34 + e / 4 * 2);
    put_shifted(kGrid1[block[2 + e] | (packed >> (e % 4 * 3) & 7) << 8], odd(half_at(block), packed >> 12 & 7),
                (packed >> 15) != 0 ? -0.125f : 0.125f, values + 8 * e);
  }
}

void decode_iq1_m(const uint8_t* block, float* values) {
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) d |= u16_at(block + 48 + 2 * i) >> 12 << (4 * i);
  for (int e = 0; e < 32; ++e) {
    const uint32_t high = nibble(block + 32, e), scale = u16_at(block + 48 + e / 8 * 2) >> (e / 2 % 4 * 3) & 7;
    put_shifted(kGrid1[block[e] | (high & 7) << 8], odd(to_float(f16{static_cast<uint16_t>(d)}), scale),
                (high & 8) != 0 ? -0.125f : 0.125f, values + 8 * e);
  }
}

// Each byte holds several elements: there are five runs of 32, five of 16 and four of 4, each run over the same bytes.
void decode_tq1_0(const uint8_t* block, float* values) {
  const float d = half_at(block + 52);
  const auto runs = [&](const uint8_t* bytes, int width, int count) {
    for (int k = 0; k < count; ++k)
      for (int i = 0; i < width; ++i) *values++ = d * third(bytes[i], k);
  };
  runs(block, 32, 5);
  runs(block + 32, 16, 5);
  runs(block + 48, 4, 4);
}

void decode_tq2_0(const uint8_t* block, float* values) {
  const float d = half_at(block + 64);
  for (int i = 0; i < 256; ++i)
    values[i] = d * (static_cast<float>(block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
}

void decode_nvfp4(const uint8_t* block, float* values) {
  for (int i = 0; i < 64; ++i) {
    const uint8_t byte = block[4 + i / 16 * 8 + i % 8];
    values[i] = unsigned_e4m3(block[i / 16]) * kE2m1[i % 16 < 8 ? byte & 15 : byte >> 4];
  }
}

}  // namespace fidelio::gguf
