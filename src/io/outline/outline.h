// A model whose config.json is there and whose weights are not. Its tensors have names, types and shapes, and zeros for
// values: a Checkpoint of it says how large everything is, and nothing of what the weights are.
#pragma once
#include <string>

#include "io/model_source.h"

namespace fidelio {

// Says whether a folder has a config.json and no file of weights that anybody here could read or explain.
bool has_config_alone(const std::string& path);

// Matrices have the type that config.json names ("dtype", "torch_dtype"), or BF16 where it names none, which a note then
// says. Throws Error for a quantised model, whose sizes follow from its files alone.
ModelSource open_outline(const std::string& folder);

}  // namespace fidelio
