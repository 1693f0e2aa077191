// ModelConfig: what a model is, as numbers. hf_config.h fills it from a config.json; everything else only reads it.
// A plain struct: tests build one by hand.
//
// Letters as everywhere: L layers, d model dim, f ffn dim (of one expert), h heads, hk key/value heads, e head dim, v vocabulary.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace fidelio {

// A row of the table of blocks below, by Hugging Face's class and model type.
enum class Architecture : uint8_t {
  llama,
  mistral,
  qwen2,
  qwen3,
  smollm3,
  ministral,
  ministral3,
  phi3,
  granite,
  olmo2,
  olmo3,
  gemma3,
  mixtral,
  olmoe,
  qwen3_moe,
  granite_moe
};

enum class Activation : uint8_t { silu, gelu_tanh };
// RMSNorm of q and k before they are turned: none, of each head over e (Qwen3, Gemma 3), or of all heads together over
// h e and hk e (OLMo).
enum class QkNorm : uint8_t { none, head, width };
// How files keep the experts of a layer: there are none; each under a name of its own, mlp.experts.5.gate_proj (Qwen3,
// OLMoE) or block_sparse_moe.experts.5.w1 (Mixtral); all in two tensors of three dimensions (Granite).
enum class ExpertFiles : uint8_t { none, each, lettered, stacked };

// The parts that a family's layers are made of: everything in which one differs from another beside numbers. step/build.h
// makes the operations of a step from them.
struct Blocks {
  bool norm_before = true;     // of what attention and the MLP see
  bool norm_after = false;     // of what they add to the stream
  bool norm_plus_one = false;  // files hold w - 1 of every norm's weight w
  QkNorm qk_norm = QkNorm::none;
  Activation activation = Activation::silu;  // of the gate
  bool fused = false;                        // files hold q, k, v as one matrix, and gate, up
  ExpertFiles experts = ExpertFiles::none;   // the MLP is a mixture of experts
};

// The table of blocks.
struct Family {
  Architecture architecture;
  std::string_view class_name;  // "LlamaForCausalLM"
  std::string_view model_type;  // "llama"
  Blocks blocks;
};
std::span<const Family> families();
const Family& family_of(Architecture architecture);
inline std::string_view name_of(Architecture architecture) { return family_of(architecture).class_name; }

// plain: theta^(-2i/e). linear: all divided by factor. llama3: low frequencies divided, high ones kept, a ramp between
// (Llama 3.1). yarn: Peng et al. 2023 (arXiv 2309.00071), "NTK by parts" plus a factor on cos and sin. longrope: Ding et
// al. 2024 (arXiv 2402.13753), a divisor for each frequency, one list up to the original context and one beyond, plus a
// factor on cos and sin. dynamic: "dynamic NTK", plain up to max_positions; theta grows with a longer sequence, which
// would turn every key anew at each token and is not computed.
enum class RopeType : uint8_t { plain, linear, dynamic, llama3, yarn, longrope };

struct Rope {
  RopeType type = RopeType::plain;
  double theta = 10000;
  double factor = 1;               // linear, llama3, yarn: context stretched by this, >= 1
  double low_freq_factor = 1;      // llama3: wavelengths above original_max_positions / low are divided by factor ...
  double high_freq_factor = 4;     // ... those below original_max_positions / high are kept
  int original_max_positions = 0;  // llama3, yarn, longrope: context length before stretching
  double beta_fast = 32;           // yarn: dimensions turning more often than this over the original context are kept
  double beta_slow = 1;            // yarn: those turning less often are divided by factor
  double attention_factor = 1;     // yarn, longrope: factor on cos and sin, resolved from attention_factor, mscale, ...
  bool truncate = true;            // yarn: ramp ends rounded outwards to whole dimensions
  std::vector<double> short_divisors, long_divisors;  // longrope: of each pair's frequency
};

// Where layers differ. Local layers are those with a window in models that have other ropes for them.
enum class RopeUse : uint8_t { global, local, none };
struct LayerKind {
  int window = 0;  // a position sees itself and the window - 1 before it; 0: all
  RopeUse rope = RopeUse::global;
  bool operator==(const LayerKind&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int L = 0, d = 0, f = 0, h = 0, hk = 0, e = 0, v = 0;  // h is a multiple of hk; h*e need not be d; e is even
  Blocks blocks;
  float rms_eps = 1e-6f;
  Rope rope;
  std::optional<Rope> local_rope;  // of layers with RopeUse::local (Gemma 3, OLMo 3)
  int rotary = 0;                  // RoPE turns so many columns of a head, from the first; 0: all e
  int max_positions = 0;           // context length the model was made for
  bool tie_embeddings = false;     // the head is the embedding; lm_head.weight is absent, or equal
  bool qkv_bias = false;           // q, k, v have biases (Qwen2; attention_bias=true elsewhere)
  bool o_bias = false;             // o has one too (attention_bias=true of Llama and Qwen3; never Qwen2)
  bool mlp_bias = false;           // gate, up, down have biases (Llama's mlp_bias=true)
  int sliding_window = 0;          // of the layers that have one; 0: none has
  std::vector<LayerKind> kinds;    // (L) where layers differ; empty: all have the window and the global rope
  // Granite's and Gemma's scalars: embeddings times, scores times instead of 1 / sqrt(e) (0: that), what attention and
  // the MLP add times, logits divided by.
  double embedding_scale = 1, attention_scale = 0, residual_scale = 1, logit_divisor = 1;
  // q of position p is multiplied by 1 + beta log(1 + floor(p / rope.original_max_positions)) (Ministral 3); 0: it is not.
  double query_growth = 0;
  // A mixture of experts: E MLPs in place of one, of which a row passes those k to which the layer's router gives most.
  // What they give is summed under the router's softmax; `renormalised`: under the part of it that the k have, made to
  // sum to 1. E 0: one MLP and no router.
  int experts = 0, experts_per_row = 0;
  bool renormalised = false;
  // QuaRot (quant/rotation.h): what o and down are multiplied by is turned first, by Hadamard matrices over the heads and
  // over the f columns; their weights hold the way back. Of our own checkpoints alone.
  bool rotated = false;
  // Atom (quant/atom/atom.h): so many columns of every layer's inputs, those with most energy, are kept in 8 bits; a weight
  // has them twice, behind all others. 0: the columns are the input's. Of our own checkpoints alone.
  int kept_columns = 0;
  std::optional<int> bos_id;  // config.json's own; stop ids are united with generation_config's and the tokenizer's
  std::vector<int> eos_ids;
  std::optional<DType> dtype;  // the dtype config.json names: f32, f16 or bf16
};

// Whether frequencies would change beyond max_positions.
inline bool has_dynamic_rope(const ModelConfig& c) {
  return c.rope.type == RopeType::dynamic || (c.local_rope && c.local_rope->type == RopeType::dynamic);
}
inline int slots_per_row(const ModelConfig& c) { return c.experts > 0 ? c.experts_per_row : 1; }  // MLPs it passes
// The window and rope of a layer.
LayerKind kind_of(const ModelConfig& config, int layer);

// Angular frequencies in radians per position for pairs of columns (i, i + rotary / 2) of a head, rotary / 2 of them.
// Follows transformers' ROPE_INIT_FUNCTIONS operation by operation in FP32 (the models were trained with those
// roundings), except that theta^x is rounded correctly where torch's vector pow may be 1 ulp off: then a frequency
// differs by at most 2 ulp. `context`: the longest sequence, which chooses longrope's divisors (transformers: call by call).
std::vector<float> rope_inverse_frequencies(const Rope& rope, int rotary, int64_t context = 0);
inline int rotary_columns(const ModelConfig& config) { return config.rotary == 0 ? config.e : config.rotary; }
inline std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  return rope_inverse_frequencies(config.rope, rotary_columns(config));
}

}  // namespace fidelio
