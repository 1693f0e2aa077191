// This file opens a GGUF file as a source of weights (io/model_source.h).
#pragma once
#include <string>

#include "io/model_source.h"

namespace fidelio::gguf {

// Opens the weights. Codes of Q4_0, Q5_0 and Q8_0 become int4g32, int5g32 and int8g32, which hold them exactly. Codes
// of Q4_1 and Q5_1 become int4g32z and int5g32z where every minimum is a whole number of steps, and F32 otherwise. All
// other blocks become F32. Throws Error for a tensor that the model does not use or that has the wrong shape.
ModelSource open_source(const std::string& path);

TextFiles open_texts(const std::string& path);  // These are config.json and the tokenizer's files.

}  // namespace fidelio::gguf
