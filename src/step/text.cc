// This file writes a program as text, one line for each operation, with the values that it writes on the left.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "step/program.h"

namespace fidelio {
namespace {

std::string_view name_of(Norm norm) {
  constexpr std::string_view kNames[] = {"attn_norm",
                                         "mlp_norm",
                                         "post_attn_norm",
                                         "post_mlp_norm",
                                         "q_norm",
                                         "k_norm",
                                         "v_norm",
                                         "delta_norm",
                                         "sinks",
                                         "router_norm",
                                         "post_dense_norm",
                                         "experts_norm",
                                         "post_experts_norm",
                                         "post_per_layer_norm",
                                         "scalar",
                                         "final_norm",
                                         "token_norm",
                                         "before_norm",
                                         "predicted_norm",
                                         "per_layer_norm"};
  return kNames[static_cast<size_t>(norm)];
}

std::string_view name_of(Gate gate) {
  constexpr std::string_view kNames[] = {"silu", "gelu_tanh", "sigmoid", "clamped"};
  return kNames[static_cast<size_t>(gate)];
}

std::string text_of(const Gating& how) {
  if (how.function != Gate::clamped) return std::string(name_of(how.function));
  return fmt::format("clamped to {}, alpha {}", how.limit, how.alpha);
}

class Writer {
 public:
  explicit Writer(const Program& program) : p_(program) {}

  std::string text() {
    for (const Value& v : p_.values) {
      constexpr std::string_view kRows[] = {"stream", "slots", "logits"};
      text_ += fmt::format("value {} ({}, {}){}\n", v.name, kRows[static_cast<size_t>(v.rows)], v.columns,
                           v.prepared ? ", prepared" : "");
    }
    heads();
    state();
    part("embedding", p_.embedding);
    for (size_t layer = 0; layer < p_.layers.size(); ++layer) part(fmt::format("layer {}", layer), p_.layers[layer]);
    if (p_.follow.first < p_.follow.last) part("follow", p_.follow);
    part("head", p_.head);
    part("draft head", p_.draft_head);
    return std::move(text_);
  }

 private:
  // The numbers that all layers' attention shares, those of layers that differ, and the rotations.
  void heads() {
    const AttentionShape& a = p_.attention;
    text_ += fmt::format("attention of {} heads, {} key and value heads of {}", a.heads, a.kv_heads, a.head_dim);
    if (a.query_scale != 1) text_ += fmt::format(", queries times {}", a.query_scale);
    if (a.query_growth != 0)
      text_ += fmt::format(", growing by {} after each {} positions", a.query_growth, a.query_growth_positions);
    text_ += "\n";
    for (int i = 0; i < a.depth(); ++i)
      if (a.kv_heads_of(i) != a.kv_heads || a.head_dim_of(i) != a.head_dim)
        text_ += fmt::format("cache {}: {} key and value heads of {}\n", i, a.kv_heads_of(i), a.head_dim_of(i));
    for (size_t i = 0; i < a.rotations.size(); ++i) {
      const auto& [frequencies, scale] = a.rotations[i];
      text_ += fmt::format("rotation {}: {} pairs", i, frequencies.size());
      if (!frequencies.empty()) text_ += fmt::format(", from {} to {}", frequencies.front(), frequencies.back());
      text_ += scale == 1 ? "\n" : fmt::format(", scale {}\n", scale);
    }
  }
  void state() {
    const StateShape& s = p_.state;
    if (s.carried > 0) text_ += fmt::format("state carries a row of {}\n", s.carried);
    if (s.layers == 0) return;
    text_ += fmt::format("state of {} layers: {} matrices of {} x {}, {} rows of {} inputs\n", s.layers, s.heads,
                         s.key_dim, s.value_dim, s.rows, s.channels);
  }
  void part(const std::string& name, OpRange range) {
    text_ += name + "\n";
    for (int32_t i = range.first; i < range.last; ++i) {
      const std::string line = std::visit([&](const auto& o) { return describe(o); }, p_.ops[static_cast<size_t>(i)]);
      std::string taps;
      for (const Tap& tap : p_.taps)
        if (tap.reader == i) taps += "  # tap " + stop_name(tap.layer, *tap.stop);
      text_ += "  " + line + taps + "\n";
    }
  }

  const std::string& value(ValueId id) const { return p_.values[static_cast<size_t>(id)].name; }
  std::string linear(WeightId id) const { return to_string(p_.linears[static_cast<size_t>(id)]); }
  std::string norm(NormId id) const {
    if (id < 0) return "-";
    const NormWeight& w = p_.norms[static_cast<size_t>(id)];
    const std::string name = w.layer == -1                ? std::string(name_of(w.norm))
                             : w.layer == kPredictorLayer ? fmt::format("predictor.{}", name_of(w.norm))
                                                          : fmt::format("layers.{}.{}", w.layer, name_of(w.norm));
    return w.factor == 1 ? name : fmt::format("{} * {}", name, w.factor);
  }
  std::string experts(ExpertsId id) const {
    const LayerExperts& e = p_.experts[static_cast<size_t>(id)];
    return fmt::format("layers.{}.experts.{}", e.layer, fidelio::name_of(e.role));
  }

  std::string describe(const op::Embed& o) const {
    return fmt::format("embed     {} <- {}{}", value(o.to), linear(o.table),
                       o.factor == 1 ? "" : fmt::format(" * {}", o.factor));
  }
  std::string describe(const op::Norm& o) const {
    return fmt::format("norm      {} <- {}, {}, eps {}", value(o.to), value(o.from), norm(o.weight), o.eps);
  }
  std::string describe(const op::AddNorm& o) const {
    return fmt::format("norm      {} += {}, {}, eps {}", value(o.to), value(o.from), norm(o.weight), o.eps);
  }
  std::string describe(const op::Product& o) const {
    std::vector<std::string> to, weights;
    for (const op::Output& output : o.outputs) to.push_back(value(output.to)), weights.push_back(linear(output.weight));
    return fmt::format("product   {} {} {}, {}", fmt::join(to, " "), o.adds ? "+=" : "<-", value(o.from),
                       fmt::join(weights, " "));
  }
  std::string describe(const op::Heads& o) const {
    const LayerAttention& layer = p_.attention.layers[static_cast<size_t>(o.layer)];
    std::string norms;
    if (o.q_norm >= 0) norms = fmt::format(", {} {}", norm(o.q_norm), norm(o.k_norm));
    return fmt::format("heads     {} {} {}{}, rotation {}, cache {}", value(o.q), value(o.k), value(o.v), norms,
                       layer.rotation, o.layer);
  }
  std::string describe(const op::Queries& o) const {
    const LayerAttention& layer = p_.attention.layers[static_cast<size_t>(o.layer)];
    return fmt::format("queries   {}{}, rotation {}, cache {}", value(o.q), o.norm < 0 ? "" : ", " + norm(o.norm),
                       layer.rotation, o.layer);
  }
  std::string describe(const op::NormHeads& o) const {
    return fmt::format("norm      {} {} {}, {}, eps {}, by head", value(o.to), o.adds ? "+=" : "<-", value(o.from),
                       norm(o.weight), o.eps);
  }
  std::string describe(const op::Attend& o) const {
    const int window = p_.attention.layers[static_cast<size_t>(o.layer)].window;
    return fmt::format("attend    {} <- {}, cache {}{}{}", value(o.to), value(o.q), o.layer,
                       window == 0 ? "" : fmt::format(", window {}", window),
                       o.sinks < 0 ? "" : fmt::format(", {}", norm(o.sinks)));
  }
  std::string describe(const op::GateHeads& o) const {
    return fmt::format("gate      {} <- {} {}", value(o.to), value(o.from), value(o.gate));
  }
  std::string describe(const op::SplitGate& o) const {
    return fmt::format("split     {} {} <- {}", value(o.to), value(o.gate), value(o.from));
  }
  std::string describe(const op::Convolve& o) const {
    return fmt::format("convolve  {} <- {}, layers.{}.convolution, state {}", value(o.to), value(o.from),
                       p_.deltas[static_cast<size_t>(o.delta)], o.delta);
  }
  std::string describe(const op::DeltaRule& o) const {
    return fmt::format("delta     {} <- {} {} {}, layers.{}.decay, state {}", value(o.to), value(o.from), value(o.b),
                       value(o.a), p_.deltas[static_cast<size_t>(o.delta)], o.delta);
  }
  std::string describe(const op::GatedNorm& o) const {
    return fmt::format("norm      {} <- {} {}, {}, eps {}, {}", value(o.to), value(o.from), value(o.gate),
                       norm(o.weight), o.eps, name_of(o.function));
  }
  std::string describe(const op::AddShared& o) const {
    return fmt::format("add       {} += {} {}", value(o.to), value(o.from), value(o.gate));
  }
  std::string describe(const op::Before& o) const {
    return fmt::format("before    {} <- {}", value(o.to), value(o.from));
  }
  std::string describe(const op::Carry& o) const { return fmt::format("carry     {}", value(o.from)); }
  std::string describe(const op::Join& o) const {
    return fmt::format("join      {} <- {} {}", value(o.to), value(o.a), value(o.b));
  }
  std::string describe(const op::Columns& o) const {
    return fmt::format("columns   {} <- {}, from {}", value(o.to), value(o.from), o.first);
  }
  std::string describe(const op::Clear& o) const { return fmt::format("clear     {}", value(o.to)); }
  std::string describe(const op::Scale& o) const {
    return fmt::format("scale     {}, {}", value(o.to), norm(o.factor));
  }
  std::string describe(const op::Softcap& o) const { return fmt::format("softcap   {}, {}", value(o.to), o.cap); }
  std::string describe(const op::Gated& o) const {
    return fmt::format("gated     {} <- {} {}, {}", value(o.to), value(o.gate), value(o.up), text_of(o.function));
  }
  std::string describe(const op::Turn& o) const {
    const Hadamard& h = p_.hadamards[static_cast<size_t>(o.hadamard)];
    return fmt::format("turn      {} <- {}, order {}, stride {}", value(o.to), value(o.from), h.order, h.stride);
  }
  std::string describe(const op::Reorder& o) const {
    const OrderOf& order = p_.orders[static_cast<size_t>(o.order)];
    return fmt::format("reorder   {} <- {}, {}.order", value(o.to), value(o.from), stop_name(order.layer, *order.stop));
  }
  std::string describe(const op::Route& o) const {
    const RoutingRule& rule = p_.routing;
    std::string how = rule.scoring == Scoring::sigmoid ? ", sigmoid" : "";
    if (rule.corrected) how += ", corrected";
    if (rule.groups > 1) how += fmt::format(", {} of {} groups", rule.groups_per_row, rule.groups);
    if (rule.renormalised) how += ", renormalised";
    if (rule.factor != 1) how += fmt::format(", times {}", rule.factor);
    if (rule.scaled) how += ", scaled";
    return fmt::format("route     {} <- {}, layers.{}.router, {} of {}{}", value(o.logits), value(o.from),
                       p_.routers[static_cast<size_t>(o.router)], rule.per_row, rule.experts, how);
  }
  std::string describe(const op::Take& o) const {
    return fmt::format("take      {} <- {}", value(o.to), value(o.from));
  }
  std::string describe(const op::RoutedProduct& o) const {
    std::vector<std::string> to, weights;
    for (const op::RoutedOutput& output : o.outputs)
      to.push_back(value(output.to)), weights.push_back(experts(output.weights));
    return fmt::format("product   {} <- {}, {}", fmt::join(to, " "), value(o.from), fmt::join(weights, " "));
  }
  std::string describe(const op::Combine& o) const {
    return fmt::format("combine   {} += {}", value(o.to), value(o.from));
  }
  std::string describe(const op::Spread& o) const {
    return fmt::format("spread    {} <- {}", value(o.to), value(o.from));
  }

  const Program& p_;
  std::string text_;
};

}  // namespace

std::string to_text(const Program& program) { return Writer(program).text(); }

}  // namespace fidelio
