// GGUF's types whose codes name points of a grid, values of a table or three signs, decoded one block at a time:
//
//   type     block  bytes  layout, FP16 d first unless said                                                w
//   IQ4_NL      32     18  d | 16 bytes, as Q4_0's nibbles                                                 d t(q)
//   IQ4_XS     256    136  d | u16: high pairs of 8 scales | 4 bytes: their low nibbles | 128 bytes        d (s - 32) t(q)
//   IQ2_XXS    256     66  d | 8 of: 4 bytes of points, u32 of 4 signs of 7 bits and s                     d (s + 1/2) / 4 g
//   IQ2_XS     256     74  d | 32 u16: 9 bits of a point, 7 of signs | 16 nibbles s                        d (s + 1/2) / 4 g
//   IQ2_S      256     82  d | 32 bytes of points | 32 bytes of signs | 8 bytes: high pairs of points | 16 nibbles s
//   IQ3_XXS    256     98  d | 64 bytes of points | 8 u32: 4 signs of 7 bits and s                         d (s + 1/2) / 2 g
//   IQ3_S      256    110  d | 64 bytes of points | 8 bytes: their ninth bits | 32 bytes of signs | 8 nibbles s: d (2 s + 1) g
//   IQ1_S      256     50  d | 32 bytes of points | 8 u16: four times 3 high bits, s, a sign               d (2 s + 1) (g +- 1/8)
//   IQ1_M      256     56  32 bytes of points | 16 bytes: 3 high bits and a sign each | 4 u16: 4 scales of 3 bits, a nibble of d
//   TQ1_0      256     54  48 and 4 bytes: five and four signs each, in base 3 | d                         d (q - 1)
//   TQ2_0      256     66  64 bytes: pairs of bits, as Q2_K's | d                                          d (q - 1)
//   NVFP4       64     36  4 bytes: scales in E4M3 | 4 times 8 bytes: low nibbles, then high               s e2m1(q)
//
// Signs of 7 bits are eight: the last makes their number even. Every product is exact in FP32.
#pragma once
#include <cstdint>

namespace fidelio::gguf {

void decode_iq4_nl(const uint8_t* block, float* values);
void decode_iq4_xs(const uint8_t* block, float* values);
void decode_iq2_xxs(const uint8_t* block, float* values);
void decode_iq2_xs(const uint8_t* block, float* values);
void decode_iq2_s(const uint8_t* block, float* values);
void decode_iq3_xxs(const uint8_t* block, float* values);
void decode_iq3_s(const uint8_t* block, float* values);
void decode_iq1_s(const uint8_t* block, float* values);
void decode_iq1_m(const uint8_t* block, float* values);
void decode_tq1_0(const uint8_t* block, float* values);
void decode_tq2_0(const uint8_t* block, float* values);
void decode_nvfp4(const uint8_t* block, float* values);

}  // namespace fidelio::gguf
