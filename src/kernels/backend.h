// This file defines what a backend is: the operations of a model's step on one kind of device. Cpu and Cuda are
// backends, and runtime/execution/executor.h runs a step's program (step/program.h) over them. kernels/ref has the
// same operations in double, as plainly as they can be written.
//
// Letters used everywhere: n tokens of a batch, s sequences, d model dim, f ffn dim, h heads, hk kv heads, e head dim,
// v vocabulary, L layers, E experts, k experts of a row, g group size, b bits, M rows of an activation matrix, K its
// columns.
//
// Every backend keeps two laws. Row invariance (tests/laws_test.cc): a row of a result depends neither on the other
// rows of the batch nor on the number of threads. Steady memory: a step of a shape that was run before allocates no
// matrix and no scratch.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hadamard.h"
#include "formats/linear_weight.h"
#include "step/attention.h"
#include "step/batch.h"
#include "step/choice.h"
#include "step/gate.h"
#include "step/reading.h"
#include "step/routes.h"
#include "step/state.h"

namespace fidelio {

// A Backend has these types and operations. A Matrix is an FP32 matrix in the device's memory. Acts are activations
// as linears read them: the output of norm, attend, gated, turn and gather, prepared in the form of their kernels.
// They are a light handle on the backend's own scratch and are valid until the next call that returns Acts.
// Operations that are given a model that the backend cannot run throw Error.
template <class B>
concept Backend = requires(B b, const LinearWeight& weight, const typename B::Linear& linear,
                           typename B::Matrix& matrix, const typename B::Matrix& input, typename B::Acts acts,
                           typename B::KvCache& cache, const Batch& batch, std::span<const float> host,
                           std::span<float> host_out, const AttentionShape& attention, const Hadamard& hadamard,
                           const typename B::Order& order, const typename B::TokenSet& tokens, const Routes& routes,
                           typename B::States& states) {
  // --- memory
  // allocate(rows, columns) makes a matrix.
  { b.allocate(int64_t{1}, int64_t{1}) } -> std::same_as<typename B::Matrix>;
  // HostFloats is a vector of floats that downloads reach fast.
  typename B::HostFloats;
  // pack(weight, high_bits) brings a weight into the layout of its kernels. Readings may ask for so many high bits of
  // its codes (Reading::high_bits).
  { b.pack(weight, 0) } -> std::same_as<typename B::Linear>;
  // pack_convolution(weight, channels) does so with the weight (channels, kernel) of a convolution.
  { b.pack_convolution(host, int64_t{1}) } -> std::same_as<typename B::Matrix>;
  // allocate_cache(attention, pages, format) makes a cache for keys and values.
  { b.allocate_cache(attention, int64_t{1}, KvFormat::f16) } -> std::same_as<typename B::KvCache>;
  // allocate_states(shape, slots) makes slots for the states of sequences.
  { b.allocate_states(StateShape(), int64_t{1}) } -> std::same_as<typename B::States>;
  { states.slots } -> std::convertible_to<int64_t>;
  // reserve(rows, columns, context) makes scratch for batches of up to `rows` rows, inputs of up to `columns` columns,
  // and positions below `context`.
  b.reserve(int64_t{1}, int64_t{1}, int64_t{1});
  // upload copies (rows, columns) from the host. download(x, first, count, to) copies rows [first, first + count) to
  // it. copy(from, to, rows) copies the first rows.
  b.upload(host, matrix);
  b.download(input, int64_t{0}, int64_t{1}, host_out);
  b.copy(input, matrix, int64_t{1});

  // --- a step If kOneKindAStep is true, all rows of a step must be of one RowKind. begin(batch, reading, attention)
  // starts a step.
  { B::kOneKindAStep } -> std::convertible_to<bool>;
  b.begin(batch, Reading(), attention);
  // embed(table, x, factor): x (n, d) = the table's rows of the batch's ids, times a factor.
  b.embed(linear, matrix, 1.0f);
  // norm(x, weight, eps): rmsnorm(x) * weight. norm_logit_rows(x, weight, eps, first, count): the same for logit rows
  // [first, first + count) of the batch alone.
  { b.norm(input, input, 1e-5f) } -> std::same_as<typename B::Acts>;
  { b.norm_logit_rows(input, input, 1e-5f, int64_t{0}, int64_t{1}) } -> std::same_as<typename B::Acts>;
  // linear(a, {W, y} ...): y = W a + bias, for several weights that read one input. linear_add(a, W, x): x += W a +
  // bias.
  b.linear(acts, std::span<const std::pair<const typename B::Linear*, typename B::Matrix*>>{});
  b.linear_add(acts, linear, matrix);
  // normalise(x, weight, eps): x = rmsnorm(x) * weight, in place. normalise(x, weight, eps, y) writes it to y instead.
  // add_normed(y, weight, eps, x): x += rmsnorm(y) * weight.
  b.normalise(matrix, input, 1e-5f);
  b.normalise(input, input, 1e-5f, matrix);
  b.add_normed(input, input, 1e-5f, matrix);
  // upcoming(weights) is a hint: the product after the next one will read these weights. A backend may fetch them while
  // its memory would be idle.
  b.upcoming(std::span<const typename B::Linear* const>());
  // repeat(number, work) does `work`, which calls operations of the step. A backend may record these and replay them
  // when the number and the shape of the batch are the same again. The caller gives each set of weights and matrices
  // its own number.
  b.repeat(uint64_t{0}, std::function<void()>());
  // rope_append(q, k, v, q_norm, k_norm, cache, layer): q (n, h, e) and k (n, hk, e) are scaled, normed unless the
  // norm's weight is null, and rotated by their positions. Then k and v (n, hk, e) are written to the cache.
  b.rope_append(matrix, matrix, input, &input, &input, cache, 0);
  // turn_queries(q, q_norm, cache, layer) does so with q alone, in a layer that reads the keys and values of this one.
  b.turn_queries(matrix, &input, cache, 0);
  // norm_heads(x, weight, eps, y, adds): y = rmsnorm(x) * weight over each run of as many columns as the weight has, or
  // with `adds` y += that. x and y may be the same.
  b.norm_heads(input, input, 1e-5f, matrix, true);
  // attend(q, cache, layer, sinks): softmax(q k / sqrt(e)) v, causal, with h / hk heads sharing a kv head. Sinks (1, h)
  // join the scores as those of a further position whose value is zero, unless they are null.
  { b.attend(input, cache, 0, &input) } -> std::same_as<typename B::Acts>;
  // split_gate(x, q, gate): q = the first e columns of each head of x (n, h, 2, e), and gate = the others.
  // gate_heads(a, gate): the newest Acts times sigmoid(gate).
  b.split_gate(input, matrix, matrix);
  { b.gate_heads(acts, input) } -> std::same_as<typename B::Acts>;
  // gated(gate, up, how, rows): function(gate) * up, for the first rows; the function is silu, gelu_tanh or clamped.
  { b.gated(input, input, Gating(Gate::silu), int64_t{1}) } -> std::same_as<typename B::Acts>;

  // columns(x, first, y): y = the columns of x from this one on. clear(x): x = 0. scale(x, factor): x = x * the only
  // value of the factor. softcap(x, rows, cap): x = cap * tanh(x / cap), in the first rows.
  b.columns(input, int64_t{0}, matrix);
  b.clear(matrix);
  b.scale(matrix, input);
  b.softcap(matrix, int64_t{1}, 1.0f);

  // --- a gated delta net (op::Convolve, op::DeltaRule and op::GatedNorm in step/program.h). Both of the first two read
  // and keep their part of the layer's states as the batch says.
  // convolve(x, weight, y, states, layer): y = silu(x convolved with the packed weight).
  b.convolve(input, input, matrix, states, 0);
  // delta_rule(x, b, a, decay, y, states, layer): decay (2, heads) is -e^log_rate and the step's bias.
  b.delta_rule(input, input, input, input, matrix, states, 0);
  // gated_norm(x, gate, weight, eps, function): rmsnorm(x) by head, * weight * function(gate).
  { b.gated_norm(input, input, input, 1e-6f, Gate::silu) } -> std::same_as<typename B::Acts>;

  // --- a predictor of the token after the next (op::Before, op::Carry and op::Join)
  // before(x, y, states): y = the row before of each row of x; the first row of a segment has what its state carries.
  // carry(x, states): the states that are kept carry the rows of x. join(x, y): the columns of x, and then those of y.
  b.before(input, matrix, states);
  b.carry(input, states);
  { b.join(input, input) } -> std::same_as<typename B::Acts>;

  // --- a mixture of experts
  // experts(weights) joins one matrix of each of a layer's experts. The matrices must outlive it.
  { b.experts(std::span<const typename B::Linear* const>()) } -> std::same_as<typename B::Experts>;
  // route(x, router, adjustments, rule, readers, logits) chooses experts for the rows of x (n, d) by a router (E, d)
  // and its adjustments (RoutingRule), and leaves the router's logits (n, E). `readers` are the experts' matrices that
  // the chosen rows will meet. If they are empty, the host is told of the choice, and routes() returns it.
  b.route(input, linear, input, RoutingRule(), std::span<const typename B::Experts* const>(), matrix);
  // routes_alone(rule, readers) tells whether route() with these readers needs no help of the host in the step that has
  // begun. The step can then be recorded, and routes() does not have the choice.
  { b.routes_alone(RoutingRule(), std::span<const typename B::Experts* const>()) } -> std::same_as<bool>;
  // follow(routes) takes routes that were chosen elsewhere.
  b.follow(routes);
  { b.routes() } -> std::same_as<const Routes&>;
  // routed(x) copies rows of x to their slots, of which there are n k.
  { b.routed(input) } -> std::same_as<typename B::Acts>;
  // linear_routed(a, {experts, y} ...): row i of y = slot i by the matrix of its expert. gated() of such results has
  // a row for each slot too.
  b.linear_routed(acts, std::span<const RoutedProduct<typename B::Experts, typename B::Matrix>>{});
  // add_routed(y, x): x (n, d) += the sum of each row's slots of y (n k, d), times their shares.
  b.add_routed(input, matrix);

  // add_shared(y, gate, x): x += sigmoid(gate) * y, where gate (n, 1).
  b.add_shared(input, input, matrix);

  // --- other forms of an input turn(a, hadamard, signs) multiplies every row of the newest Acts by a Hadamard
  // matrix. `signs` are the entries +1 and -1 of the matrix's core (core, core), and are empty if the core is 1.
  { b.turn(acts, hadamard, input) } -> std::same_as<typename B::Acts>;
  // make_order(columns, kept) makes an order of columns. gather(a, order) puts the columns of the newest Acts in it;
  // those that are kept in 8 bits come last and twice (ModelConfig::kept_columns). `kept` divides the columns' number.
  { b.make_order(std::span<const int32_t>(), int64_t{0}) } -> std::same_as<typename B::Order>;
  { b.gather(acts, order) } -> std::same_as<typename B::Acts>;
  // read(a, to) copies Acts to the host in FP32, for calibration. input(x) is the inverse: it makes Acts of a matrix
  // (n, K).
  {b.read(acts, host_out)};
  { b.input(input) } -> std::same_as<typename B::Acts>;

  // --- logits make_token_set(tokens, v) makes a set of tokens. spread(few, set, rows, logits) copies rows of the
  // set's logits (rows, tokens) to rows of all logits (rows, v). Logits of other tokens become -infinity.
  { b.make_token_set(std::span<const int32_t>(), int64_t{1}) } -> std::same_as<typename B::TokenSet>;
  b.spread(input, tokens, int64_t{1}, matrix);
  // choose(logits, rules, choices) chooses a token from each of the first rows of logits (rows, v).
  b.choose(input, std::span<const ChoiceRule>{}, std::span<Choice>{});

  // --- reports kernel_name(W, activations) names the kernel that multiplies by a weight, for reports and
  // certificates. bytes_read(W, reading) returns the bytes of a packed weight that a product of few rows reads.
  { b.kernel_name(linear, Activations::a16) } -> std::convertible_to<std::string>;
  { b.bytes_read(linear, Reading()) } -> std::same_as<int64_t>;
};

}  // namespace fidelio
