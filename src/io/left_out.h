// This file finds weights in a folder that are not read.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "arch/weight_names.h"
#include "io/tensor_files.h"

namespace fidelio {

// Returns a line for each kind of weights that nothing reads, with their number and size:
//
//   weights, and biases other than 0, in layers of the text model, which transformers ignores too; a config.json that
//     lacks its attention_bias has this effect
//   the part of a model that sees images
//   layers that predict further tokens ("mtp.")
//
// Other tensors outside the layers, and buffers, do not count.
std::vector<std::string> left_out(const ModelConfig& config, const TensorFiles& files);

// Tells whether a model has the whole block that predicts a token more (ModelConfig::predictor): its files hold every
// tensor of it, its matrices as plain numbers, or its source knows how to read a matrix.
bool has_predictor(const ModelConfig& config, const TensorFiles& files, const std::function<bool(LinearId)>& is_known);

}  // namespace fidelio
