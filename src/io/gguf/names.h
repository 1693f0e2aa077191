// How GGUF calls the tensors of a model (TENSOR_NAMES of gguf-py), for reading and writing.
#pragma once
#include <string>

#include "arch/model_config.h"
#include "arch/weight_names.h"

namespace fidelio::gguf {

std::string tensor_name(LinearId id);  // without ".weight" or ".bias"
std::string tensor_name(int layer, Norm norm);

}  // namespace fidelio::gguf
