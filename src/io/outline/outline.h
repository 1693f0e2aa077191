// This file opens a model whose config.json exists and whose weights do not. Its tensors have names, types and shapes,
// and zeros for values. A Checkpoint of it tells how large everything is, and nothing about the weights.
#pragma once
#include <string>

#include "io/model_source.h"

namespace fidelio {

// Tells whether a folder has a config.json and no file of weights that this program could read or explain.
bool has_config_alone(const std::string& path);

// Opens the outline. Matrices have the type that config.json names ("dtype", "torch_dtype"), or BF16 where it names
// none, which a note then says. Throws Error for a quantised model, whose sizes follow only from its files.
ModelSource open_outline(const std::string& folder);

}  // namespace fidelio
