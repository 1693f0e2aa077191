// This file names the families of models, and the parts that the layers of each are made of.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace fidelio {

// A supported architecture has one row in the table of families below, with its Hugging Face class and model type.
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
  gemma4,
  mixtral,
  olmoe,
  qwen3_moe,
  granite_moe,
  qwen3_next,
  qwen3_5,
  qwen3_5_moe,
  qwen2_moe,
  glm4_moe,
  minimax_m2,
  gpt_oss
};

enum class Activation : uint8_t { silu, gelu_tanh, sigmoid, clamped };
// QkNorm says how RMSNorm is applied to q and k before they are rotated: not at all, to each head over its e columns
// (Qwen3, Gemma 3), or to all heads together over h e and hk e columns (OLMo).
enum class QkNorm : uint8_t { none, head, width };
// ExpertFiles says under which names files keep the experts of a layer.
//   none       The layer has no experts.
//   each       Each matrix has a name of its own, mlp.experts.5.gate_proj (Qwen3, OLMoE, GLM).
//   lettered   Each matrix has a name of its own, block_sparse_moe.experts.5.w1 (Mixtral,
//              MiniMax).
//   stacked    All experts are in two tensors of three dimensions (Granite).
//   joined     All experts are in two tensors of three dimensions, mlp.experts.gate_up_proj and down_proj (Qwen3.5), or
//              each matrix has its own name as for `each` (Qwen3-Next).
//   alternating  As for `joined`, but rows of gate and up alternate, and a matrix lies by columns: gate_up_proj is
//              (E, d, 2 f) and down_proj is (E, f, d) (gpt-oss).
//   beside     All experts are in two tensors of three dimensions, experts.gate_up_proj and down_proj, beside the MLP
//              that every row passes, which has the names of an MLP (Gemma 4).
enum class ExpertFiles : uint8_t { none, each, lettered, stacked, joined, alternating, beside };

// Blocks says which parts the layers of a family are made of. It holds everything besides numbers in which one family
// differs from another. step/build.h makes the operations of a step from it.
struct Blocks {
  bool norm_before = true;     // the inputs of attention and the MLP are normed
  bool norm_after = false;     // the outputs of attention and the MLP are normed before they are added to the stream
  bool norm_plus_one = false;  // files hold w - 1 for every norm's weight w
  QkNorm qk_norm = QkNorm::none;
  Activation activation = Activation::silu;  // the function of the gate
  bool fused = false;                        // files hold q, k, v as one matrix, and gate, up as one
  bool delta_fused = false;     // files hold a delta net's q, k, v, z as one matrix, and b, a as one, by key head
  bool attention_gate = false;  // q's matrix holds, by head, e rows of q and e rows of a gate on attention's output
  bool sinks = false;           // each head has a logit of its own that joins its softmax and gives nothing
  bool shared_gate = true;      // the output of a shared expert is multiplied by the sigmoid of a gate of its own
  bool value_norm = false;      // values are normed by head too, without a weight
  bool layer_scalar = false;    // the stream behind a layer is multiplied by a number of the layer
  ExpertFiles experts = ExpertFiles::none;  // where the MLP is a mixture of experts, how files name them
};

// A Family is one row of the table: an architecture, its names in config.json, and its parts.
struct Family {
  Architecture architecture;
  std::string_view class_name;  // for example "LlamaForCausalLM"
  std::string_view model_type;  // for example "llama"
  Blocks blocks;
};
std::span<const Family> families();
const Family& family_of(Architecture architecture);
inline std::string_view name_of(Architecture architecture) { return family_of(architecture).class_name; }

}  // namespace fidelio
