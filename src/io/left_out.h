// What a folder holds of a model beside what its config.json describes.
#pragma once
#include <optional>
#include <string>

#include "arch/model_config.h"
#include "io/tensor_files.h"

namespace fidelio {

// A line that names the weights, and biases other than 0, of the text model's layers that nothing reads, if there are
// any. transformers leaves them out likewise; a config.json that lacks its attention_bias looks like that. What is not in a
// layer, and buffers, are no sign of anything.
std::optional<std::string> left_out(const ModelConfig& config, const TensorFiles& files);

}  // namespace fidelio
