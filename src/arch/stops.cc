#include "arch/stops.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr Role kRoles[] = {Role::q,
                           Role::k,
                           Role::v,
                           Role::o,
                           Role::gate,
                           Role::up,
                           Role::down,
                           Role::delta_qkv,
                           Role::delta_z,
                           Role::delta_out,
                           Role::shared_gate,
                           Role::shared_up,
                           Role::shared_down,
                           Role::per_layer_gate,
                           Role::per_layer_out};
constexpr std::span<const Role> kAll = kRoles;

// Layers whose values are their keys have no v, and those that read another layer's keys have q alone.
constexpr Stop kQkv{"qkv", kAll.subspan(0, 3)}, kQk{"qkv", kAll.subspan(0, 2)}, kQ{"qkv", kAll.subspan(0, 1)},
    kO{"o", kAll.subspan(3, 1), true};
constexpr Stop kDeltaIn{"delta_in", kAll.subspan(7, 2)}, kDeltaOut{"delta_out", kAll.subspan(9, 1), true};
constexpr Stop kGateUp{"gate_up", kAll.subspan(4, 2)}, kDown{"down", kAll.subspan(6, 1), true};
constexpr Stop kRoutedGateUp{"gate_up", kAll.subspan(4, 2), false, true};
constexpr Stop kRoutedDown{"down", kAll.subspan(6, 1), true, true};
constexpr Stop kSharedGateUp{"shared_gate_up", kAll.subspan(10, 2)},
    kSharedDown{"shared_down", kAll.subspan(12, 1), true};
// The output of an MLP beside experts is normed together with theirs before it is added to the stream.
constexpr Stop kBesideDown{"shared_down", kAll.subspan(12, 1)};
constexpr Stop kPerLayerGate{"per_layer_gate", kAll.subspan(13, 1)},
    kPerLayerOut{"per_layer_out", kAll.subspan(14, 1), true};

// These are the stops of layers with these behind their mixer, for each Mixing.
enum Mixing : uint8_t { kKeysAndValues, kKeysAlone, kNoKeys, kDeltaNet };
template <typename... S>
constexpr auto behind_mixers(const S&... rest) {
  using Row = std::array<Stop, 2 + sizeof...(S)>;
  return std::array<Row, 4>{Row{kQkv, kO, rest...}, Row{kQk, kO, rest...}, Row{kQ, kO, rest...},
                            Row{kDeltaIn, kDeltaOut, rest...}};
}
constexpr auto kDense = behind_mixers(kGateUp, kDown);
constexpr auto kPerLayer = behind_mixers(kGateUp, kDown, kPerLayerGate, kPerLayerOut);
constexpr auto kExperts = behind_mixers(kRoutedGateUp, kRoutedDown);
constexpr auto kShared = behind_mixers(kSharedGateUp, kSharedDown, kRoutedGateUp, kRoutedDown);
constexpr auto kBeside = behind_mixers(kSharedGateUp, kBesideDown, kRoutedGateUp, kRoutedDown);

Mixing mixing_of(const ModelConfig& config, int layer) {
  if (has_delta_net(config, layer)) return kDeltaNet;
  return has_values(config, layer) ? kKeysAndValues : keeps_keys(config, layer) ? kKeysAlone : kNoKeys;
}

}  // namespace

std::span<const Stop> stops_of(const ModelConfig& config, int layer) {
  const Mixing mixing = mixing_of(config, layer);
  if (!has_experts(config, layer))
    return config.per_layer > 0 ? std::span<const Stop>(kPerLayer[mixing]) : std::span<const Stop>(kDense[mixing]);
  if (config.blocks.experts == ExpertFiles::beside) return kBeside[mixing];
  return config.shared_f > 0 ? std::span<const Stop>(kShared[mixing]) : std::span<const Stop>(kExperts[mixing]);
}

const Stop& stop_of(const ModelConfig& config, int layer, std::string_view name) {
  const std::span<const Stop> stops = stops_of(config, layer);
  const auto found = std::ranges::find(stops, name, &Stop::name);
  check(found != stops.end(), "layer {} has no stop called {}", layer, name);
  return *found;
}

std::vector<LayerStop> stops_of(const ModelConfig& config) {
  std::vector<LayerStop> all;
  for (int layer = 0; layer < config.L; ++layer)
    for (const Stop& stop : stops_of(config, layer)) all.push_back({layer, &stop});
  return all;
}

std::string stop_name(int layer, const Stop& stop) {
  return layer == kPredictorLayer ? fmt::format("predictor.{}", stop.name)
                                  : fmt::format("layers.{}.{}", layer, stop.name);
}

std::string stop_of(LinearId id) {
  if (id.layer == -1) return to_string(id);
  // A role has the same stop in every layer that has it.
  const auto named = [&](const Stop& stop) { return std::ranges::find(stop.roles, id.role) != stop.roles.end(); };
  for (const auto& layers : {std::span<const Stop>(kShared[kKeysAndValues]), std::span<const Stop>(kShared[kDeltaNet]),
                             std::span<const Stop>(kPerLayer[kKeysAndValues])})
    if (const auto stop = std::ranges::find_if(layers, named); stop != layers.end()) return stop_name(id.layer, *stop);
  throw Error("{} is no linear of a layer that is quantised", name_of(id.role));
}

}  // namespace fidelio
