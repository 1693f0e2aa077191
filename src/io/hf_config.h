// Reads a Hugging Face config.json: Llama 2/3.x, Mistral, Qwen2/2.5 and Qwen3 (dense), with the keys of transformers 4
// (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype).
//
// Keys that say what the weights are (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
// vocab_size) must be there; a missing optional key has transformers' default for that family. What this program would
// compute differently from transformers is refused, never ignored: the Error names file, key, what was expected and
// what was found. Refused so: other architectures, other activations, other rope types (dynamic, longrope, ...), rope
// parameters per layer type, partial rotation, sliding windows in some layers only (Qwen's max_window_layers), already
// quantised checkpoints.
#pragma once
#include <string>
#include <string_view>

#include "arch/model_config.h"
#include "core/text_files.h"

namespace fidelio {

ModelConfig load_config(const TextFiles& files);                           // config.json
ModelConfig parse_config(std::string_view json, const std::string& file);  // `file` is for messages

}  // namespace fidelio
