// This file names the tensors of gpt-oss fine-tunes whose files have a tensor for each expert, where the release has
// one for all experts of a layer.
#pragma once
#include "arch/weight_names.h"
#include "io/tensor_files.h"

namespace fidelio {

// Returns `stacked`, the place of an expert's weight (fused_name) or bias (fused_bias_name); or, where the files lack
// its tensor and have one of the expert's own, the place in that.
FusedName unstacked_name(const TensorFiles& files, LinearId id, FusedName stacked, int experts);

}  // namespace fidelio
