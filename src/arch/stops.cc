#include "arch/stops.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

const Stop& stop_of(Role role) {
  const auto reads = [&](const Stop& stop) { return std::ranges::find(stop.roles, role) != stop.roles.end(); };
  const auto* stop = std::ranges::find_if(kStops, reads);
  check(stop != kStops.end(), "{} is no linear of a layer", name_of(role));
  return *stop;
}

std::string stop_name(int layer, const Stop& stop) { return fmt::format("layers.{}.{}", layer, stop.name); }

std::string stop_of(LinearId id) { return id.layer < 0 ? to_string(id) : stop_name(id.layer, stop_of(id.role)); }

}  // namespace fidelio
