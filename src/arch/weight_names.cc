#include "arch/weight_names.h"

#include <array>
#include <charconv>

#include "core/error.h"

namespace fidelio {
namespace {

struct RoleName {
  Role role;
  std::string_view name, module;  // module: inside "model.layers.N."
};
constexpr std::array<RoleName, 7> kRoleNames = {{{Role::q, "q", "self_attn.q_proj"},
                                                 {Role::k, "k", "self_attn.k_proj"},
                                                 {Role::v, "v", "self_attn.v_proj"},
                                                 {Role::o, "o", "self_attn.o_proj"},
                                                 {Role::gate, "gate", "mlp.gate_proj"},
                                                 {Role::up, "up", "mlp.up_proj"},
                                                 {Role::down, "down", "mlp.down_proj"}}};

}  // namespace

std::string_view name_of(Role role) {
  if (role == Role::embedding) return "embedding";
  if (role == Role::head) return "head";
  return kRoleNames[static_cast<size_t>(role)].name;
}

std::string to_string(LinearId id) {
  if (id.role == Role::embedding || id.role == Role::head) return std::string(name_of(id.role));
  return fmt::format("layers.{}.{}", id.layer, name_of(id.role));
}

LinearId parse_linear_id(std::string_view text) {
  if (text == "embedding") return {-1, Role::embedding};
  if (text == "head") return {-1, Role::head};
  constexpr std::string_view kPrefix = "layers.";
  if (text.starts_with(kPrefix)) {
    const char* first = text.data() + kPrefix.size();
    const char* end = text.data() + text.size();
    int layer = -1;
    const auto [rest, reason] = std::from_chars(first, end, layer);
    if (reason == std::errc() && layer >= 0 && rest != end && *rest == '.')
      for (const RoleName& row : kRoleNames) {
        const LinearId id{layer, row.role};
        if (std::string_view(rest + 1, end) == row.name && to_string(id) == text) return id;  // no leading zeros
      }
  }
  throw Error(
      "\"{}\" names no linear: expected layers.N.ROLE with ROLE one of q k v o gate up down, or embedding, or head",
      text);
}

std::string module_name(LinearId id) {
  if (id.role == Role::embedding) return "model.embed_tokens";
  if (id.role == Role::head) return "lm_head";
  return fmt::format("model.layers.{}.{}", id.layer, kRoleNames[static_cast<size_t>(id.role)].module);
}

std::string weight_name(LinearId id) { return module_name(id) + ".weight"; }
std::string bias_name(LinearId id) { return module_name(id) + ".bias"; }

std::string norm_name(const ModelConfig& config, int layer, Norm norm) {
  const auto in_layer = [&](const char* module) { return fmt::format("model.layers.{}.{}.weight", layer, module); };
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
    case Norm::final:
      break;
  }
  return "model.norm.weight";
}

FusedName fused_name(const ModelConfig& c, LinearId id) {
  if (!c.blocks.fused) return {};
  const int64_t q = int64_t{c.h} * c.e, kv = int64_t{c.hk} * c.e, f = c.f;
  const auto in_layer = [&](const char* module, int64_t first_row, int64_t rows) {
    return FusedName{fmt::format("model.layers.{}.{}.weight", id.layer, module), first_row, rows};
  };
  switch (id.role) {
    case Role::q:
      return in_layer("self_attn.qkv_proj", 0, q + 2 * kv);
    case Role::k:
      return in_layer("self_attn.qkv_proj", q, q + 2 * kv);
    case Role::v:
      return in_layer("self_attn.qkv_proj", q + kv, q + 2 * kv);
    case Role::gate:
      return in_layer("mlp.gate_up_proj", 0, 2 * f);
    case Role::up:
      return in_layer("mlp.gate_up_proj", f, 2 * f);
    default:
      return {};
  }
}

}  // namespace fidelio
