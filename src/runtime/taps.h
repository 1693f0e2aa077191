// This file lets calibration observe the inputs of linears while a model runs, and give them from outside, one stop
// of a layer at a time (arch/stops.h).
//
// Calibration walks through a layer stop by stop. It reads the stop's input and quantises the stop's linears against
// it. If they add to the stream, it then adds their output with the weights as they are by then. Every linear runs
// once.
//
//   begin(batch), write_stream(x)
//   read_input(layer, stop, input)        reads the stop's input, made from the stream that the block begins with
//   ... its linears are quantised, set_linear() ...
//   begin(batch), write_stream(x)
//   add_output(layer, stop, input)        x += W input
//   read_stream(x)
//
// The stream must be the layer's input for qkv and o, and hold attention's output too for gate_up and down.
#pragma once
#include <span>

#include "runtime/runner.h"

namespace fidelio {

// Returns the tap of a layer's stop, as "o". Throws Error if the layer has no such stop.
const Tap& tap_of(const Program& program, int layer, std::string_view stop);

// Runs up to a stop and reads its input (n, columns). The input of gates and ups that are the experts' has the rows of
// the stream; read_expert_input() gives the input of the experts' downs.
void read_input(Runner& runner, int layer, std::string_view stop, std::span<float> to);
// Adds to the stream what the layer's o or down makes of `input` (n, columns).
void add_output(Runner& runner, int layer, std::string_view stop, std::span<const float> input);

// Returns the experts that the rows of the stream pass, in a layer that has them.
Routes choose_experts(Runner& runner, int layer);
// Reads the inputs of the experts' downs (slots, f) with these routes, which this runner or another one chose.
void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to);
// Adds to the stream the outputs of the downs for such inputs.
void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input);
// Copies rows of x (n, d) where the runner's values are: the rows that one expert sees of the input of gates and ups.
void take_rows(Runner& runner, int layer, std::span<const float> x, std::span<const int32_t> rows, std::span<float> to);

}  // namespace fidelio
