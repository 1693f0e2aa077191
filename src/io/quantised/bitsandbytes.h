// This file reads linears that bitsandbytes keeps in 4 bits (NF4 or its FP4), which hold no format of ours and are
// decoded to F32.
//
//   weight u8 (out in / 2, 1)               codes of the matrix read row by row, the first of two in the high bits
//   weight.quant_map F32 (16)               the value of each code
//   weight.absmax F32 (blocks)              a scale for each `blocksize` codes; a block may begin in one row and end in
//                                           another
//   weight.absmax u8 (blocks)               with a scale of its own: nested_quant_map[a] nested_absmax + nested_offset,
//   weight.nested_quant_map F32 (256)       where nested_absmax has a number for each `nested_blocksize` blocks
//   weight.nested_absmax F32
//   weight.quant_state.bitsandbytes__nf4    the numbers named here and the shape, as JSON in bytes
#pragma once
#include "io/model_source.h"
#include "io/quantised/packed.h"

namespace fidelio::quantised {

// A module with this tensor, or the same with fp4, is one of 4 bits.
inline constexpr const char* kNf4State = ".weight.quant_state.bitsandbytes__nf4";
inline constexpr const char* kFp4State = ".weight.quant_state.bitsandbytes__fp4";

// Opens some rows of such a module. Throws Error naming the tensor that is missing or has another shape.
ForeignLinear open_bitsandbytes(const TensorFiles& files, const Place& place, std::string* why);

}  // namespace fidelio::quantised
