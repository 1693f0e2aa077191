// This file finds weights in a folder that its config.json does not describe.
#pragma once
#include <optional>
#include <string>

#include "arch/model_config.h"
#include "io/tensor_files.h"

namespace fidelio {

// Returns a line that names the weights, and biases other than 0, in layers of the text model that nothing reads, if
// there are any. transformers ignores them too; a config.json that lacks its attention_bias has this effect. Tensors
// outside the layers, and buffers, do not count.
std::optional<std::string> left_out(const ModelConfig& config, const TensorFiles& files);

}  // namespace fidelio
