// This file opens a Hugging Face folder whose linears GPTQ, AWQ, compressed-tensors, ModelOpt or the writers of
// FP8 quantised, as a source (io/model_source.h).
#pragma once
#include <string>

#include "io/model_source.h"

namespace fidelio::quantised {

// Opens a folder. One that nobody quantised, or that fidelio did, is opened as it is. So is one of another method,
// which reading its config.json refuses by name.
ModelSource open_source(const std::string& folder);

}  // namespace fidelio::quantised
