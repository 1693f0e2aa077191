// This file reads a Hugging Face config.json of the families in arch/model_config.h, with the keys of transformers 4
// (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype). For a model that sees images (Mistral3,
// Gemma3, Qwen3.5) it reads the config of the text model: text_config, together with settings that only the outer
// config has.
//
// Keys that describe the weights (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size)
// must be there; a missing optional key has transformers' default for that family. Settings that this program would
// compute differently from transformers are refused, never ignored. The Error names file, key, what was expected and
// what was found. The refused settings are: other architectures, other activations, other rope types, rope parameters
// per layer type and partial rotation outside the families that have them, capped logits, attention in both directions,
// and checkpoints that are already quantised.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "arch/model_config.h"
#include "core/foreign/text_files.h"

namespace fidelio {

ModelConfig load_config(const TextFiles& files);                           // It reads config.json.
ModelConfig parse_config(std::string_view json, const std::string& file);  // `file` is for messages.
// Returns config.json as an object, or the text model's own part of it.
nlohmann::json text_config(const TextFiles& files);

}  // namespace fidelio
