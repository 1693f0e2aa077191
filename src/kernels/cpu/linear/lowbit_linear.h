// What the integer forms of linear.h's prepare() are made of; the layout is drawn in lowbit.h.
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Forms i8x2, i8 and i16. group: columns sharing a scale, a multiple of 32. Scratch is 64-byte aligned.
size_t prepared_integer_bytes(Form form, int64_t rows, int64_t columns, int64_t group);
Prepared prepare_integers(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group,
                          IntegerBits bits, std::byte* scratch, int64_t first, int64_t last);

}  // namespace fidelio::cpu
