#include "arch/stops.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr Role kRoles[] = {Role::q, Role::k, Role::v, Role::o, Role::gate, Role::up, Role::down};
constexpr std::span<const Role> kAll = kRoles;

constexpr Stop kDense[] = {{"qkv", kAll.subspan(0, 3)},
                           {"o", kAll.subspan(3, 1), true},
                           {"gate_up", kAll.subspan(4, 2)},
                           {"down", kAll.subspan(6, 1), true}};
constexpr Stop kExperts[] = {
    kDense[0], kDense[1], {"gate_up", kAll.subspan(4, 2), false, true}, {"down", kAll.subspan(6, 1), true, true}};

}  // namespace

std::span<const Stop> stops_of(const ModelConfig& config, int) {
  return config.experts > 0 ? std::span(kExperts) : std::span(kDense);
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

std::string stop_name(int layer, const Stop& stop) { return fmt::format("layers.{}.{}", layer, stop.name); }

std::string stop_of(LinearId id) {
  if (id.layer < 0) return to_string(id);
  // A role has the same stop in every layer that has it.
  const auto reads = [&](const Stop& stop) { return std::ranges::find(stop.roles, id.role) != stop.roles.end(); };
  const auto stop = std::ranges::find_if(kDense, reads);
  check(stop != std::end(kDense), "{} is no linear of a layer", name_of(id.role));
  return stop_name(id.layer, *stop);
}

}  // namespace fidelio
