// This file takes GGUF's blocks of K-quants (Q2_K to Q6_K), IQ4_XS, IQ4_NL, Q4_1 and Q5_1 apart and puts them together
// again. Our formats of super-blocks (formats/linear_weight.h) hold their fields as they are, so nothing is rounded
// either way. Blocks of 32 columns are super-blocks of one group, whose scale and minimum are 1. io/gguf/blocks.h draws
// the bytes; IQ4's are
//
//   IQ4_XS  256  136  d | u16: two high bits of 8 scales | 4 bytes: their low nibbles | 128 bytes   d (s - 32) table[q]
//   IQ4_NL   32   18  d | 16 bytes: low nibbles elements 0-15, high 16-31                           d table[q]
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "formats/linear_weight.h"
#include "io/gguf/orders.h"

namespace fidelio::gguf {

// A Field is `width` bits, from bit `shift` of a byte on, which are the bits of a value from bit `up` on.
struct Field {
  int byte, shift, width, up;
};
// A value has one field or two; the second one's width is 0 if there is one.
using Fields = std::array<Field, 2>;

// A SuperType says where the fields of a type of block lie.
struct SuperType {
  uint32_t number;
  uint32_t file_type;  // This is the number of a whole file of this type.
  FormatSpec spec;     // It is our format, whose `super` is the block's columns.
  int bytes;
  int scale_at, minimum_at;  // d and m begin at these bytes. Blocks of 32 columns add m, which is kept with a minus.
  int bias;                  // The stored scale is s + bias.
  // It returns the fields of the first of 16 columns; those of the next are a byte further, or a bit further in the
  // second field of Q5_1.
  Fields (*codes)(int chunk);
  Fields (*scale)(int group);    // If it is null, every scale is 1.
  Fields (*minimum)(int group);  // If it is null, so is every minimum of a type with minima.
};

// Returns null for other types. The second finds the type that holds a format.
const SuperType* super_type(uint32_t number);
const SuperType* super_type(const FormatSpec& spec);

// These are the fields of one block.
struct SuperFields {
  uint16_t d = 0, m = 0;
  std::array<uint8_t, 256> codes{};
  std::array<int, 16> scale{}, minimum{};
};
SuperFields read_block(const SuperType& type, const uint8_t* block);
// Throws an Error if a scale or minimum does not fit its field.
void write_block(const SuperType& type, const SuperFields& fields, uint8_t* block);
// Writes the FP32 values of one block.
void decode_block(const SuperType& type, const uint8_t* block, float* values);

// Returns the format that holds rows of this type whose columns stand in the file in this order, or nothing if they are
// moved in other runs than whole super-blocks or their halves.
std::optional<FormatSpec> super_format(const SuperType& type, const Order& columns);
// Reads a matrix whose rows row(r) returns.
LinearWeight read_super(const SuperType& type, const FormatSpec& spec, int64_t out, int64_t in,
                        const std::function<const uint8_t*(int64_t)>& row, const Order& columns);
// Returns one row as the file has it; `columns` says which of our columns stands at each place, or is empty.
std::string write_super_row(const LinearWeight& w, int64_t row, const Order& columns);

}  // namespace fidelio::gguf
