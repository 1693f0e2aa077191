// This file reads linears whose weights another program keeps as small floating-point numbers with scales.
//
//   FP8   weight F8_E4M3 (out, in)         w = s q; weight_scale, or weight_scale_inv as DeepSeek and Qwen call it, has
//                                          one s, one a row (out) or (out, 1), or one for each block of the matrix
//   NVFP4 two E2M1 a byte (out, in / 2)    w = g (s q), the even column in the low bits: weight_packed with
//                                          weight_global_scale = 1 / g (compressed-tensors), or weight with
//                                          weight_scale_2 = g (ModelOpt); weight_scale F8_E4M3 (out, in / 16)
//   MXFP4 weight_packed as above           w = s q; weight_scale U8 (out, in / 32): E8M0
//
// NVFP4, MXFP4 and FP8 with a scale a row or one in all become our formats fp4g16, mxfp4 and fp8 without rounding, but
// for the last bit of FP32 in g. FP8 by blocks has no format here and is decoded to F32.
#pragma once
#include <string>

#include "io/model_source.h"
#include "io/quantised/packed.h"

namespace fidelio::quantised {

// Tells whether a module's weights are floating-point numbers of this kind.
bool holds_floats(const TensorFiles& files, const std::string& module);

// Opens some rows of such a module. `blocks` is the block size (rows, columns) that the configuration names. Sets `why`
// where the weights have to be decoded. Throws Error naming the tensor that is missing, has another shape, or holds a
// scale or a code that is no number.
ForeignLinear open_floats(const TensorFiles& files, const Place& place, const std::pair<int64_t, int64_t>& blocks,
                          std::string* why);

}  // namespace fidelio::quantised
