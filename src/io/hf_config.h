// Reads a Hugging Face config.json of the families of arch/model_config.h, with the keys of transformers 4 (rope_theta,
// rope_scaling, torch_dtype) and 5 (rope_parameters, dtype). Of a model that sees images too (Mistral3, Gemma3) it is
// the text model's: text_config, with what the outer config alone says.
//
// Keys that say what the weights are (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
// vocab_size) must be there; a missing optional key has transformers' default for that family. What this program would
// compute differently from transformers is refused, never ignored: the Error names file, key, what was expected and
// what was found. Refused so: other architectures, other activations, other rope types, rope parameters
// per layer type and partial rotation outside the families that have them, capped logits, attention in both
// directions, already quantised checkpoints.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "arch/model_config.h"
#include "core/foreign/text_files.h"

namespace fidelio {

ModelConfig load_config(const TextFiles& files);                           // config.json
ModelConfig parse_config(std::string_view json, const std::string& file);  // `file` is for messages
// config.json as an object, the text model's own where it is part of another.
nlohmann::json text_config(const TextFiles& files);

}  // namespace fidelio
