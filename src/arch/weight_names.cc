#include "arch/weight_names.h"

#include <array>
#include <charconv>

#include "core/error.h"

namespace fidelio {
namespace {

struct RoleName {
  Role role;
  std::string_view name, module;  // the module's name inside "model.layers.N."
};
constexpr std::array<RoleName, 21> kRoleNames = {{{Role::q, "q", "self_attn.q_proj"},
                                                  {Role::k, "k", "self_attn.k_proj"},
                                                  {Role::v, "v", "self_attn.v_proj"},
                                                  {Role::o, "o", "self_attn.o_proj"},
                                                  {Role::gate, "gate", "mlp.gate_proj"},
                                                  {Role::up, "up", "mlp.up_proj"},
                                                  {Role::down, "down", "mlp.down_proj"},
                                                  {Role::delta_qkv, "delta_qkv", "linear_attn.in_proj_qkv"},
                                                  {Role::delta_z, "delta_z", "linear_attn.in_proj_z"},
                                                  {Role::delta_out, "delta_out", "linear_attn.out_proj"},
                                                  {Role::shared_gate, "shared_gate", "mlp.shared_expert.gate_proj"},
                                                  {Role::shared_up, "shared_up", "mlp.shared_expert.up_proj"},
                                                  {Role::shared_down, "shared_down", "mlp.shared_expert.down_proj"},
                                                  {Role::delta_b, "delta_b", "linear_attn.in_proj_b"},
                                                  {Role::delta_a, "delta_a", "linear_attn.in_proj_a"},
                                                  {Role::shared_router, "shared_router", "mlp.shared_expert_gate"},
                                                  {Role::join, "join", "join"},
                                                  {Role::per_layer_gate, "per_layer_gate", "per_layer_input_gate"},
                                                  {Role::per_layer_out, "per_layer_out", "per_layer_projection"},
                                                  {Role::per_layer_model, "per_layer_model", ""},
                                                  {Role::per_layer_table, "per_layer_table", ""}}};

}  // namespace

std::string_view name_of(Role role) {
  if (role == Role::embedding) return "embedding";
  if (role == Role::head) return "head";
  return kRoleNames[static_cast<size_t>(role)].name;
}

std::string to_string(LinearId id) {
  if (is_outer(id.role)) return std::string(name_of(id.role));
  if (id.layer == kPredictorLayer)
    return id.expert < 0 ? fmt::format("predictor.{}", name_of(id.role))
                         : fmt::format("predictor.experts.{}.{}", id.expert, name_of(id.role));
  if (id.expert >= 0) return fmt::format("layers.{}.experts.{}.{}", id.layer, id.expert, name_of(id.role));
  return fmt::format("layers.{}.{}", id.layer, name_of(id.role));
}

namespace {

// Removes "PREFIX123." from the front of `text` and returns the number. Returns -1, with `text` unchanged, if the
// text does not begin so.
int take_number(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  const char *first = text.data() + prefix.size(), *end = text.data() + text.size();
  int number = -1;
  const auto [rest, reason] = std::from_chars(first, end, number);
  if (reason != std::errc() || rest == end || *rest != '.') return -1;
  text.remove_prefix(static_cast<size_t>(rest + 1 - text.data()));
  return number;
}

}  // namespace

LinearId parse_linear_id(std::string_view text) {
  if (text == "embedding") return {-1, Role::embedding};
  if (text == "head") return {-1, Role::head};
  if (text == "per_layer_table") return {-1, Role::per_layer_table};
  std::string_view rest = text;
  constexpr std::string_view kPredictor = "predictor.";
  const bool predicts = rest.starts_with(kPredictor);
  if (predicts) rest.remove_prefix(kPredictor.size());
  const int layer = predicts ? kPredictorLayer : take_number(rest, "layers."), expert = take_number(rest, "experts.");
  for (const RoleName& row : kRoleNames) {
    if (is_fixed(row.role) || is_outer(row.role) || (row.role == Role::join && !predicts)) continue;
    const LinearId id{layer, row.role, expert};
    const bool in_mlp = row.role == Role::gate || row.role == Role::up || row.role == Role::down;
    if (rest == row.name && (layer >= 0 || predicts) && (expert < 0 || in_mlp) && to_string(id) == text)
      return id;  // the comparison with `text` rejects leading zeros
  }
  throw Error(
      "\"{}\" names no linear: expected layers.N.ROLE with ROLE one of q k v o gate up down, delta_qkv "
      "delta_z delta_out, shared_gate shared_up shared_down, per_layer_gate per_layer_out, or embedding, head or "
      "per_layer_table (of an expert layers.N.experts.M.ROLE)",
      text);
}

namespace {

// Returns the module of a layer: "model.layers.3", or "mtp.layers.0", which is the predictor's.
std::string layer_name(int layer) {
  return layer == kPredictorLayer ? "mtp.layers.0" : fmt::format("model.layers.{}", layer);
}

}  // namespace

std::string module_name(LinearId id) {
  if (id.role == Role::embedding) return "model.embed_tokens";
  if (id.role == Role::head) return "lm_head";
  if (id.role == Role::join) return "mtp.fc";
  if (id.role == Role::per_layer_model) return "model.per_layer_model_projection";
  if (id.role == Role::per_layer_table) return "model.embed_tokens_per_layer";
  if (id.expert >= 0)
    return fmt::format("{}.mlp.experts.{}.{}_proj", layer_name(id.layer), id.expert, name_of(id.role));
  return fmt::format("{}.{}", layer_name(id.layer), kRoleNames[static_cast<size_t>(id.role)].module);
}

std::string weight_name(LinearId id) { return module_name(id) + ".weight"; }
std::string bias_name(LinearId id) { return module_name(id) + ".bias"; }

std::string norm_name(const ModelConfig& config, int layer, Norm norm) {
  const auto in_layer = [&](const char* module) { return fmt::format("{}.{}.weight", layer_name(layer), module); };
  switch (norm) {
    case Norm::attn:
      return in_layer("input_layernorm");
    case Norm::mlp:
      return in_layer(config.blocks.norm_after ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    case Norm::post_attn:
      return in_layer("post_attention_layernorm");
    case Norm::post_mlp:
      return in_layer("post_feedforward_layernorm");
    case Norm::q:
      return in_layer("self_attn.q_norm");
    case Norm::k:
      return in_layer("self_attn.k_norm");
    case Norm::v:
      return in_layer("self_attn.v_norm");
    case Norm::delta:
      return in_layer("linear_attn.norm");
    case Norm::sinks:
      return fmt::format("{}.self_attn.sinks", layer_name(layer));
    case Norm::router:
      return fmt::format("{}.router.scale", layer_name(layer));
    case Norm::post_dense:
      return in_layer("post_feedforward_layernorm_1");
    case Norm::experts:
      return in_layer("pre_feedforward_layernorm_2");
    case Norm::post_experts:
      return in_layer("post_feedforward_layernorm_2");
    case Norm::post_per_layer:
      return in_layer("post_per_layer_input_norm");
    case Norm::scalar:
      return fmt::format("{}.layer_scalar", layer_name(layer));
    case Norm::per_layer:
      return "model.per_layer_projection_norm.weight";
    case Norm::token:
      return "mtp.pre_fc_norm_embedding.weight";
    case Norm::before:
      return "mtp.pre_fc_norm_hidden.weight";
    case Norm::predicted:
      return "mtp.norm.weight";
    case Norm::final:
      break;
  }
  return "model.norm.weight";
}

std::string router_name(const ModelConfig& c, int layer) {
  switch (c.blocks.experts) {
    case ExpertFiles::none:
    case ExpertFiles::each:
    case ExpertFiles::joined:
      break;
    case ExpertFiles::lettered:
      return layer_name(layer) + ".block_sparse_moe.gate.weight";
    case ExpertFiles::stacked:
      return layer_name(layer) + ".block_sparse_moe.router.layer.weight";
    case ExpertFiles::alternating:
      return layer_name(layer) + ".mlp.router.weight";
    case ExpertFiles::beside:
      return layer_name(layer) + ".router.proj.weight";
  }
  return layer_name(layer) + ".mlp.gate.weight";
}

namespace {

FusedName expert_name(const ModelConfig& c, LinearId id) {
  const int64_t d = c.d, f = c.f, e = id.expert;
  const std::string module = layer_name(id.layer) + ".block_sparse_moe";
  if (c.blocks.experts == ExpertFiles::lettered) {
    const int letter = id.role == Role::gate ? 1 : id.role == Role::down ? 2 : 3;
    const int64_t rows = id.role == Role::down ? d : f;
    return {fmt::format("{}.experts.{}.w{}.weight", module, e, letter), {{0, rows}}, rows};
  }
  const RowRun down{e * d, d}, of_both{2 * e * f + (id.role == Role::up ? f : 0), f};
  if (c.blocks.experts == ExpertFiles::joined || c.blocks.experts == ExpertFiles::beside) {
    const char* inside = c.blocks.experts == ExpertFiles::joined ? ".mlp.experts" : ".experts";
    const std::string experts = layer_name(id.layer) + inside;
    if (id.role == Role::down) return {experts + ".down_proj", {down}, c.experts * d};
    return {experts + ".gate_up_proj", {of_both}, 2 * c.experts * f};
  }
  if (c.blocks.experts == ExpertFiles::alternating) {
    const std::string experts = layer_name(id.layer) + ".mlp.experts";
    if (id.role == Role::down) return {experts + ".down_proj", {down}, c.experts * d, true};
    const RowRun every_other{2 * e * f + (id.role == Role::up ? 1 : 0), f, 2};
    return {experts + ".gate_up_proj", {every_other}, 2 * c.experts * f, true};
  }
  if (c.blocks.experts != ExpertFiles::stacked) return {};
  if (id.role == Role::down) return {module + ".output_linear.weight", {down}, c.experts * d};
  return {module + ".input_linear.weight", {of_both}, 2 * c.experts * f};
}

// The matrices of Qwen3-Next hold, for each key head, its rows of q and of k and those of its value heads of v and of
// z; and those of its value heads of b and of a.
FusedName interleaved_name(const ModelConfig& c, LinearId id) {
  const DeltaNet& n = c.delta;
  if (id.role != Role::delta_qkv && id.role != Role::delta_z && id.role != Role::delta_b && id.role != Role::delta_a)
    return {};
  const int64_t shared = n.value_heads / n.key_heads, k = n.key_dim, v = shared * n.value_dim;
  const bool gates = id.role == Role::delta_b || id.role == Role::delta_a;
  const int64_t each = gates ? 2 * shared : 2 * k + 2 * v;  // the rows of a key head
  FusedName name{fmt::format("model.layers.{}.linear_attn.{}.weight", id.layer, gates ? "in_proj_ba" : "in_proj_qkvz"),
                 {},
                 n.key_heads * each};
  const auto add = [&](int64_t first, int64_t rows) {
    for (int64_t head = 0; head < n.key_heads; ++head) name.runs.push_back({head * each + first, rows});
  };
  switch (id.role) {
    case Role::delta_qkv:
      add(0, k);
      add(k, k);
      add(2 * k, v);
      break;
    case Role::delta_z:
      add(2 * k + v, v);
      break;
    case Role::delta_b:
      add(0, shared);
      break;
    default:
      add(shared, shared);
  }
  return name;
}

// The MLP that every row passes has the names of an MLP where it stands beside experts.
FusedName beside_name(const ModelConfig& c, LinearId id) {
  const bool down = id.role == Role::shared_down;
  if (!down && id.role != Role::shared_gate && id.role != Role::shared_up) return {};
  const int64_t rows = down ? c.d : c.shared_f;
  const char* name = down ? "down" : id.role == Role::shared_up ? "up" : "gate";
  return {fmt::format("{}.mlp.{}_proj.weight", layer_name(id.layer), name), {{0, rows}}, rows};
}

}  // namespace

namespace {

bool is_of_shared_expert(Role role) {
  return role == Role::shared_gate || role == Role::shared_up || role == Role::shared_down;
}

}  // namespace

std::string file_module_name(const ModelConfig& c, LinearId id) {
  const bool beside = c.blocks.experts == ExpertFiles::beside;
  if (!beside && is_of_shared_expert(id.role) && !c.blocks.shared_gate) {
    constexpr std::string_view kOurs = ".shared_expert.", kTheirs = ".shared_experts.";
    std::string name = module_name(id);
    return name.replace(name.find(kOurs), kOurs.size(), kTheirs);
  }
  if (beside && id.expert >= 0)
    return fmt::format("{}.experts.{}.{}_proj", layer_name(id.layer), id.expert, name_of(id.role));
  const std::string weight = beside                                                        ? beside_name(c, id).weight
                             : id.expert >= 0 && c.blocks.experts == ExpertFiles::lettered ? expert_name(c, id).weight
                                                                                           : "";
  return weight.empty() ? module_name(id) : weight.substr(0, weight.rfind('.'));
}

FusedName fused_bias_name(const ModelConfig& c, LinearId id) {
  if (id.expert < 0 || c.blocks.experts != ExpertFiles::alternating) return {};
  FusedName name = expert_name(c, id);
  name.weight += "_bias";
  name.by_columns = false;
  return name;
}

FusedName fused_name(const ModelConfig& c, LinearId id) {
  if (id.expert >= 0) return expert_name(c, id);
  if (c.blocks.experts == ExpertFiles::beside) return beside_name(c, id);
  if (is_of_shared_expert(id.role) && !c.blocks.shared_gate) {
    const int64_t rows = id.role == Role::shared_down ? c.d : c.shared_f;
    return {file_module_name(c, id) + ".weight", {{0, rows}}, rows};
  }
  if (c.blocks.delta_fused) return interleaved_name(c, id);
  if (!c.blocks.fused) return {};
  const int64_t q = int64_t{c.h} * c.e, kv = int64_t{c.hk} * c.e, f = c.f;
  const auto in_layer = [&](const char* module, RowRun run, int64_t rows) {
    return FusedName{fmt::format("model.layers.{}.{}.weight", id.layer, module), {run}, rows};
  };
  switch (id.role) {
    case Role::q:
      return in_layer("self_attn.qkv_proj", {0, q}, q + 2 * kv);
    case Role::k:
      return in_layer("self_attn.qkv_proj", {q, kv}, q + 2 * kv);
    case Role::v:
      return in_layer("self_attn.qkv_proj", {q + kv, kv}, q + 2 * kv);
    case Role::gate:
      return in_layer("mlp.gate_up_proj", {0, f}, 2 * f);
    case Role::up:
      return in_layer("mlp.gate_up_proj", {f, f}, 2 * f);
    default:
      return {};
  }
}

}  // namespace fidelio
