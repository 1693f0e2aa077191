// This file decodes, one block at a time, GGUF's types whose codes name points of a grid, values of a table or three
// signs:
//
//   type    block bytes  w                      layout, FP16 d first unless said
//   IQ2_XXS   256   66  d (s + 1/2) / 4 g      d | 8 of: 4 bytes of points, u32 of 4 signs of 7 bits and s
//   IQ2_XS    256   74  d (s + 1/2) / 4 g      d | 32 u16: 9 bits of a point, 7 of signs | 16 nibbles s
//   IQ2_S     256   82  d (s + 1/2) / 4 g      d | 32 bytes of points | 32 bytes of signs | 8 bytes: high pairs of
//                                            points | 16 nibbles s
//   IQ3_XXS   256   98  d (s + 1/2) / 2 g      d | 64 bytes of points | 8 u32: 4 signs of 7 bits and s
//   IQ3_S     256  110  d (2 s + 1) g          d | 64 bytes of points | 8 bytes: their ninth bits | 32 bytes of signs
//                                            | 8 nibbles s
//   IQ1_S     256   50  d (2 s + 1) (g +- 1/8) d | 32 bytes of points | 8 u16: four times 3 high bits, s, a sign
//   IQ1_M     256   56  d (2 s + 1) (g +- 1/8) 32 bytes of points | 16 bytes: 3 high bits and a sign in each nibble |
//                                            4 u16: 4 scales of 3 bits, a nibble of d
//   TQ1_0     256   54  d (q - 1)              48 and 4 bytes: five and four signs each, in base 3 | d
//   TQ2_0     256   66  d (q - 1)              64 bytes: pairs of bits, as Q2_K's | d
//   NVFP4      64   36  s e2m1(q)              4 bytes: scales in E4M3 | 4 times 8 bytes: low nibbles, then high
//
// Signs of 7 bits stand for eight signs, of which the last makes their number even. Every product is exact in FP32.
#pragma once
#include <cstdint>

namespace fidelio::gguf {

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
