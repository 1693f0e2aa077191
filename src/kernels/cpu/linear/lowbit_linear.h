// This file declares the integer forms of linear.h's prepare(); their layout is drawn in lowbit.h.
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// These functions serve the forms i8x2, i8 and i16. `group` is the number of columns sharing a scale, a multiple of
// 32; `scratch` is 64-byte aligned. The first returns the bytes of scratch that are needed, the second fills in rows
// [first, last).
size_t prepared_integer_bytes(Form form, int64_t rows, int64_t columns, int64_t group);
Prepared prepare_integers(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group,
                          IntegerBits bits, std::byte* scratch, int64_t first, int64_t last);

}  // namespace fidelio::cpu
