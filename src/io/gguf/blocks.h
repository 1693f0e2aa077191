// This file decodes GGUF's element types, which are blocks of codes with their scales. It is written from the public
// description of the blocks, and w is exactly the FP32 value that llama.cpp gives the codes.
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
// IQ4 is in io/gguf/super/super_blocks.h; the other types IQ, TQ and NVFP4 are in io/gguf/grid_blocks.h.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fidelio::gguf {

// This describes codes that one of our integer formats may hold, 32 columns at a time.
struct IntegerCoding {
  int bits;                                         // q is 0 .. 2^bits - 1.
  bool minimum;                                     // If true, w = d q + m, else w = d (q - 2^(bits - 1)).
  void (*codes)(const uint8_t* block, uint8_t* q);  // It writes the codes of 32 columns.
};

struct BlockType {
  uint32_t number;
  std::string_view name;
  int64_t elements, bytes;  // These are the elements and bytes of a block; a type of 1 element has no blocks.
  void (*decode)(const uint8_t* block, float* values);  // It decodes one block.
  IntegerCoding integer;                                // If its bits are 0, no integer format holds the codes.
};

// Returns null for types that cannot be read.
const BlockType* block_type(uint32_t number);
// The first returns "Q4_0, Q4_1, ...", for messages. The second returns the name of a type that exists but cannot be
// read, or "" for a number without one.
std::string_view known_block_types();
std::string_view name_of_unread_type(uint32_t number);

// `row` holds values.size() / elements blocks.
void decode_row(const BlockType& type, const uint8_t* row, std::span<float> values);

// These return the FP16 d of a block, and the m of types with a minimum.
uint16_t scale_bits(const uint8_t* block);
float scale_of(const uint8_t* block);
float minimum_of(const uint8_t* block);
// Returns the z from 0 to 2^bits - 1 for which d q + m = d (q - z) holds exactly for every q, or nothing if there is
// none.
std::optional<int> exact_zero(float d, float m, int bits);

}  // namespace fidelio::gguf
