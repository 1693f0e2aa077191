// This file defines ModelConfig, which says what a model is, as numbers. hf_config.h fills it from a config.json, and
// everything else only reads it. It is a plain struct, so tests build one by hand.
//
// Letters used everywhere: L layers, d model dim, f ffn dim (of one expert), h heads, hk key/value heads, e head dim,
// v vocabulary.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "arch/family.h"
#include "arch/rope.h"
#include "arch/router.h"
#include "core/dtype.h"

namespace fidelio {

// A Mixer is the part of a layer that brings positions together: attention over a cache of all positions, or a gated
// delta net, which keeps a matrix for each head (Yang et al., arXiv 2412.06464).
enum class Mixer : uint8_t { attention, delta_net };

// A LayerKind says how the layers of one model differ: in their mixer, in the window and the heads of their attention,
// in their rotary embedding, and in their MLP. In models with two kinds of rotary embedding, the layers with a window
// are the local ones.
enum class RopeUse : uint8_t { global, local, none };
struct LayerKind {
  int window = 0;  // a position sees itself and the window - 1 before it; 0 means all before it
  RopeUse rope = RopeUse::global;
  Mixer mixer = Mixer::attention;
  bool dense = false;              // the layer has one MLP, although others have experts
  int kv_heads = 0, head_dim = 0;  // hk and e of this layer; 0 means those of the model
  bool keys_as_values = false;     // the layer's values are what k's matrix gives, before its norm and rotation
  int keys_of = -1;                // the earlier layer whose keys and values it reads; -1 means that it has its own
  int ffn = 0;                     // the ffn dim of the layer's MLP; 0 means that of the model
  bool operator==(const LayerKind&) const = default;
};

// DeltaNet holds the numbers of gated delta nets, which all such layers of a model share. Value head j reads the keys
// of head j / (value_heads / key_heads).
struct DeltaNet {
  int key_heads = 0, value_heads = 0;  // value_heads is a multiple of key_heads
  int key_dim = 0, value_dim = 0;      // the columns of a head
  int kernel = 0;                      // a convolution sees this many positions: a row and those before it
  Activation gate = Activation::silu;  // the function of the gate on a head's normed output: silu or sigmoid
  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t values() const { return int64_t{value_heads} * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // of the convolution: q, k and v of all heads
};

// The number of the predictor's layer (ModelConfig::predictor), which is none of the layers [0, L).
inline constexpr int kPredictorLayer = -2;

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int L = 0, d = 0, f = 0, h = 0, hk = 0, e = 0, v = 0;  // h is a multiple of hk; h * e need not be d; e is even
  Blocks blocks;
  float rms_eps = 1e-6f;
  Rope rope;
  std::optional<Rope> local_rope;  // for layers with RopeUse::local (Gemma 3, OLMo 3)
  int rotary = 0;                  // so many columns of a head, from the first, are rotated; 0 means all e
  int max_positions = 0;           // the context length that the model was made for
  bool tie_embeddings = false;     // the head is the embedding; lm_head.weight is absent, or equal
  bool qkv_bias = false;           // q, k, v have biases (Qwen2; attention_bias=true elsewhere)
  bool o_bias = false;             // o has a bias too (attention_bias=true of Llama and Qwen3; never Qwen2)
  bool mlp_bias = false;           // gate, up, down have biases (Llama's mlp_bias=true; gpt-oss's experts)
  int sliding_window = 0;          // the window of the layers that have one; 0 means none has
  std::vector<LayerKind> kinds;    // (L) where layers differ; if empty, all have the window and the global rope
  // These are the scalars of Granite and Gemma. Embeddings are multiplied by the first, scores by the second in place
  // of 1 / sqrt(e) (0 keeps that), and the outputs of attention and the MLP by the third. Logits are divided by the
  // fourth.
  double embedding_scale = 1, attention_scale = 0, residual_scale = 1, logit_divisor = 1;
  // Activation::clamped has these two numbers (step/gate.h).
  double gate_alpha = 1, gate_limit = 0;
  double logit_cap = 0;  // logits are cap * tanh(logits / cap) (Gemma); 0 means that they are left as they are
  // Each layer of Gemma 4's E models reads a row of so many values of its own for the token (build.h: per_layer). The
  // rows of all layers are one row of a table (v, L * per_layer). 0 means there is none.
  int per_layer = 0;
  double per_layer_scale = 1;  // the factor on a row of that table
  // The query at position p is multiplied by 1 + query_growth log(1 + floor(p / rope.original_max_positions))
  // (Ministral 3). With 0 it is left as it is.
  double query_growth = 0;
  // A mixture of experts has E = `experts` MLPs in place of one, and each row passes the k = `experts_per_row` that the
  // layer's router scores highest. Their outputs are summed with their scores as weights. If `renormalised` is true,
  // the weights of the k chosen experts are scaled to sum to 1. With E = 0 there is one MLP and no router.
  int experts = 0, experts_per_row = 0;
  bool renormalised = false;
  Router router;
  // In a model with experts, f is the ffn dim of an expert. dense_f is that of the layers without experts, and shared_f
  // that of an MLP that every row passes besides its experts (Blocks::shared_gate). 0 means there is none.
  int dense_f = 0, shared_f = 0;
  DeltaNet delta;  // of the layers whose mixer it is
  // Files of this model have a block that predicts one token more (multi-token prediction, Qwen3.5's mtp.*). It is a
  // layer of attention, kPredictorLayer, whose input is made of a row's token and of what the row before it led to.
  // Drafts are made by it; the model itself does not need it.
  bool predictor = false;
  // This is true for checkpoints made with QuaRot (quant/rotation.h), which only fidelio writes. The inputs of o and
  // down are multiplied by Hadamard matrices first, over the heads and over the f columns; the weights of o and down
  // contain the inverse.
  bool rotated = false;
  // This is the number of columns that Atom keeps in 8 bits (quant/atom/atom.h), in checkpoints that only fidelio
  // writes. They are the columns of every layer's inputs with the most energy. A weight has them twice, behind all
  // other columns. With 0 a weight has the columns of its input.
  int kept_columns = 0;
  std::optional<int> bos_id;  // config.json's own; stop ids also come from generation_config and the tokenizer
  std::vector<int> eos_ids;
  std::optional<DType> dtype;  // the dtype that config.json names: f32, f16 or bf16
};

// Returns true if frequencies would change beyond max_positions.
inline bool has_dynamic_rope(const ModelConfig& c) {
  return c.rope.type == RopeType::dynamic || (c.local_rope && c.local_rope->type == RopeType::dynamic);
}
// Returns the number of experts, or MLPs, that a row passes.
inline int slots_per_row(const ModelConfig& c) { return c.experts > 0 ? c.experts_per_row : 1; }
// Returns the window and the rotary embedding of a layer.
LayerKind kind_of(const ModelConfig& config, int layer);
inline bool has_delta_net(const ModelConfig& config, int layer) {
  return kind_of(config, layer).mixer == Mixer::delta_net;
}
inline bool has_experts(const ModelConfig& config, int layer) {
  return config.experts > 0 && !kind_of(config, layer).dense;
}
// Returns the columns of a head, and the number of key and value heads, of a layer with attention.
inline int head_dim_of(const ModelConfig& config, int layer) {
  const int own = kind_of(config, layer).head_dim;
  return own > 0 ? own : config.e;
}
inline int kv_heads_of(const ModelConfig& config, int layer) {
  const int own = kind_of(config, layer).kv_heads;
  return own > 0 ? own : config.hk;
}
// Tells whether a layer keeps keys and values: those without do not attend, or read those of an earlier layer.
inline bool keeps_keys(const ModelConfig& config, int layer) {
  const LayerKind kind = kind_of(config, layer);
  return kind.mixer == Mixer::attention && kind.keys_of < 0;
}
// Tells whether a layer has a matrix for its values.
inline bool has_values(const ModelConfig& config, int layer) {
  return keeps_keys(config, layer) && !kind_of(config, layer).keys_as_values;
}
// Returns the ffn dim of a layer's MLP, or of each of its experts.
inline int ffn_columns(const ModelConfig& config, int layer) {
  if (const int own = kind_of(config, layer).ffn; own > 0) return own;
  return config.experts > 0 && !has_experts(config, layer) ? config.dense_f : config.f;
}

inline int rotary_columns(const ModelConfig& config) { return config.rotary == 0 ? config.e : config.rotary; }
inline std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  return rope_inverse_frequencies(config.rope, rotary_columns(config));
}

}  // namespace fidelio
