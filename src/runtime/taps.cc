#include "runtime/taps.h"

#include <algorithm>

#include "step/routing.h"

namespace fidelio {
namespace {

// The operation that chooses a layer's experts is the one before the operation that reads their input.
OpRange up_to_route(const Tap& mlp) { return {mlp.block, mlp.product}; }
OpRange before_route(const Tap& mlp) { return {mlp.block, mlp.product - 1}; }

}  // namespace

const Tap& tap_of(const Program& program, int layer, InputId which) {
  const auto found = std::ranges::find_if(
      program.taps, [&](const Tap& tap) { return tap.layer == layer && tap.stop->input == which; });
  check(found != program.taps.end(), "layer {} has no stop of that kind", layer);
  return *found;
}

void read_input(Runner& runner, int layer, InputId which, std::span<float> to) {
  const Tap& tap = tap_of(runner.program(), layer, which);
  const bool routes = runner.program().routing.experts > 0 && which == InputId::mlp_in;
  runner.run(routes ? before_route(tap) : OpRange{tap.block, tap.product});
  runner.read(tap.input, to);
}

void add_output(Runner& runner, int layer, InputId which, std::span<const float> input) {
  const Tap& tap = tap_of(runner.program(), layer, which);
  runner.write(tap.input, input);
  runner.run({tap.product, tap.end});
}

Routes choose_experts(Runner& runner, int layer) {
  return runner.run_route(up_to_route(tap_of(runner.program(), layer, InputId::mlp_in)));
}

void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to) {
  const Tap &mlp = tap_of(runner.program(), layer, InputId::mlp_in),
            &down = tap_of(runner.program(), layer, InputId::down_in);
  runner.run(before_route(mlp));
  runner.follow(routes);
  runner.run({mlp.product, down.product});
  runner.read(down.input, to);
}

void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input) {
  const Tap& down = tap_of(runner.program(), layer, InputId::down_in);
  runner.write(down.input, input);
  runner.follow(routes);
  runner.run({down.product, down.end});
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
  const int32_t take = tap_of(program, layer, InputId::mlp_in).product;
  const auto& operation = std::get<op::Take>(program.ops[static_cast<size_t>(take)]);
  runner.write(operation.from, x);
  runner.follow(alone(rows));
  runner.run({take, take + 1});
  runner.read(operation.to, to);
}

}  // namespace fidelio
