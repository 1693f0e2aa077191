#include "arch/stops.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr Role kRoles[] = {Role::q,           Role::k,         Role::v,          Role::o,       Role::gate,
                           Role::up,          Role::down,      Role::delta_qkv,  Role::delta_z, Role::delta_out,
                           Role::shared_gate, Role::shared_up, Role::shared_down};
constexpr std::span<const Role> kAll = kRoles;

constexpr Stop kQkv{"qkv", kAll.subspan(0, 3)}, kO{"o", kAll.subspan(3, 1), true};
constexpr Stop kDeltaIn{"delta_in", kAll.subspan(7, 2)}, kDeltaOut{"delta_out", kAll.subspan(9, 1), true};
constexpr Stop kGateUp{"gate_up", kAll.subspan(4, 2)}, kDown{"down", kAll.subspan(6, 1), true};
constexpr Stop kRoutedGateUp{"gate_up", kAll.subspan(4, 2), false, true};
constexpr Stop kRoutedDown{"down", kAll.subspan(6, 1), true, true};
constexpr Stop kSharedGateUp{"shared_gate_up", kAll.subspan(10, 2)},
    kSharedDown{"shared_down", kAll.subspan(12, 1), true};

// The first of each pair has attention, the second a delta net.
constexpr Stop kDense[2][4] = {{kQkv, kO, kGateUp, kDown}, {kDeltaIn, kDeltaOut, kGateUp, kDown}};
constexpr Stop kExperts[2][4] = {{kQkv, kO, kRoutedGateUp, kRoutedDown},
                                 {kDeltaIn, kDeltaOut, kRoutedGateUp, kRoutedDown}};
constexpr Stop kShared[2][6] = {{kQkv, kO, kSharedGateUp, kSharedDown, kRoutedGateUp, kRoutedDown},
                                {kDeltaIn, kDeltaOut, kSharedGateUp, kSharedDown, kRoutedGateUp, kRoutedDown}};

}  // namespace

std::span<const Stop> stops_of(const ModelConfig& config, int layer) {
  const size_t mixer = has_delta_net(config, layer) ? 1 : 0;
  if (!has_experts(config, layer)) return kDense[mixer];
  return config.shared_f > 0 ? std::span<const Stop>(kShared[mixer]) : std::span<const Stop>(kExperts[mixer]);
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
  for (const auto& stops : kShared)
    for (const Stop& stop : stops)
      if (std::ranges::find(stop.roles, id.role) != stop.roles.end()) return stop_name(id.layer, stop);
  throw Error("{} is no linear of a layer that is quantised", name_of(id.role));
}

}  // namespace fidelio
