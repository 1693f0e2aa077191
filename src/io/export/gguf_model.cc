#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "io/export/common.h"
#include "io/export/gguf.h"
#include "io/gguf/config.h"
#include "io/gguf/sampling.h"
#include "text/chat_template.h"

namespace fidelio::exporting {
namespace {

struct Family {
  Architecture architecture;
  std::string_view name;  // This is the general.architecture of GGUF.
};
constexpr std::array<Family, 16> kFamilies = {{{Architecture::gemma4, "gemma4"},
                                               {Architecture::llama, "llama"},
                                               {Architecture::mistral, "llama"},
                                               {Architecture::mixtral, "llama"},
                                               {Architecture::qwen2, "qwen2"},
                                               {Architecture::qwen3, "qwen3"},
                                               {Architecture::qwen3_moe, "qwen3moe"},
                                               {Architecture::olmoe, "olmoe"},
                                               {Architecture::granite_moe, "granitemoe"},
                                               {Architecture::qwen3_next, "qwen3next"},
                                               {Architecture::qwen3_5, "qwen35"},
                                               {Architecture::qwen3_5_moe, "qwen35moe"},
                                               {Architecture::qwen2_moe, "qwen2moe"},
                                               {Architecture::glm4_moe, "glm4moe"},
                                               {Architecture::minimax_m2, "minimax-m2"},
                                               {Architecture::gpt_oss, "gpt-oss"}}};

const Family* family_of(const ModelConfig& c) {
  const auto* found = std::ranges::find(kFamilies, c.architecture, &Family::architecture);
  return found == kFamilies.end() ? nullptr : found;
}

// llama.cpp's code for architectures with experts allows only these settings.
void check_experts(const ModelConfig& c, const std::function<void(bool, const char*)>& no) {
  const bool olmoe = c.architecture == Architecture::olmoe, glm = c.architecture == Architecture::glm4_moe,
             qwen2 = c.architecture == Architecture::qwen2_moe, minimax = c.architecture == Architecture::minimax_m2;
  no((glm || qwen2) && c.experts == 0, "models without experts");
  if (c.experts == 0) return;
  const bool of_all = olmoe || qwen2;
  no(!glm && !of_all && !c.renormalised, "shares of experts that do not sum to 1 (norm_topk_prob false)");
  no(of_all && c.renormalised, "shares of experts that are made to sum to 1 (norm_topk_prob true)");
  no(olmoe && (c.hk != c.h || c.h * c.e != c.d), "fewer keys than queries, or heads wider than hidden_size / heads,");
  no(qwen2 && c.h * c.e != c.d, "heads wider than hidden_size / heads");
  no((olmoe || qwen2 || minimax) && c.tie_embeddings, "tied embeddings");
  no(qwen2 && std::ssize(routed_layers(c)) < c.L, "layers without experts");
  no(qwen2 && c.shared_f == 0, "mixtures without a shared expert");
}

// Tells whether layers differ in windows or ropes.
bool has_kinds_of_attention(const ModelConfig& c) {
  return std::ranges::any_of(
      c.kinds, [&](const LayerKind& kind) { return kind.window != c.sliding_window || kind.rope != RopeUse::global; });
}

bool has_mixed_layers(const ModelConfig& c) { return c.blocks.attention_gate; }

// The same for architectures with delta nets.
void check_mixed_layers(const ModelConfig& c, const std::function<void(bool, const char*)>& no) {
  if (!has_mixed_layers(c)) return;
  no(!delta_layers(c).empty() && c.delta.gate != Activation::silu, "sigmoid as the gate of delta nets");
  const bool mixture = c.blocks.experts != ExpertFiles::none;
  no(mixture && std::ssize(routed_layers(c)) < c.L, "layers without experts");
  no(mixture && c.shared_f == 0, "mixtures without a shared expert");
}

void put_mixed_layers(GgufKeys& keys, const ModelConfig& c, const std::string& prefix) {
  if (!has_mixed_layers(c)) return;
  const auto put = [&](const char* name, int64_t value) { keys.put_u32(prefix + name, static_cast<uint32_t>(value)); };
  put("ssm.conv_kernel", c.delta.kernel);
  put("ssm.state_size", c.delta.key_dim);
  put("ssm.group_count", c.delta.key_heads);
  put("ssm.time_step_rank", c.delta.value_heads);
  put("ssm.inner_size", c.delta.values());
  std::vector<bool> recurrent;
  for (int i = 0; i < c.L; ++i) recurrent.push_back(has_delta_net(c, i));
  if (c.predictor) {
    recurrent.push_back(false);
    put("nextn_predict_layers", 1);
  }
  keys.put_bools(prefix + "attention.recurrent_layers", recurrent);
  if (c.architecture == Architecture::qwen3_next) return;
  // The pairs of columns that a picture's time, row and column rotate. Text has one position for all three.
  const int32_t pairs = rotary_columns(c) / 2;
  const int32_t sections[] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
  keys.put_i32s(prefix + "rope.dimension_sections", sections);
}

// The same for gpt-oss, whose windows, biases and gates llama.cpp has in its code.
bool has_llamas_windows(const ModelConfig& c) {
  if (c.architecture != Architecture::gpt_oss) return !has_kinds_of_attention(c) || has_mixed_layers(c);
  for (int i = 0; i < c.L; ++i)
    if ((kind_of(c, i).window > 0) != (i % 2 == 0)) return false;
  return true;
}
void check_gpt_oss(const ModelConfig& c, const std::function<void(bool, const char*)>& no) {
  if (c.architecture != Architecture::gpt_oss) return;
  no(!c.qkv_bias || !c.o_bias, "attention without biases");
  no(c.tie_embeddings, "tied embeddings");
  no(static_cast<float>(c.gate_alpha) != 1.702f || c.gate_limit != 7,
     "gates with another clamp than 7 and alpha 1.702");
  no(c.rope.type == RopeType::yarn && c.rope.truncate, "yarn with a ramp from whole pairs to whole pairs");
}

// Returns the last part of the folder's path, which may end with a slash or be ".".
std::string name_of_folder(const std::string& folder) {
  return std::filesystem::absolute(folder + "/").lexically_normal().parent_path().filename().string();
}

// Writes how GLM's routers choose, and which experts every row passes.
void put_groups(GgufKeys& keys, const ModelConfig& c, const std::string& prefix) {
  keys.put_u32(prefix + "expert_shared_count", static_cast<uint32_t>(c.shared_f / c.f));
  keys.put_u32(prefix + "leading_dense_block_count", static_cast<uint32_t>(c.L - std::ssize(routed_layers(c))));
  keys.put_bool(prefix + "expert_weights_norm", c.renormalised);
  keys.put_f32(prefix + "expert_weights_scale", static_cast<float>(c.router.factor));
  keys.put_u32(prefix + "expert_group_count", static_cast<uint32_t>(c.router.groups));
  keys.put_u32(prefix + "expert_group_used_count", static_cast<uint32_t>(c.router.groups_per_row));
}

void put_experts(GgufKeys& keys, const ModelConfig& c, const std::string& prefix) {
  if (c.experts == 0) return;
  keys.put_u32(prefix + "expert_count", static_cast<uint32_t>(c.experts));
  keys.put_u32(prefix + "expert_used_count", static_cast<uint32_t>(c.experts_per_row));
  const bool glm = c.architecture == Architecture::glm4_moe, minimax = c.architecture == Architecture::minimax_m2,
             gemma4 = c.architecture == Architecture::gemma4;
  if (c.architecture == Architecture::qwen3_moe || c.architecture == Architecture::qwen2_moe || has_mixed_layers(c) ||
      glm || minimax || gemma4)
    keys.put_u32(prefix + "expert_feed_forward_length", static_cast<uint32_t>(c.f));
  if (c.shared_f > 0 && !glm && !gemma4)
    keys.put_u32(prefix + "expert_shared_feed_forward_length", static_cast<uint32_t>(c.shared_f));
  if (c.router.scoring == Scoring::sigmoid) keys.put_u32(prefix + "expert_gating_func", 2);
  if (glm) put_groups(keys, c, prefix);
  if (c.architecture == Architecture::gpt_oss) {
    keys.put_u32(prefix + "expert_feed_forward_length", static_cast<uint32_t>(c.f));
    keys.put_u32(prefix + "attention.sliding_window", static_cast<uint32_t>(c.sliding_window));
  }
  if (c.architecture != Architecture::granite_moe) return;
  keys.put_f32(prefix + "embedding_scale", static_cast<float>(c.embedding_scale));
  keys.put_f32(prefix + "residual_scale", static_cast<float>(c.residual_scale));
  keys.put_f32(prefix + "attention.scale", static_cast<float>(c.attention_scale));
  keys.put_f32(prefix + "logit_scale", static_cast<float>(c.logit_divisor));
}

}  // namespace

std::string_view gguf_architecture(const ModelConfig& c) { return family_of(c) ? family_of(c)->name : ""; }

void check_gguf_model(const Checkpoint& source) {
  const ModelConfig& c = source.config();
  check_plain_inputs(source, "gguf");
  check(family_of(c) != nullptr,
        "{} cannot be exported to gguf: the export knows Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3.5 and Gemma 4 "
        "with and without experts, Qwen3-Next, gpt-oss, OLMoE, Granite with experts, GLM-4.5 and MiniMax-M2, not {}{}",
        source.folder(), name_of(c.architecture), c.blocks.fused ? "" : "; compressed-tensors holds more");
  const bool gpt_oss = c.architecture == Architecture::gpt_oss;
  const auto no = [&](bool wrong, const char* what) {
    check(!wrong, "{} cannot be exported to gguf: llama.cpp has no {} for {}", source.folder(), what,
          name_of(c.architecture));
  };
  if (c.architecture == Architecture::gemma4) return check_gemma4_model(c, no);
  check(has_llamas_windows(c) && c.rope.type != RopeType::longrope,
        "{} cannot be exported to gguf: llama.cpp has no windows in {} layers and no longrope for {}", source.folder(),
        gpt_oss ? "other than the first, third, ..," : "some", name_of(c.architecture));
  no(!gpt_oss && c.sliding_window > 0 && c.sliding_window < c.max_positions, "sliding window");
  const bool paired = gguf::rows_are_paired(gguf_architecture(c));
  const bool biased = c.architecture == Architecture::qwen2 || c.architecture == Architecture::qwen2_moe ||
                      c.architecture == Architecture::glm4_moe;
  no(!paired && !gpt_oss && c.mlp_bias, "biases on gate, up, down");
  no(!paired && !gpt_oss && c.o_bias, "bias on o");
  no(!paired && !gpt_oss && !biased && c.qkv_bias, "biases on q, k, v");
  const double yarn = 1 + 0.1 * std::log(c.rope.factor);
  no(c.rope.type == RopeType::yarn &&
         (c.rope.beta_fast != 32 || c.rope.beta_slow != 1 || (!c.rope.truncate && !gpt_oss) ||
          std::abs(c.rope.attention_factor - yarn) > 1e-6),
     "yarn with other than its usual parameters");
  check_experts(c, no);
  check_mixed_layers(c, no);
  check_gpt_oss(c, no);
}

void put_model(GgufKeys& keys, const Checkpoint& source, uint32_t file_type) {
  const ModelConfig& c = source.config();
  const std::string arch(family_of(c)->name);
  const auto key = [&](const char* name) { return arch + "." + name; };
  const auto number = [](int value) { return static_cast<uint32_t>(value); };
  keys.put_string("general.architecture", arch);
  keys.put_string("general.name", name_of_folder(source.folder()));
  keys.put_u32("general.quantization_version", 2);
  keys.put_u32("general.file_type", file_type);
  keys.put_u32(key("context_length"), number(c.max_positions));
  keys.put_u32(key("embedding_length"), number(c.d));
  keys.put_u32(key("block_count"), number(c.L + (c.predictor ? 1 : 0)));  // its layer is the last one
  keys.put_u32(key("attention.head_count"), number(c.h));
  keys.put_f32(key("attention.layer_norm_rms_epsilon"), c.rms_eps);
  keys.put_f32(key("rope.freq_base"), static_cast<float>(c.rope.theta));
  keys.put_u32(key("vocab_size"), number(c.v));
  put_experts(keys, c, arch + ".");
  if (c.architecture == Architecture::gemma4) return put_gemma4(keys, c, arch + ".");
  keys.put_u32(key("feed_forward_length"),
               number(c.architecture == Architecture::glm4_moe && c.dense_f > 0 ? c.dense_f : c.f));
  keys.put_u32(key("attention.head_count_kv"), number(c.hk));
  keys.put_u32(key("attention.key_length"), number(c.e));
  keys.put_u32(key("attention.value_length"), number(c.e));
  keys.put_u32(key("rope.dimension_count"), number(rotary_columns(c)));
  put_mixed_layers(keys, c, arch + ".");
  if (c.rope.type == RopeType::linear || c.rope.type == RopeType::yarn) {
    keys.put_string(key("rope.scaling.type"), c.rope.type == RopeType::yarn ? "yarn" : "linear");
    keys.put_f32(key("rope.scaling.factor"), static_cast<float>(c.rope.factor));
  }
  if (c.rope.type == RopeType::yarn)
    keys.put_u32(key("rope.scaling.original_context_length"), number(c.rope.original_max_positions));
}

// Writes the sampling that generation_config.json names and leaves the rest open. Its repetition penalty covers the
// whole context (-1), whereas llama.cpp's default covers the last 64 tokens.
void put_sampling(GgufKeys& keys, const TextFiles& files) {
  const GenerationDefaults said = GenerationDefaults::load(files);
  const auto key = [](std::string_view name) { return std::string(gguf::kSampling) + std::string(name); };
  const auto put = [&](std::string_view name, const std::optional<double>& value) {
    if (value) keys.put_f32(key(name), static_cast<float>(*value));
  };
  put("temp", said.do_sample == false ? std::optional<double>(0) : said.temperature);
  put("penalty_repeat", said.repetition_penalty);
  if (said.repetition_penalty) keys.put_i32(key("penalty_last_n"), -1);
  if (said.do_sample == false) return;  // Sampling is greedy, whatever else the file says.
  if (said.top_k) keys.put_i32(key("top_k"), static_cast<int32_t>(std::clamp<int64_t>(*said.top_k, 0, INT32_MAX)));
  put("top_p", said.top_p);
  put("min_p", said.min_p);
}

}  // namespace fidelio::exporting
