// A layer as four stops in the order in which it runs. The linears of a stop read one input:
//
//   stream -> norm -> [attn_in] q k v -> attention -> [o_in] o -> + -> norm -> [mlp_in] gate up -> SwiGLU -> [down_in] down -> +
//
// What is said of a stop is said here alone: its linears are quantised against one Hessian, wait in one entry of a journal,
// are one group of the sensitivity, and take one format where a serving engine runs them as one product.
#pragma once
#include <array>
#include <span>

#include "arch/weight_names.h"

namespace fidelio {

enum class InputId : uint8_t { attn_in, o_in, mlp_in, down_in };

struct Stop {
  InputId input;
  std::string_view name;  // "qkv": the stop of layer 3 is "layers.3.qkv"
  std::span<const Role> roles;

  // o and down add to the stream, so the next stop's input waits for them.
  bool adds() const { return input == InputId::o_in || input == InputId::down_in; }
};

inline constexpr std::array<Role, 7> kLayerRoles = {Role::q,    Role::k,  Role::v,   Role::o,
                                                    Role::gate, Role::up, Role::down};
inline constexpr std::array<Stop, 4> kStops = {{{InputId::attn_in, "qkv", std::span(kLayerRoles).subspan(0, 3)},
                                                {InputId::o_in, "o", std::span(kLayerRoles).subspan(3, 1)},
                                                {InputId::mlp_in, "gate_up", std::span(kLayerRoles).subspan(4, 2)},
                                                {InputId::down_in, "down", std::span(kLayerRoles).subspan(6, 1)}}};

// Of a role within a layer; embedding and head have none.
const Stop& stop_of(Role role);
// "layers.3.qkv"; of an embedding or head its own name.
std::string stop_of(LinearId id);
std::string stop_name(int layer, const Stop& stop);

}  // namespace fidelio
