#include "runtime/taps.h"

#include <algorithm>
#include <set>

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

// Returns the operations that make the input of a block's first linears: the norm.
OpRange to_first_input(const Program& program, const Tap& tap) {
  int32_t reader = tap.reader;
  for (const Tap& t : program.taps)
    if (t.block == tap.block) reader = std::min(reader, t.reader);
  // The operation that chooses a layer's experts is the one before the operation that reads their input.
  return {tap.block, tap.stop->routed ? std::min(reader, tap.reader - 1) : reader};
}

}  // namespace

const Tap& tap_of(const Program& program, int layer, std::string_view stop) {
  const auto found =
      std::ranges::find_if(program.taps, [&](const Tap& tap) { return tap.layer == layer && tap.stop->name == stop; });
  check(found != program.taps.end(), "layer {} has no stop called {}", layer, stop);
  return *found;
}

void prepare_layers(Runner& runner, int first, int last, const StreamOf& stream_of) {
  const std::span<const Needs> needs =
      std::span(runner.program().needs).subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
  if (std::ranges::any_of(needs, &Needs::rows)) runner.embed();
  std::set<int> made;
  for (const Needs& of : needs) {
    if (of.keys_of < 0 || of.keys_of >= first || !made.insert(of.keys_of).second) continue;
    runner.write_stream(stream_of(of.keys_of));
    runner.run(of.keys);
  }
}

bool lends_keys(const Program& program, int layer) {
  return std::ranges::any_of(program.needs, [&](const Needs& needs) { return needs.keys_of == layer; });
}

void read_input(Runner& runner, int layer, std::string_view stop, std::span<float> to) {
  const Tap& tap = tap_of(runner.program(), layer, stop);
  runner.run(tap.stop->routed ? to_first_input(runner.program(), tap) : OpRange{tap.block, tap.reader});
  runner.read(tap.input, to);
}

bool adds_twice(const Program& program, const Tap& tap) {
  return std::ranges::count_if(program.taps, [&](const Tap& t) { return t.block == tap.block && t.stop->adds; }) > 1;
}

bool adds_twice(const Program& program) {
  return std::ranges::any_of(program.taps, [&](const Tap& tap) { return adds_twice(program, tap); });
}

void add_output(Runner& runner, int layer, std::string_view stop, std::span<const float> input,
                std::span<const float> x) {
  const Tap& tap = tap_of(runner.program(), layer, stop);
  // The gate on a shared expert's output is made of the stream that the block begins with.
  if (adds_twice(runner.program(), tap)) runner.run({tap.block, tap.reader});
  runner.write_stream(x);
  runner.write(tap.input, input);
  runner.run({tap.reader, tap.end});
}

Routes choose_experts(Runner& runner, int layer) {
  const Tap& mlp = experts_tap(runner.program(), layer, false);
  runner.run(to_first_input(runner.program(), mlp));
  return runner.run_route({mlp.reader - 1, mlp.reader});
}

void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to) {
  const Tap &mlp = experts_tap(runner.program(), layer, false), &down = experts_tap(runner.program(), layer, true);
  runner.run(to_first_input(runner.program(), mlp));
  runner.follow(routes);
  runner.run({mlp.reader, down.reader});
  runner.read(down.input, to);
}

void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input,
                 std::span<const float> x) {
  const Program& program = runner.program();
  const Tap& down = experts_tap(program, layer, true);
  runner.write_stream(x);
  // An MLP that stands beside the experts does not add to the stream by itself. What it gives is made again.
  if (std::ranges::any_of(program.taps, [&](const Tap& t) { return t.block == down.block && !t.stop->routed; }) &&
      !adds_twice(program, down))
    runner.run({down.block, experts_tap(program, layer, false).reader - 1});
  runner.write(down.input, input);
  runner.follow(routes);
  runner.run({down.reader, down.end});
}

int64_t widest_input(const ModelConfig& c) {
  int64_t widest = c.d;
  for (const auto& [layer, stop] : stops_of(c)) {
    const int64_t columns = shape_of(c, {layer, stop->roles.front()})[1];
    widest = std::max(widest, stop->routed && stop->adds ? columns * c.experts_per_row : columns);
  }
  return widest;
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
