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
constexpr std::array<RoleName, 7> kLayerRoles = {{{Role::q, "q", "self_attn.q_proj"},
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
  return kLayerRoles[static_cast<size_t>(role)].name;
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
      for (const RoleName& row : kLayerRoles) {
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
  return fmt::format("model.layers.{}.{}", id.layer, kLayerRoles[static_cast<size_t>(id.role)].module);
}

std::string weight_name(LinearId id) { return module_name(id) + ".weight"; }
std::string bias_name(LinearId id) { return module_name(id) + ".bias"; }

std::string norm_name(int layer, Norm norm) {
  switch (norm) {
    case Norm::attn:
      return fmt::format("model.layers.{}.input_layernorm.weight", layer);
    case Norm::mlp:
      return fmt::format("model.layers.{}.post_attention_layernorm.weight", layer);
    case Norm::q:
      return fmt::format("model.layers.{}.self_attn.q_norm.weight", layer);
    case Norm::k:
      return fmt::format("model.layers.{}.self_attn.k_norm.weight", layer);
    case Norm::final:
      break;
  }
  return "model.norm.weight";
}

}  // namespace fidelio
