// ModelConfig: what a model is, as numbers. hf_config.h fills it from a config.json; everything else only reads it.
// A plain struct: tests build one by hand.
//
// Letters as everywhere: L layers, d model dim, f ffn dim, h heads, hk key/value heads, e head dim, v vocabulary.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace fidelio {

// The four families differ in weights only: Qwen2 has q, k, v biases, Qwen3 an RMSNorm per head on q and k.
enum class Architecture : uint8_t { llama, mistral, qwen2, qwen3 };
std::string_view name_of(Architecture architecture);  // Hugging Face's class: "LlamaForCausalLM", ...

// plain: theta^(-2i/e). linear: all divided by factor. llama3: low frequencies divided, high ones kept, a ramp between
// (Llama 3.1). yarn: Peng et al. 2023 (arXiv 2309.00071), "NTK by parts" plus a factor on cos and sin.
enum class RopeType : uint8_t { plain, linear, llama3, yarn };

struct Rope {
  RopeType type = RopeType::plain;
  double theta = 10000;
  double factor = 1;               // linear, llama3, yarn: context stretched by this, >= 1
  double low_freq_factor = 1;      // llama3: wavelengths above original_max_positions / low are divided by factor ...
  double high_freq_factor = 4;     // ... those below original_max_positions / high are kept
  int original_max_positions = 0;  // llama3, yarn: context length before stretching
  double beta_fast = 32;           // yarn: dimensions turning more often than this over the original context are kept
  double beta_slow = 1;            // yarn: those turning less often are divided by factor
  double attention_factor = 1;  // yarn: factor on cos and sin, resolved from attention_factor, mscale, mscale_all_dim
  bool truncate = true;         // yarn: ramp ends rounded outwards to whole dimensions
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int L = 0, d = 0, f = 0, h = 0, hk = 0, e = 0, v = 0;  // h is a multiple of hk; h*e need not be d; e is even
  float rms_eps = 1e-6f;
  Rope rope;
  int max_positions = 0;        // context length the model was made for
  bool tie_embeddings = false;  // the head is the embedding; lm_head.weight is absent (or ignored)
  bool qkv_bias = false;        // q, k, v have biases (Qwen2; attention_bias=true elsewhere)
  bool o_bias = false;          // o has one too (attention_bias=true of Llama and Qwen3; never Qwen2)
  bool mlp_bias = false;        // gate, up, down have biases (Llama's mlp_bias=true)
  bool qk_norm = false;         // Qwen3: RMSNorm over e on each head of q and k, before RoPE
  int sliding_window = 0;       // in every layer a position sees itself and the sliding_window - 1 before it; 0: all
  std::optional<int> bos_id;    // config.json's own; stop ids are united with generation_config's and the tokenizer's
  std::vector<int> eos_ids;
  std::optional<DType> dtype;  // the dtype config.json names: f32, f16 or bf16
};

// e/2 angular frequencies, in radians per position, for dimension pairs (i, i + e/2). Follows transformers'
// ROPE_INIT_FUNCTIONS operation by operation in FP32 (the models were trained with those roundings), except that
// theta^x is rounded correctly where torch's vector pow may be 1 ulp off: then a frequency differs by at most 2 ulp.
std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

// The factor on cos and sin: 1 except for yarn.
inline float rope_attention_factor(const ModelConfig& config) {
  return static_cast<float>(config.rope.attention_factor);
}

}  // namespace fidelio
