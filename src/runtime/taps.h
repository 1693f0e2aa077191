// This file lets calibration observe the inputs of linears while a model runs, and give them from outside, one stop
// of a layer at a time (arch/stops.h).
//
// Calibration walks through a layer stop by stop. It reads the stop's input and quantises the stop's linears against
// it. If they add to the stream, it then adds their output with the weights as they are by then. Every linear runs
// once.
//
//   begin(batch), write_stream(first)
//   read_input(layer, stop, input)        reads the stop's input
//   ... its linears are quantised, set_linear() ...
//   begin(batch), write_stream(first)
//   add_output(layer, stop, input, x)     sets the stream to x + W input
//   read_stream(x)
//
// A layer has two blocks: attention or a delta net, and the MLP or the experts. `first` is the stream that the stop's
// block begins with, and x is that stream with what earlier stops of the block have added to it. The two differ only
// in a block that adds twice (adds_twice()): a shared expert and the chosen experts read the same stream, and each
// adds to it.
#pragma once
#include <functional>
#include <span>

#include "runtime/runner.h"

namespace fidelio {

// Returns the tap of a layer's stop, as "o". Throws Error if the layer has no such stop.
const Tap& tap_of(const Program& program, int layer, std::string_view stop);

// Tells whether several stops of a tap's block add to the stream.
bool adds_twice(const Program& program, const Tap& tap);
// Tells whether a block of the model does.
bool adds_twice(const Program& program);

// All of these expect in the runner the stream that the block begins with. Those that read leave it there.

// Makes again what layers [first, last) read besides the stream (Needs of step/program.h), in the batch that has begun.
// `stream_of` returns the stream that an earlier layer began with. The stream in the runner is lost.
using StreamOf = std::function<std::span<const float>(int layer)>;
void prepare_layers(Runner& runner, int first, int last, const StreamOf& stream_of);
// Tells whether later layers read the keys and values of this one.
bool lends_keys(const Program& program, int layer);

// Runs up to a stop and reads its input (n, columns). The input of gates and ups that are the experts' has the rows of
// the stream; read_expert_input() gives the input of the experts' downs.
void read_input(Runner& runner, int layer, std::string_view stop, std::span<float> to);
// Sets the stream to `x` and what the stop's linear makes of `input` (n, columns).
void add_output(Runner& runner, int layer, std::string_view stop, std::span<const float> input,
                std::span<const float> x);

// Returns the experts that the rows of the stream pass, in a layer that has them.
Routes choose_experts(Runner& runner, int layer);
// Reads the inputs of the experts' downs (slots, f) with these routes, which this runner or another one chose.
void read_expert_input(Runner& runner, int layer, const Routes& routes, std::span<float> to);
// Sets the stream to `x` and the outputs of the downs for such inputs.
void add_experts(Runner& runner, int layer, const Routes& routes, std::span<const float> input,
                 std::span<const float> x);
// Returns the most values that any stop's input has for one row, where those of an expert's down count for each expert
// that the row passes.
int64_t widest_input(const ModelConfig& config);
// Copies rows of x (n, d) where the runner's values are: the rows that one expert sees of the input of gates and ups.
void take_rows(Runner& runner, int layer, std::span<const float> x, std::span<const int32_t> rows, std::span<float> to);

}  // namespace fidelio
