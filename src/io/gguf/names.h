// This file gives the names of a model's tensors in GGUF (TENSOR_NAMES of gguf-py), for reading and writing. It also
// knows the tokens whose texts mark them as ends of an answer.
#pragma once
#include <string>
#include <string_view>

#include "arch/model_config.h"
#include "arch/model_weights.h"
#include "arch/weight_names.h"

namespace fidelio::gguf {

// Returns the number that a file gives to a layer. The layer of the block that predicts a token more
// (ModelConfig::predictor) stands behind those of the model.
inline int layer_in_file(const ModelConfig& config, int layer) { return layer == kPredictorLayer ? config.L : layer; }
inline LinearId id_in_file(const ModelConfig& config, LinearId id) {
  return {layer_in_file(config, id.layer), id.role, id.expert};
}

// Returns the name without ".weight" or ".bias". An expert has the name of the three-dimensional tensor that holds all
// experts of its layer.
std::string tensor_name(const ModelConfig& config, LinearId id);
std::string older_expert_name(LinearId id);  // Older files had a tensor for each expert: "blk.3.ffn_gate.5".
std::string router_tensor_name(int layer);
std::string router_tensor_name(int layer, RouterTensor which);
std::string fused_gates_name(int layer);  // It holds b and a of a delta net where they are one (io/gguf/orders.h).
std::string tensor_name(const ModelConfig& config, int layer, Norm norm);
std::string tensor_name(int layer, DeltaTensor which);

// Tells whether a token of this text ends an answer even if no key says so. llama.cpp knows such tokens by their text
// (its special_eog_ids), and so files seldom name more than one.
bool ends_an_answer(std::string_view token);

}  // namespace fidelio::gguf
