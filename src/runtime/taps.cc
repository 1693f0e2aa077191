#include "runtime/taps.h"

#include <algorithm>

#include "step/routing.h"

namespace fidelio {
namespace {

// Returns the tap of the experts' gates and ups, or that of their downs, which add to the stream.
const Tap& experts_tap(const Program& program, int layer, bool adds) {
  const auto found = std::ranges::find_if(
      program.taps, [&](const Tap& tap) { return tap.layer == layer && tap.stop->routed && tap.stop->adds == adds; });
  check(found != program.taps.end(), "layer {} has no experts", layer);
  return *found;
}

// The operation that chooses a layer's experts is the one before the operation that reads their input.
OpRange up_to_route(const Tap& mlp) { return {mlp.block, mlp.reader}; }
OpRange before_route(const Tap& mlp) { return {mlp.block, mlp.reader - 1}; }

}  // namespace

const Tap& tap_of(const Program& program, int layer, std::string_view stop) {
  const auto found =
      std::ranges::find_if(program.taps, [&](const Tap& tap) { return tap.layer == layer && tap.stop->name == stop; });
  check(found != program.taps.end(), "layer {} has no stop called {}", layer, stop);
  return *found;
}

void read_input(Runner& runner, int layer, std::string_view stop, std::span<float> to) {
  const Tap& tap = tap_of(runner.program(), layer, stop);
  runner.run(tap.stop->routed ? before_route(tap) : OpRange{tap.block, tap.reader});
  runner.read(tap.input, to);
}

void add_output(Runner& runner, int layer, std::string_view stop, std::span<const float> input) {
  const Tap& tap = tap_of(runner.program(), layer, stop);
  runner.write(tap.input, input);
  runner.run({tap.reader, tap.end});
}

Routes choose_experts(Runner& runner, int layer) {
  return runner.run_route(up_to_route(experts_tap(runner.program(), layer, false)));
}

void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to) {
  const Tap &mlp = experts_tap(runner.program(), layer, false), &down = experts_tap(runner.program(), layer, true);
  runner.run(before_route(mlp));
  runner.follow(routes);
  runner.run({mlp.reader, down.reader});
  runner.read(down.input, to);
}

void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input) {
  const Tap& down = experts_tap(runner.program(), layer, true);
  runner.write(down.input, input);
  runner.follow(routes);
  runner.run({down.reader, down.end});
}

void take_rows(Runner& runner, int layer, std::span<const float> x, std::span<const int32_t> rows,
               std::span<float> to) {
  const auto d = static_cast<size_t>(runner.config().d);
  if (!runner.gpu()) {
    for (size_t i = 0; i < rows.size(); ++i)
      std::ranges::copy(x.subspan(static_cast<size_t>(rows[i]) * d, d),
                        to.begin() + static_cast<std::ptrdiff_t>(i * d));
    return;
  }
  const Program& program = runner.program();
  const int32_t take = experts_tap(program, layer, false).reader;
  const auto& operation = std::get<op::Take>(program.ops[static_cast<size_t>(take)]);
  runner.write(operation.from, x);
  runner.follow(alone(rows));
  runner.run({take, take + 1});
  runner.read(operation.to, to);
}

}  // namespace fidelio
