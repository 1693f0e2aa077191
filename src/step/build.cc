#include "step/build.h"

#include <algorithm>
#include <cmath>

#include "arch/model_weights.h"
#include "arch/stops.h"
#include "core/error.h"

namespace fidelio {
namespace {

class Builder {
 public:
  // `predictor`: the model drafts with its predictor.
  Builder(const ModelConfig& config, int64_t context, bool predictor)
      : c_(config), scalars_(scalars_of(config)), predictor_(predictor) {
    p_.linears = linears_of(c_);
    const std::vector<LinearId> kept = predictor_ ? kept_linears_of(c_) : fixed_linears_of(c_);
    p_.linears.insert(p_.linears.end(), kept.begin(), kept.end());
    if (c_.tie_embeddings) p_.linears.push_back({-1, Role::head});
    p_.attention = attention_shape(c_, context, predictor_);
    p_.deltas = delta_layers(c_);
    p_.state = state_shape(c_, predictor_);
    p_.routing = {c_.experts,        c_.experts_per_row,       c_.renormalised,
                  c_.router.scoring, c_.router.corrected,      c_.router.scaled,
                  c_.router.groups,  c_.router.groups_per_row, c_.router.factor};
    if (c_.rotated) p_.hadamards = {heads_turn(c_), gated_turn(c_)};
  }

  Program build() {
    p_.stream = value("x", Rows::stream, c_.d);
    p_.embedding = ops([&] {
      add(op::Embed{p_.stream, linear({-1, Role::embedding}), scalars_.embedding});
      if (c_.per_layer > 0) per_layer_rows();
    });
    for (layer_ = 0; layer_ < c_.L; ++layer_) {
      p_.layers.push_back(ops([&] {
        has_delta_net(c_, layer_) ? delta_net() : attention();
        has_experts(c_, layer_) ? experts() : mlp();
        if (c_.per_layer > 0) add_per_layer();
        if (c_.blocks.layer_scalar) scale_stream();
      }));
      p_.needs.push_back(needs());
    }
    layer_ = kPredictorLayer;
    if (predictor_) p_.follow = ops([&] { follow(); });
    heads();
    return std::move(p_);
  }

  // The predictor's layer has its own place in the cache, behind those of the model's layers.
  Program build_predictor() {
    p_.deltas.clear();  // it has none of the model's layers
    p_.stream = value("x", Rows::stream, c_.d);
    attention_layers_ = static_cast<int>(p_.attention.depth()) - 1;
    layer_ = kPredictorLayer;
    p_.embedding = ops([&] { join(p_.stream); });
    p_.layers.push_back(ops([&] {
      attention();
      has_experts(c_, layer_) ? experts() : mlp();
      const ValueId hidden = value("hidden", Rows::stream, c_.d);
      final_norm_ = norm(Norm::predicted);
      add(op::Norm{p_.stream, hidden, final_norm_, scalars_.eps});
      add(op::Carry{hidden});
    }));
    heads();
    return std::move(p_);
  }

 private:
  Needs needs() const {
    Needs needs{c_.per_layer > 0, kind_of(c_, layer_).keys_of, {}};
    if (needs.keys_of < 0) return needs;
    needs.keys = p_.layers[static_cast<size_t>(needs.keys_of)];
    const auto made = std::find_if(p_.ops.begin() + needs.keys.first, p_.ops.end(),
                                   [](const Op& o) { return std::holds_alternative<op::Heads>(o); });
    needs.keys.last = static_cast<int32_t>(made - p_.ops.begin()) + 1;
    return needs;
  }

  // The two heads.
  void heads() {
    const auto cap = [&](ValueId logits) {
      if (c_.logit_cap > 0) add(op::Softcap{logits, static_cast<float>(c_.logit_cap)});
    };
    p_.logits = value("logits", Rows::logits, c_.v);
    p_.head_weight = linear({-1, Role::head});
    p_.head = ops([&] {
      head(p_.logits);
      cap(p_.logits);
    });
    p_.draft_logits = value("draft_logits", Rows::logits, 0);  // as many columns as the draft's vocabulary has tokens
    p_.draft_head = ops([&] {
      head(p_.draft_logits);
      cap(p_.draft_logits);
      add(op::Spread{p_.draft_logits, p_.logits});
    });
  }

  ValueId value(const std::string& name, Rows rows, int64_t columns, bool prepared = false) {
    const auto same = [&](const Value& v) {
      return v.name == name && v.rows == rows && v.columns == columns && v.prepared == prepared;
    };
    const auto found = std::ranges::find_if(p_.values, same);
    if (found == p_.values.end()) return p_.values.push_back({name, rows, columns, prepared}), last(p_.values);
    return static_cast<ValueId>(found - p_.values.begin());
  }
  ValueId prepared(const std::string& name, int64_t columns, Rows rows = Rows::stream) {
    return value(name, rows, columns, true);
  }
  WeightId linear(LinearId id) const {
    return static_cast<WeightId>(std::ranges::find(p_.linears, id) - p_.linears.begin());
  }
  NormId norm(Norm which, float factor = 1) {
    p_.norms.push_back({which >= Norm::final ? -1 : layer_, which, factor});
    return last(p_.norms);
  }
  ExpertsId experts_of(Role role) {
    p_.experts.push_back({layer_, role});
    return last(p_.experts);
  }
  template <typename T>
  static int32_t last(const std::vector<T>& list) {
    return static_cast<int32_t>(list.size()) - 1;
  }
  int32_t next() const { return static_cast<int32_t>(p_.ops.size()); }
  void add(Op operation) { p_.ops.push_back(std::move(operation)); }
  template <typename F>
  OpRange ops(const F& append) {
    const int32_t first = next();
    append();
    return {first, next()};
  }

  // The predictor's input: to = join of the token's embedding and what the row before led to, both normed.
  void join(ValueId to) {
    const ValueId token = value("token", Rows::stream, c_.d), hidden = value("hidden", Rows::stream, c_.d),
                  before = value("before", Rows::stream, c_.d), joined = prepared("joined", 2 * c_.d);
    add(op::Embed{token, linear({-1, Role::embedding}), scalars_.embedding});
    add(op::Norm{token, token, norm(Norm::token), scalars_.eps});
    add(op::Before{hidden, before});
    add(op::Norm{before, before, norm(Norm::before), scalars_.eps});
    add(op::Join{token, before, joined});
    add(op::Product{joined, {{linear({layer_, Role::join}), to}}});
  }

  // Keeps the predictor's keys and values of all rows, and what the rows led to, as its steps will need them.
  void follow() {
    check(c_.blocks.norm_before && !c_.rotated && c_.kept_columns == 0,
          "a predictor reads a normed stream; a model without that, or rotated, or with columns kept in 8 bits, has no "
          "program for its predictor yet");
    const ValueId hidden = value("hidden", Rows::stream, c_.d);
    final_norm_ = norm(Norm::final, scalars_.final_norm);
    add(op::Norm{p_.stream, hidden, final_norm_, scalars_.eps});
    const ValueId x = value("predicted", Rows::stream, c_.d), input = prepared("input", c_.d);
    join(x);
    add(op::Carry{hidden});
    add(op::Norm{x, input, norm(Norm::attn), scalars_.eps});
    queries(input, head_values());
  }

  // The input of attention or of the MLP: the stream, normed where the family norms before its blocks.
  ValueId block_input(Norm which) {
    if (!c_.blocks.norm_before) return p_.stream;
    const ValueId to = prepared("input", c_.d);
    add(op::Norm{p_.stream, to, norm(which), scalars_.eps});
    return to;
  }
  // The same value in the order of the columns that the weights of a stop have.
  ValueId ordered(ValueId from, std::string_view which) {
    if (c_.kept_columns == 0) return from;
    const Value source = p_.values[static_cast<size_t>(from)];
    const ValueId to = prepared(source.name + ".ordered", source.columns + c_.kept_columns);
    p_.orders.push_back({layer_, &stop_of(c_, layer_, which)});
    add(op::Reorder{from, to, last(p_.orders)});
    return to;
  }
  ValueId turned(ValueId from, int hadamard) {
    if (!c_.rotated || p_.hadamards[static_cast<size_t>(hadamard)].order == 1) return from;
    const Value source = p_.values[static_cast<size_t>(from)];
    const ValueId to = prepared(source.name + ".turned", source.columns);
    add(op::Turn{from, to, hadamard});
    return to;
  }
  // Notes the place where the next operation, a product, reads a stop's input.
  void tap(std::string_view which, ValueId input, int32_t block, ValueId spare = -1) {
    p_.taps.push_back({layer_, &stop_of(c_, layer_, which), input, block, next(), next() + 1, spare});
  }
  // x += W from, normed before it is added where the family does so.
  void add_branch(ValueId from, Role role, Norm which) {
    const WeightId weight = linear({layer_, role});
    if (!c_.blocks.norm_after) return add(op::Product{from, {{weight, p_.stream}}, true});
    const ValueId branch = value("branch", Rows::stream, c_.d);
    add(op::Product{from, {{weight, branch}}});
    add(op::AddNorm{branch, p_.stream, norm(which), scalars_.branch_eps});
    p_.taps.back().end = next();
  }

  // The queries of a layer, with the gate on attention's output where there is one, and their place in the cache.
  struct Queries {
    ValueId q, gate;
    int layer;
  };
  struct HeadValues {
    ValueId q, k, v;
  };
  int64_t heads_width() const { return int64_t{c_.h} * head_dim_of(c_, layer_); }
  HeadValues head_values() {
    const int64_t kv_width = int64_t{kv_heads_of(c_, layer_)} * head_dim_of(c_, layer_);
    const ValueId q = value("q", Rows::stream, heads_width());
    if (layer_ != kPredictorLayer && !keeps_keys(c_, layer_)) return {q, -1, -1};
    const ValueId k = value("k", Rows::stream, kv_width);
    return {q, k, value("v", Rows::stream, kv_width)};
  }
  // Makes the queries of a layer that reads an earlier layer's keys and values.
  Queries queries_alone(ValueId input, ValueId q) {
    check(!c_.blocks.attention_gate && c_.blocks.qk_norm != QkNorm::width,
          "a layer that reads another's keys and values has queries alone, without a gate, and no norm of their width");
    const std::vector<int> layers = caching_layers(c_);
    const auto at = static_cast<int>(std::ranges::find(layers, kind_of(c_, layer_).keys_of) - layers.begin());
    add(op::Product{input, {{linear({layer_, Role::q}), q}}});
    op::Queries turned{q};
    turned.layer = at;
    if (c_.blocks.qk_norm == QkNorm::head) turned.norm = norm(Norm::q, query_scale(c_, layer_));
    add(turned);
    return {q, -1, at};
  }
  // Makes queries, keys and values of the layer's input, and keeps the latter two in the cache.
  Queries queries(ValueId input, const HeadValues& to) {
    const int64_t width = heads_width();
    const auto [q, k, v] = to;
    if (k < 0) return queries_alone(input, q);
    const bool gated = c_.blocks.attention_gate;
    const ValueId both = gated ? value("q_gate", Rows::stream, 2 * width) : q,
                  gate = gated ? value("attention_gate", Rows::stream, width) : -1;
    op::Product product{input, {{linear({layer_, Role::q}), both}, {linear({layer_, Role::k}), k}}};
    const bool keys_as_values = kind_of(c_, layer_).keys_as_values;
    if (!keys_as_values) product.outputs.push_back({linear({layer_, Role::v}), v});
    add(product);
    if (keys_as_values) add(op::Columns{k, v, 0});
    if (gated) add(op::SplitGate{both, q, gate});
    if (c_.blocks.value_norm) add(op::NormHeads{v, v, norm(Norm::v), p_.attention.norm_eps});
    op::Heads heads{q, k, v};
    heads.layer = attention_layers_++;
    if (c_.blocks.qk_norm == QkNorm::width) {
      add(op::Norm{q, q, norm(Norm::q), p_.attention.norm_eps});
      add(op::Norm{k, k, norm(Norm::k), p_.attention.norm_eps});
    } else if (c_.blocks.qk_norm == QkNorm::head) {
      heads.q_norm = norm(Norm::q, query_scale(c_, layer_));
      heads.k_norm = norm(Norm::k);
    }
    add(heads);
    return {q, gate, heads.layer};
  }

  // Attention's output, times the sigmoid of a gate where the family has one.
  ValueId attended(const Queries& by) {
    const int64_t width = heads_width();
    const ValueId heads = prepared("heads", width);
    const NormId sinks = c_.blocks.sinks ? norm(Norm::sinks) : -1;
    if (by.gate < 0) {
      add(op::Attend{by.q, heads, by.layer, sinks});
      return heads;
    }
    const ValueId plain = prepared("attended", width);
    add(op::Attend{by.q, plain, by.layer, sinks});
    add(op::GateHeads{plain, by.gate, heads});
    return heads;
  }

  void attention() {
    const int32_t block = next();
    const HeadValues values = head_values();
    const ValueId input = ordered(block_input(Norm::attn), "qkv");
    tap("qkv", input, block);
    const Queries made = queries(input, values);
    const ValueId output = ordered(turned(attended(made), 0), "o");
    tap("o", output, block, made.q);
    add_branch(output, Role::o, Norm::post_attn);
  }

  void delta_net() {
    check(
        c_.blocks.norm_before && !c_.blocks.norm_after && !c_.rotated && c_.kept_columns == 0,
        "layers with a delta net are norm, delta net, add; a model with other norms, or rotated, or with columns kept "
        "in 8 bits, has no program yet");
    const DeltaNet& delta = c_.delta;
    const int32_t block = next();
    const ValueId qkv = value("delta_qkv", Rows::stream, delta.channels()),
                  z = value("delta_z", Rows::stream, delta.values()),
                  b = value("delta_b", Rows::stream, delta.value_heads),
                  a = value("delta_a", Rows::stream, delta.value_heads),
                  convolved = value("convolved", Rows::stream, delta.channels()),
                  read = value("delta_read", Rows::stream, delta.values()), heads = prepared("delta", delta.values());
    const ValueId input = block_input(Norm::attn);
    const int index = delta_layers_++;
    tap("delta_in", input, block);
    add(op::Product{input,
                    {{linear({layer_, Role::delta_qkv}), qkv},
                     {linear({layer_, Role::delta_z}), z},
                     {linear({layer_, Role::delta_b}), b},
                     {linear({layer_, Role::delta_a}), a}}});
    add(op::Convolve{qkv, convolved, index});
    add(op::DeltaRule{convolved, b, a, read, index});
    add(op::GatedNorm{read, z, heads, norm(Norm::delta), c_.rms_eps,
                      delta.gate == Activation::sigmoid ? Gate::sigmoid : Gate::silu});
    tap("delta_out", heads, block, z);
    add_branch(heads, Role::delta_out, Norm::post_attn);
  }

  Gating gate_function() const {
    if (c_.blocks.activation == Activation::clamped)
      return {Gate::clamped, static_cast<float>(c_.gate_alpha), static_cast<float>(c_.gate_limit)};
    return c_.blocks.activation == Activation::silu ? Gate::silu : Gate::gelu_tanh;
  }

  void mlp() {
    const int32_t block = next();
    const int64_t f = ffn_columns(c_, layer_);
    const ValueId gate = value("gate", Rows::stream, f), up = value("up", Rows::stream, f);
    const ValueId input = ordered(block_input(Norm::mlp), "gate_up");
    tap("gate_up", input, block);
    add(op::Product{input, {{linear({layer_, Role::gate}), gate}, {linear({layer_, Role::up}), up}}});
    const ValueId gated = prepared("gated", f);
    add(op::Gated{gate, up, gated, gate_function()});
    const ValueId output = ordered(turned(gated, 1), "down");
    tap("down", output, block, gate);
    add_branch(output, Role::down, Norm::post_mlp);
  }

  void experts() {
    if (c_.blocks.experts == ExpertFiles::beside) return experts_beside();
    check(c_.blocks.norm_before && !c_.blocks.norm_after && !c_.rotated && c_.kept_columns == 0,
          "layers with experts are norm, experts, add; a model with other norms, or rotated, or with columns kept in 8 "
          "bits, has no program yet");
    const int32_t block = next();
    const ValueId normed = value("normed", Rows::stream, c_.d), taken = prepared("taken", c_.d, Rows::slots),
                  gate = value("gate", Rows::slots, c_.f), up = value("up", Rows::slots, c_.f),
                  gated = prepared("gated", c_.f, Rows::slots), given = value("given", Rows::slots, c_.d);
    const ExpertsId gates = experts_of(Role::gate), ups = experts_of(Role::up), downs = experts_of(Role::down);
    add(op::Norm{p_.stream, normed, norm(Norm::mlp), scalars_.eps});
    if (c_.shared_f > 0) shared_expert(normed, block);
    p_.routers.push_back(layer_);
    add(op::Route{normed, value("routing", Rows::stream, c_.experts), last(p_.routers), {gates, ups, downs}});
    tap("gate_up", normed, block);
    add(op::Take{normed, taken});
    add(op::RoutedProduct{taken, {{gates, gate}, {ups, up}}});
    add(op::Gated{gate, up, gated, gate_function()});
    tap("down", gated, block, gate);
    add(op::RoutedProduct{gated, {{downs, given}}});
    add(op::Combine{given, p_.stream});
    p_.taps.back().end = next();
  }

  // The expert that every row passes, under the sigmoid of a gate of its own where it has one.
  void shared_expert(ValueId normed, int32_t block) {
    const ValueId gate = value("shared_gate", Rows::stream, c_.shared_f),
                  up = value("shared_up", Rows::stream, c_.shared_f), gated = prepared("shared", c_.shared_f);
    op::Product in{normed, {{linear({layer_, Role::shared_gate}), gate}, {linear({layer_, Role::shared_up}), up}}};
    const WeightId down = linear({layer_, Role::shared_down});
    tap("shared_gate_up", normed, block);
    if (!c_.blocks.shared_gate) {
      add(in);
      add(op::Gated{gate, up, gated, gate_function()});
      tap("shared_down", gated, block, gate);
      add(op::Product{gated, {{down, p_.stream}}, true});
    } else {
      const ValueId share = value("share", Rows::stream, 1), given = value("shared_given", Rows::stream, c_.d);
      in.outputs.push_back({linear({layer_, Role::shared_router}), share});
      add(in);
      add(op::Gated{gate, up, gated, gate_function()});
      tap("shared_down", gated, block, gate);
      add(op::Product{gated, {{down, given}}});
      add(op::AddShared{given, share, p_.stream});
    }
    p_.taps.back().end = next();
  }

  // An MLP that every row passes beside experts: x += norm(norm(mlp(norm(x))) + norm(experts(norm(x)))). All norms of
  // the stream come first, so calibration can run them alone.
  void experts_beside() {
    check(c_.blocks.norm_before && c_.blocks.norm_after && !c_.rotated && c_.kept_columns == 0,
          "an MLP beside experts has norms before and after both; a model without them, or rotated, or with columns "
          "kept in 8 bits, has no program yet");
    const int32_t block = next();
    const ValueId choosing = value("choosing", Rows::stream, c_.d), normed = value("normed", Rows::stream, c_.d),
                  input = value("shared_input", Rows::stream, c_.d), both = value("branch", Rows::stream, c_.d),
                  gate = value("shared_gate", Rows::stream, c_.shared_f),
                  up = value("shared_up", Rows::stream, c_.shared_f), gated = prepared("shared", c_.shared_f);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c_.d)));
    add(op::Norm{p_.stream, choosing, norm(Norm::router, scale), scalars_.eps});
    add(op::Norm{p_.stream, normed, norm(Norm::experts), scalars_.eps});
    add(op::Norm{p_.stream, input, norm(Norm::mlp), scalars_.eps});
    tap("shared_gate_up", input, block);
    add(op::Product{input, {{linear({layer_, Role::shared_gate}), gate}, {linear({layer_, Role::shared_up}), up}}});
    add(op::Gated{gate, up, gated, gate_function()});
    tap("shared_down", gated, block, gate);
    add(op::Product{gated, {{linear({layer_, Role::shared_down}), both}}});
    add(op::Norm{both, both, norm(Norm::post_dense), scalars_.branch_eps});
    const ValueId sum = value("experts_given", Rows::stream, c_.d);
    routed(choosing, normed, block, sum);
    add(op::AddNorm{sum, both, norm(Norm::post_experts), scalars_.branch_eps});
    add(op::AddNorm{both, p_.stream, norm(Norm::post_mlp), scalars_.branch_eps});
    p_.taps.back().end = next();
  }

  // The experts that `choosing` chooses read `normed`. What they give becomes the value `sum`.
  void routed(ValueId choosing, ValueId normed, int32_t block, ValueId sum) {
    const ValueId taken = prepared("taken", c_.d, Rows::slots), gate = value("gate", Rows::slots, c_.f),
                  up = value("up", Rows::slots, c_.f), gated = prepared("gated", c_.f, Rows::slots),
                  given = value("given", Rows::slots, c_.d);
    const ExpertsId gates = experts_of(Role::gate), ups = experts_of(Role::up), downs = experts_of(Role::down);
    p_.routers.push_back(layer_);
    add(op::Route{choosing, value("routing", Rows::stream, c_.experts), last(p_.routers), {gates, ups, downs}});
    tap("gate_up", normed, block);
    add(op::Take{normed, taken});
    add(op::RoutedProduct{taken, {{gates, gate}, {ups, up}}});
    add(op::Gated{gate, up, gated, gate_function()});
    tap("down", gated, block, gate);
    add(op::RoutedProduct{gated, {{downs, given}}});
    add(op::Clear{sum});
    add(op::Combine{given, sum});
  }

  // The rows of all layers, as build.h has them.
  void per_layer_rows() {
    check(c_.residual_scale == 1 && !c_.rotated && c_.kept_columns == 0,
          "a model with embeddings for each layer that is rotated, or has columns kept in 8 bits or scaled branches, "
          "has no program yet");
    const float half = static_cast<float>(std::sqrt(0.5));
    const ValueId rows = value("per_layer", Rows::stream, c_.L * int64_t{c_.per_layer}),
                  made = value("per_layer_made", Rows::stream, c_.L * int64_t{c_.per_layer});
    add(op::Embed{rows, linear({-1, Role::per_layer_table}), static_cast<float>(c_.per_layer_scale) * half});
    add(op::Product{p_.stream, {{linear({-1, Role::per_layer_model}), made}}});
    // The product is divided by sqrt(d), which a norm does not see but for its epsilon.
    add(op::NormHeads{made, rows, norm(Norm::per_layer, half), scalars_.eps * static_cast<float>(c_.d), true});
  }

  // x += norm(W (function(V x) * the layer's part of the token's row)).
  void add_per_layer() {
    const int32_t block = next();
    const ValueId rows = value("per_layer", Rows::stream, c_.L * int64_t{c_.per_layer}),
                  part = value("per_layer_part", Rows::stream, c_.per_layer),
                  gate = value("per_layer_gate", Rows::stream, c_.per_layer),
                  gated = prepared("per_layer_gated", c_.per_layer);
    tap("per_layer_gate", p_.stream, block);
    add(op::Product{p_.stream, {{linear({layer_, Role::per_layer_gate}), gate}}});
    add(op::Columns{rows, part, int64_t{layer_} * c_.per_layer});
    add(op::Gated{gate, part, gated, gate_function()});
    tap("per_layer_out", gated, block, gate);
    add_branch(gated, Role::per_layer_out, Norm::post_per_layer);
  }

  // The layer's number is a part of what the last stop does to the stream.
  void scale_stream() {
    add(op::Scale{p_.stream, norm(Norm::scalar)});
    p_.taps.back().end = next();
  }

  void head(ValueId to) {
    if (final_norm_ < 0) final_norm_ = norm(Norm::final, scalars_.final_norm);
    const ValueId input = prepared("final", c_.d, Rows::logits);
    add(op::Norm{p_.stream, input, final_norm_, scalars_.eps});
    add(op::Product{input, {{p_.head_weight, to}}});
  }

  const ModelConfig& c_;
  const Scalars scalars_;
  const bool predictor_;
  Program p_;
  int layer_ = 0, attention_layers_ = 0, delta_layers_ = 0;  // the layer, and how many of each mixer came before
  NormId final_norm_ = -1;
};

}  // namespace

Program build_program(const ModelConfig& config, int64_t context) { return Builder(config, context, false).build(); }

Program build_followed_program(const ModelConfig& config, int64_t context) {
  return Builder(config, context, true).build();
}

Program build_predictor_program(const ModelConfig& config, int64_t context) {
  return Builder(config, context, true).build_predictor();
}

}  // namespace fidelio
