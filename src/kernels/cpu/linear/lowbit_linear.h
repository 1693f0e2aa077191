// This file declares the integer forms of linear.h's prepare(), and how codes become the planes of a packed block; both
// layouts are drawn in lowbit.h.
#pragma once
#include <span>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/lowbit.h"
#include "kernels/cpu/linear/lowbit_split.h"

namespace fidelio::cpu {

// These functions serve the forms i8x2, i8 and i16. `group` is the number of columns sharing a scale, a multiple of
// 32; `scratch` is 64-byte aligned. The first returns the bytes of scratch that are needed, the second fills in rows
// [first, last).
size_t prepared_integer_bytes(Form form, int64_t rows, int64_t columns, int64_t group);
Prepared prepare_integers(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group,
                          IntegerBits bits, std::byte* scratch, int64_t first, int64_t last);

// Places the planes of codes of `bits` bits in a packed block whose other parts end at `end`, and sets its size.
void place_planes(lowbit::Layout& l, int bits, int64_t end);
// Packs the codes of a block's rows into its planes, which are zeros before.
void pack_codes(const Codes& codes, const lowbit::Layout& l, int64_t block, uint8_t* base);
// Packs what groups of columns have (scales, FP4's offsets) of a block's rows, from (out, groups) to groups x 16
// elements.
void pack_groups(const Tensor& groups, const lowbit::Layout& l, int64_t block, uint8_t* to);
// Reads the first codes.size() codes of row r of a block.
void read_codes(const lowbit::PlaneList& planes, const uint8_t* base, int r, std::span<uint8_t> codes);

}  // namespace fidelio::cpu
