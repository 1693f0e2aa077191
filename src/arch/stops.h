// This file describes a layer as four stops, in the order in which it runs. A stop is an input together with the
// linears that read it:
//
//   stream -> norm -> [attn_in] q k v   -> attention        -> [o_in]    o    -> added to the stream
//   stream -> norm -> [mlp_in]  gate up -> activation, gate -> [down_in] down -> added to the stream
//
// Everything that treats the linears of a stop together reads this table. They are quantised against one Hessian,
// share one entry of a journal, form one group of the sensitivity, and take one format where a serving engine runs
// them as one product.
#pragma once
#include <array>
#include <span>

#include "arch/weight_names.h"

namespace fidelio {

enum class InputId : uint8_t { attn_in, o_in, mlp_in, down_in };

struct Stop {
  InputId input;
  std::string_view name;  // "qkv", for example; the stop of layer 3 is then called "layers.3.qkv"
  std::span<const Role> roles;

  // Tells whether the linear adds its output to the stream (o and down). The next stop's input then waits for it.
  bool adds() const { return input == InputId::o_in || input == InputId::down_in; }
};

inline constexpr std::array<Role, 7> kLayerRoles = {Role::q,    Role::k,  Role::v,   Role::o,
                                                    Role::gate, Role::up, Role::down};
inline constexpr std::array<Stop, 4> kStops = {{{InputId::attn_in, "qkv", std::span(kLayerRoles).subspan(0, 3)},
                                                {InputId::o_in, "o", std::span(kLayerRoles).subspan(3, 1)},
                                                {InputId::mlp_in, "gate_up", std::span(kLayerRoles).subspan(4, 2)},
                                                {InputId::down_in, "down", std::span(kLayerRoles).subspan(6, 1)}}};

// Returns the stop of a role within a layer. Throws Error for the embedding and the head, which have none.
const Stop& stop_of(Role role);
// Returns "layers.3.qkv", for example, and for the embedding or the head its own name.
std::string stop_of(LinearId id);
// Returns "layers.3.qkv" for layer 3 and the stop "qkv".
std::string stop_name(int layer, const Stop& stop);

}  // namespace fidelio
