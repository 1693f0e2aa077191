// kernels: the arithmetic. A backend (Cpu, Cuda) supplies the same few fused operations; runtime/forward/forward.h is written
// once over them. kernels/ref holds their readable twins in double.
//
// Letters used everywhere: n tokens of a batch, s sequences, d model dim, f ffn dim, h heads, hk kv heads, e head dim,
// v vocabulary, L layers, g group size, b bits, M rows of an activation matrix, K its columns.
//
// Laws every backend keeps (tests/): row invariance, i.e. a row of a result does not depend on which other rows are in
// the batch, nor on the number of threads; no operation allocates or throws once reserve() was called.
#pragma once
#include <cmath>
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
#include "kernels/choice.h"
#include "kernels/reading.h"
#include "kernels/routes.h"

namespace fidelio {

// What a row is for, which chooses the kernel family; the size of the batch never does. prompt: of a prompt, whose
// rows come many at a time and may be multiplied in whole tiles. output: decoding, verification, and the replay of
// tokens that were decoded before; its bits are those of decoding one row.
enum class RowKind : uint8_t { prompt, output };

constexpr int kPageTokens = 32;

// Consecutive rows of one sequence at consecutive positions; a row attends to its own sequence at positions <= its own.
// A sequence has one segment in a batch: those before it must be in the cache already.
struct Segment {
  int32_t first_row, rows;
  int32_t position;           // of the first row
  int32_t first_page, pages;  // in Batch::pages; page p of the sequence holds positions [p, p + 1) * kPageTokens
  RowKind kind;
};

// One flat ragged step: prefill, decode, verify and perplexity are all just batches. Cleared and filled again it keeps
// its memory.
struct Batch {
  std::vector<int32_t> ids;         // (n)
  std::vector<int32_t> pages;       // of all segments, one after the other
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted
  std::vector<Segment> segments;    // in the order of their rows

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  std::span<const int32_t> pages_of(const Segment& s) const {
    return std::span(pages).subspan(static_cast<size_t>(s.first_page), static_cast<size_t>(s.pages));
  }
  void clear() { ids.clear(), pages.clear(), logit_rows.clear(), segments.clear(); }
  // Appends rows for `tokens` at `position` and after it; the last `wanted_logits` of them give logits.
  void append(std::span<const int32_t> tokens, int64_t position, std::span<const int32_t> own_pages,
              int64_t wanted_logits, RowKind kind) {
    const auto count = static_cast<int32_t>(tokens.size()), row = static_cast<int32_t>(ids.size());
    segments.push_back({row, count, static_cast<int32_t>(position), static_cast<int32_t>(pages.size()),
                        static_cast<int32_t>(own_pages.size()), kind});
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    pages.insert(pages.end(), own_pages.begin(), own_pages.end());
    for (int64_t i = count - wanted_logits; i < count; ++i) logit_rows.push_back(row + static_cast<int32_t>(i));
  }
};

// One way of turning heads by their position: pairs (i, i + n) of a head's first 2 n columns, n <= e / 2 the number of
// frequencies (Hugging Face's half-split convention). Columns behind those are left as they are: all, where n is 0.
struct Rotation {
  std::vector<float> inverse_frequencies;  // (n) radians a position
  float scale = 1;                         // on cos and sin (yarn, longrope)
  bool operator==(const Rotation&) const = default;
};
struct LayerAttention {
  int window = 0;    // a row sees the last `window` positions only; 0 = all
  int rotation = 0;  // which of the shape's rotations
  bool operator==(const LayerAttention&) const = default;
};
struct AttentionShape {
  std::vector<LayerAttention> layers;  // (L)
  std::vector<Rotation> rotations;
  int heads = 0;       // h
  int kv_heads = 0;    // hk
  int head_dim = 0;    // e
  float norm_eps = 0;  // of q_norm and k_norm
  float query_scale =
      1;  // q is multiplied by it before anything else, beside the 1 / sqrt(e) of all scores; 1 with q_norm
  // q of position p is multiplied by 1 + beta log(1 + floor(p / positions)) as well (Llama 4, Ministral 3); 0: it is not.
  double query_growth = 0;
  int query_growth_positions = 1;

  int64_t depth() const { return static_cast<int64_t>(layers.size()); }
  float query_factor(int64_t position) const {
    const double steps = static_cast<double>(position / query_growth_positions);
    return query_scale * static_cast<float>(1 + query_growth * std::log1p(steps));
  }
};

// What a gate's values pass before they multiply `up`: x / (1 + e^-x), or GELU by tanh, x (1 + tanh(sqrt(2 / pi)
// (x + .044715 x^3))) / 2.
enum class Gate : uint8_t { silu, gelu_tanh };

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
  b.upcoming({&linear, &linear});
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
