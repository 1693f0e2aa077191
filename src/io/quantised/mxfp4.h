// This file reads linears in MXFP4 as gpt-oss's release has them: of each layer's experts two tensors for gate and up,
// whose rows alternate, and two for down.
//
//   gate_up_proj_blocks  u8 (E, 2 f, d / 32, 16): byte i of a block has column 2 i in its low bits and 2 i + 1 above
//   gate_up_proj_scales  u8 (E, 2 f, d / 32): E8M0
//
// These are the codes and scales of our format mxfp4, so nothing is rounded.
#pragma once
#include "io/model_source.h"

namespace fidelio::quantised {

// Adds the linears that the files have in MXFP4. Throws Error, with `where`, if there are none.
void read_mxfp4(ModelSource& source, const ModelConfig& model, const std::string& where);

}  // namespace fidelio::quantised
