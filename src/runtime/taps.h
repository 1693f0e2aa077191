// taps: observing and giving the inputs of linears while a model runs, one stop of a layer at a time.
//
// Calibration walks a layer so: the input of a stop is read, the stop's linears are quantised against it, and where they
// add to the stream, the sum is made with the weights as they are by then. So every linear runs exactly once.
//
//   begin(batch), write_stream(x)
//   read_input(layer, stop)               the stop's input, of the stream that the block begins with
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

// A layer with experts: the experts that the rows of the stream pass.
Routes choose_experts(Runner& runner, int layer);
// The inputs of the experts' downs (slots, f), under these routes or those that another runner chose.
void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to);
// Adds to the stream what the downs make of such inputs.
void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input);
// Copies rows of x (n, d) where the runner's values are: the rows that one expert sees of the input of gates and ups.
void take_rows(Runner& runner, int layer, std::span<const float> x, std::span<const int32_t> rows, std::span<float> to);

}  // namespace fidelio
