// GGUF's element types: blocks of codes with their scales, decoded one by one. Written from the public description of
// the blocks; w is exactly the FP32 value that llama.cpp gives the codes.
//
//   type   block  bytes  layout, FP16 d and m first unless said                                  w
//   Q4_0      32     18  d | 16 bytes: low nibbles elements 0-15, high 16-31                     d (q - 8)
//   Q4_1      32     20  d | m | the same                                                        d q + m
//   Q5_0      32     22  d | u32: fifth bit of element i at bit i | 16 bytes                     d (q - 16)
//   Q5_1      32     24  d | m | the same                                                        d q + m
//   Q8_0      32     34  d | 32 signed bytes                                                     d q
//   Q2_K     256     84  16 bytes: scale s, minimum t, a nibble each | 64 bytes | d | m          d s q - m t
//   Q3_K     256    110  32 bytes: third bits | 64 bytes | 12 bytes: 16 scales of 6 bits | d     d (s - 32) (q - 4)
//   Q4_K     256    144  d | m | 12 bytes: 8 scales and minima of 6 bits | 128 bytes             d s q - m t
//   Q5_K     256    176  d | m | the same 12 bytes | 32 bytes: fifth bits | 128 bytes            d s q - m t
//   Q6_K     256    210  128 bytes: low nibbles | 64 bytes: high pairs | 16 signed scales | d    d s (q - 32)
//   MXFP4     32     17  a power of two, E8M0 | 16 bytes of E2M1, as Q4_0's nibbles              2^(x - 127) e2m1(q)
//
// IQ, TQ and NVFP4: io/gguf/grid_blocks.h.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fidelio::gguf {

// Codes of 32 columns that one of our integer formats may hold.
struct IntegerCoding {
  int bits;                                         // q is 0 .. 2^bits - 1
  bool minimum;                                     // w = d q + m, else d (q - 2^(bits - 1))
  void (*codes)(const uint8_t* block, uint8_t* q);  // of 32
};

struct BlockType {
  uint32_t number;
  std::string_view name;
  int64_t elements, bytes;                              // of a block; 1 element: no blocks
  void (*decode)(const uint8_t* block, float* values);  // of one block
  IntegerCoding integer;                                // bits 0: none
};

// Null for numbers that are not read here.
const BlockType* block_type(uint32_t number);
// "Q4_0, Q4_1, ...", for messages; and the name of a type that exists but is not read ("" for a number without one).
std::string_view known_block_types();
std::string_view name_of_unread_type(uint32_t number);

// `row` holds values.size() / elements blocks.
void decode_row(const BlockType& type, const uint8_t* row, std::span<float> values);

// FP16 d, and m of types with a minimum.
uint16_t scale_bits(const uint8_t* block);
float scale_of(const uint8_t* block);
float minimum_of(const uint8_t* block);
// The z from 0 to 2^bits - 1 with d q + m = d (q - z) for every q, exactly; nothing if there is none.
std::optional<int> exact_zero(float d, float m, int bits);

}  // namespace fidelio::gguf
