// How GGUF calls the tensors of a model (TENSOR_NAMES of gguf-py), for reading and writing; and its tokens whose names say
// what they are.
#pragma once
#include <string>
#include <string_view>

#include "arch/model_config.h"
#include "arch/weight_names.h"

namespace fidelio::gguf {

// Without ".weight" or ".bias". Of an expert, the tensor of three dimensions that all of a layer are in.
std::string tensor_name(LinearId id);
std::string older_expert_name(LinearId id);  // files of before had a tensor for each: "blk.3.ffn_gate.5"
std::string router_tensor_name(int layer);
std::string tensor_name(int layer, Norm norm);

// A token of this text ends an answer whether a key says so or not: that is how llama.cpp knows it (its
// special_eog_ids), and why files seldom name more than one.
bool ends_an_answer(std::string_view token);

}  // namespace fidelio::gguf
