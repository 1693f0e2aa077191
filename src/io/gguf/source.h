// A GGUF file as a source of weights (io/model_source.h).
#pragma once
#include <string>

#include "io/model_source.h"

namespace fidelio::gguf {

// Codes of Q4_0, Q5_0 and Q8_0 become int4g32, int5g32 and int8g32, which hold them exactly; those of Q4_1 and Q5_1
// become int4g32z and int5g32z where every minimum is a whole number of steps, and F32 otherwise; all other blocks
// become F32. Every tensor must be one that the model uses, of the right shape.
ModelSource open_source(const std::string& path);

TextFiles open_texts(const std::string& path);  // config.json and the tokenizer's files

}  // namespace fidelio::gguf
