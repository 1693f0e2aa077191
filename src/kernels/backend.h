// kernels: the arithmetic. A backend (Cpu, Cuda) supplies the same few fused operations; runtime/execution/executor.h runs a step's
// program (step/program.h) over them. kernels/ref holds their readable twins in double.
//
// Letters used everywhere: n tokens of a batch, s sequences, d model dim, f ffn dim, h heads, hk kv heads, e head dim,
// v vocabulary, L layers, g group size, b bits, M rows of an activation matrix, K its columns.
//
// Laws every backend keeps (tests/): row invariance, i.e. a row of a result does not depend on which other rows are in
// the batch, nor on the number of threads; no operation allocates or throws once reserve() was called.
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

namespace fidelio {

// What a backend must have. Matrix: an FP32 matrix in device memory. Acts: what linears see, i.e. the prepared output
// of norm, attend, gated, turn; it is a light handle on the backend's own scratch and dies at the next call that returns
// one.
template <class B>
concept Backend = requires(B b, const LinearWeight& weight, const typename B::Linear& linear,
                           typename B::Matrix& matrix, const typename B::Matrix& input, typename B::Acts acts,
                           typename B::KvCache& cache, const Batch& batch, std::span<const float> host,
                           std::span<float> host_out, const AttentionShape& attention, const Hadamard& hadamard,
                           const typename B::Order& order, const typename B::TokenSet& tokens, const Routes& routes) {
  // Memory: matrices, packed weights, a cache of `pages` pages, scratch for up to `rows` rows of `columns` inputs.
  { b.allocate(int64_t{1}, int64_t{1}) } -> std::same_as<typename B::Matrix>;
  typename B::HostFloats;  // a vector of floats that downloads reach fast
  { b.pack(weight, 0) } -> std::same_as<typename B::Linear>;
  { b.allocate_cache(attention, int64_t{1}, KvFormat::f16) } -> std::same_as<typename B::KvCache>;
  b.reserve(int64_t{1}, int64_t{1}, int64_t{1});
  b.upload(host, matrix);                               // (rows, columns) from the host
  b.download(input, int64_t{0}, int64_t{1}, host_out);  // rows [first, first + count)
  b.copy(input, matrix, int64_t{1});                    // `rows` rows
  // A step. Where B::kOneKindAStep, of rows of one kind.
  { B::kOneKindAStep } -> std::convertible_to<bool>;
  b.begin(batch, Reading(), attention);
  b.embed(linear, matrix, 1.0f);  // x (n, d) = table rows of the batch's ids, times a factor
  { b.norm(input, input, 1e-5f) } -> std::same_as<typename B::Acts>;  // rmsnorm(x) * weight
  {
    b.norm_logit_rows(input, input, 1e-5f, int64_t{0}, int64_t{1})
    } -> std::same_as<typename B::Acts>;  // logit rows [first, first+count)
  b.linear(acts,
           std::span<const std::pair<const typename B::Linear*, typename B::Matrix*>>{});  // one input, several weights
  b.linear_add(acts, linear, matrix);                                                      // x += W a
  b.normalise(matrix, input, 1e-5f);          // x = rmsnorm(x) * weight, in place
  b.normalise(input, input, 1e-5f, matrix);   // y = rmsnorm(x) * weight
  b.add_normed(input, input, 1e-5f, matrix);  // x += rmsnorm(y) * weight
  // What the product after the next one will read: the backend may fetch it while memory would idle. No promise.
  b.upcoming(std::span<const typename B::Linear* const>());
  // Does `work`, operations of a step; a backend may record them and replay them whenever `what` (the caller's number
  // for these weights and matrices) and the shape of the batch are the same.
  b.repeat(uint64_t{0}, std::function<void()>());
  b.rope_append(matrix, matrix, input, &input, &input, cache,
                0);  // q (n,h,e), k, v (n,hk,e), q_norm or null, k_norm or null
  { b.attend(input, cache, 0) } -> std::same_as<typename B::Acts>;  // softmax(q k / sqrt e) v, causal, GQA
  {
    b.gated(input, input, Gate::silu, int64_t{1})
    } -> std::same_as<typename B::Acts>;  // silu or gelu(gate) * up, rows of them
  // A mixture of experts. experts: one matrix of each of a layer's experts, which must outlive it. route: chooses for the
  // rows of x (n, d), by the router (E, d), whose logits (n, E) are left; follow: takes another's choice. Where a backend
  // routes_alone() to the experts that the choice's products are of, routes() says nothing of it, no product needs the host,
  // and a step may be recorded; given none, routes() tells it. routed: x in slots, n k at most of what reserve() was told;
  // linear_routed: every slot by its expert; what was
  // gated of it has as many rows. add_routed: x (n, d) += the sum of each row's slots of y (n k, d) under their shares.
  { b.experts(std::span<const typename B::Linear* const>()) } -> std::same_as<typename B::Experts>;
  b.route(input, linear, RoutingRule(), std::span<const typename B::Experts* const>(), matrix);
  {
    b.routes_alone(RoutingRule(), std::span<const typename B::Experts* const>())
    } -> std::same_as<bool>;  // in the step that has begun
  b.follow(routes);
  { b.routes() } -> std::same_as<const Routes&>;
  { b.routed(input) } -> std::same_as<typename B::Acts>;
  b.linear_routed(acts, std::span<const RoutedProduct<typename B::Experts, typename B::Matrix>>{});
  b.add_routed(input, matrix);
  // The newest acts, every row turned; `input` has the signs of the matrix's core (K, K) as +1 and -1, nothing if K is 1.
  { b.turn(acts, hadamard, input) } -> std::same_as<typename B::Acts>;
  // Acts of an input's columns in another order, those that are kept in 8 bits last and twice (ModelConfig::kept_columns).
  { b.make_order(std::span<const int32_t>(), int64_t{0}) } -> std::same_as<typename B::Order>;
  { b.gather(acts, order) } -> std::same_as<typename B::Acts>;
  {b.read(acts, host_out)};                              // the input of linears in FP32 (calibration)
  { b.input(input) } -> std::same_as<typename B::Acts>;  // the inverse: a matrix (n, K) as the input of linears
  // Of rows of logits (., tokens) of some tokens those of all v: -infinity of the others.
  { b.make_token_set(std::span<const int32_t>(), int64_t{1}) } -> std::same_as<typename B::TokenSet>;
  b.spread(input, tokens, int64_t{1}, matrix);
  b.choose(input, std::span<const ChoiceRule>{}, std::span<Choice>{});  // from the first rows of logits (rows, v)
  { b.kernel_name(linear, Activations::a16) } -> std::convertible_to<std::string>;  // for reports and certificates
  { b.bytes_read(linear, Reading()) } -> std::same_as<int64_t>;  // of the packed weight, by a product of few rows
};

}  // namespace fidelio
