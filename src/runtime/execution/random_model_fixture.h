// RandomModel is a small model of random shape, kind and weights, for tests that hold an executor to kernels/ref.
#pragma once
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "arch/model_weights.h"
#include "core/rng.h"
#include "formats/linear_weight.h"
#include "kernels/ref/run.h"
#include "step/build.h"

namespace fidelio {

// Names the limits that a backend sets to a model's shape.
struct ShapeLimits {
  int head_multiple = 2;     // of the columns of a head
  int column_multiple = 1;   // of the columns of all other values but logits
  bool heads_alike = false;  // all layers have heads of one size
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : rng_(seed) {}
  bool one_in(uint64_t n) { return rng_.below(n) == 0; }
  int between(int low, int high) { return low + static_cast<int>(rng_.below(static_cast<uint64_t>(high - low + 1))); }
  template <typename T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + rng_.below(choices.size()));
  }
  double uniform() { return rng_.uniform(); }  // in [0, 1)
  double normal() { return rng_.normal(); }
  std::vector<int32_t> shuffled(int64_t count) {
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
    return order;
  }

 private:
  Rng rng_;
};

// The longest sequence of a random model, in positions.
inline constexpr int kRandomContext = 640;

inline Rope random_rope(Draw& draw, int rotary) {
  Rope rope;
  rope.type = draw.of({RopeType::plain, RopeType::plain, RopeType::linear, RopeType::dynamic, RopeType::llama3,
                       RopeType::yarn, RopeType::longrope});
  rope.theta = draw.of({100.0, 10000.0, 500000.0});
  rope.original_max_positions = draw.of({16, 1000});
  if (rope.type != RopeType::plain && rope.type != RopeType::dynamic) rope.factor = 1 + 7 * draw.uniform();
  if (rope.type == RopeType::yarn || rope.type == RopeType::longrope) rope.attention_factor = 1 + draw.uniform() / 2;
  for (int i = 0; i < rotary / 2; ++i) {
    rope.short_divisors.push_back(1 + draw.uniform());
    rope.long_divisors.push_back(1 + 3 * draw.uniform());
  }
  return rope;
}

inline void draw_layers(Draw& draw, ModelConfig& c) {
  c.rope = random_rope(draw, rotary_columns(c));
  c.sliding_window = draw.of({0, 0, 1, 3, 20, 33});
  if (draw.one_in(2)) return;
  c.local_rope = random_rope(draw, rotary_columns(c));
  for (int layer = 0; layer < c.L; ++layer)
    c.kinds.push_back({draw.of({0, 1, 2, 5, 31, 32, 40}), draw.of({RopeUse::global, RopeUse::local, RopeUse::none})});
}

inline void round_up(int& columns, int multiple) { columns = (columns + multiple - 1) / multiple * multiple; }

// Gives some or all layers a delta net.
inline void draw_delta_nets(Draw& draw, const ShapeLimits& limits, ModelConfig& c) {
  std::vector<LayerKind> kinds;
  for (int layer = 0; layer < c.L; ++layer) kinds.push_back(kind_of(c, layer));
  const int first = draw.between(0, c.L - 1);
  for (int layer = 0; layer < c.L; ++layer)
    if (layer == first || draw.one_in(2)) kinds[static_cast<size_t>(layer)].mixer = Mixer::delta_net;
  c.kinds = kinds;
  c.delta.key_heads = draw.between(1, 2), c.delta.value_heads = c.delta.key_heads * draw.between(1, 3);
  c.delta.key_dim = draw.of({2, 5, 8, 16, 24}), c.delta.value_dim = draw.of({3, 8, 16, 20, 35});
  round_up(c.delta.key_dim, limits.column_multiple), round_up(c.delta.value_dim, limits.column_multiple);
  c.delta.kernel = draw.of({1, 2, 4, 4, 7});
  c.delta.gate = draw.of({Activation::silu, Activation::sigmoid});
  c.rotated = false, c.kept_columns = 0;
  c.blocks.norm_before = true, c.blocks.norm_after = false;
}

// Gives a model with experts a shared one, and layers without experts.
inline void draw_other_mlps(Draw& draw, ModelConfig& c) {
  if (draw.one_in(2)) c.shared_f = draw.of({8, 24, 33}), c.blocks.shared_gate = draw.one_in(2);
  if (draw.one_in(2)) return;
  c.dense_f = draw.of({24, 40});
  std::vector<LayerKind> kinds;
  for (int layer = 0; layer < c.L; ++layer) {
    kinds.push_back(kind_of(c, layer));
    kinds.back().dense = draw.one_in(2);
  }
  c.kinds = kinds;
}

// Gives layers heads of their own, or the keys and values of an earlier layer.
inline void draw_heads(Draw& draw, const ShapeLimits& limits, ModelConfig& c) {
  std::vector<LayerKind> kinds;
  for (int layer = 0; layer < c.L; ++layer) kinds.push_back(kind_of(c, layer));
  for (int layer = 0; layer < c.L; ++layer) {
    LayerKind& kind = kinds[static_cast<size_t>(layer)];
    if (const int from = draw.between(0, c.L); from < layer && kinds[static_cast<size_t>(from)].keys_of < 0) {
      kind = kinds[static_cast<size_t>(from)];
      kind.keys_of = from, kind.keys_as_values = false;
      continue;
    }
    kind.keys_as_values = draw.one_in(2);
    if (limits.heads_alike || draw.one_in(2)) continue;
    kind.kv_heads = c.h / c.hk;  // another divisor of the heads
    do kind.head_dim = draw.of({4, 6, 10, 16, 48});
    while (c.rotary > kind.head_dim);
  }
  c.kinds = kinds;
}

// Gives a model what Gemma 4 has.
inline void draw_further_parts(Draw& draw, const ShapeLimits& limits, ModelConfig& c) {
  c.blocks.attention_gate = false;
  if (c.blocks.qk_norm == QkNorm::width) c.blocks.qk_norm = QkNorm::head;
  for (Rope* rope : {&c.rope, c.local_rope ? &*c.local_rope : &c.rope}) {
    if (rope->type == RopeType::longrope) rope->type = RopeType::plain, rope->attention_factor = 1;
    if (draw.one_in(3)) rope->type = RopeType::proportional, rope->turned_share = draw.uniform();
  }
  c.blocks.value_norm = draw.one_in(2), c.blocks.layer_scalar = draw.one_in(2);
  if (draw.one_in(2)) c.logit_cap = 0.5 + 2 * draw.uniform();
  draw_heads(draw, limits, c);
  if (c.experts == 0) {
    if (draw.one_in(2)) return;
    c.residual_scale = 1, c.per_layer = draw.of({2, 8, 13, 40}), c.per_layer_scale = 0.5 + draw.uniform();
    round_up(c.per_layer, limits.column_multiple);
  } else if (c.shared_f > 0) {
    c.blocks.experts = ExpertFiles::beside, c.blocks.shared_gate = false;
    c.blocks.norm_after = true;
  }
}

// Draws how a model's router chooses experts, and how many there are in groups.
inline void draw_router(Draw& draw, ModelConfig& c) {
  c.router.scoring = draw.of({Scoring::softmax, Scoring::sigmoid});
  c.router.bias = draw.one_in(3), c.router.corrected = draw.one_in(2), c.router.scaled = draw.one_in(3);
  if (draw.one_in(3)) c.router.factor = 0.5 + 2 * draw.uniform();
  if (draw.one_in(2)) return;
  const int each = draw.between(2, 3);
  c.router.groups = draw.between(2, 4), c.router.groups_per_row = draw.between(1, c.router.groups);
  c.experts = c.router.groups * each;
  c.experts_per_row = draw.between(1, std::min(4, c.router.groups_per_row * each));
}

// Everything that build_program() knows is drawn. Its mixtures of experts and its delta nets have a norm before them
// and none behind them, and their inputs are not reordered.
inline ModelConfig random_config(Draw& draw, const ShapeLimits& limits) {
  ModelConfig c;
  c.L = draw.between(1, 3), c.d = draw.of({16, 24, 37, 40, 64}), c.f = draw.of({24, 33, 56, 72, 96});
  round_up(c.d, limits.column_multiple), round_up(c.f, limits.column_multiple);
  c.hk = draw.between(1, 3), c.h = c.hk * draw.between(1, 3);
  do c.e = draw.of({2, 6, 8, 10, 16, 24, 40});
  while (c.e % limits.head_multiple != 0);
  c.v = draw.between(40, 90);
  c.max_positions = kRandomContext;
  c.rms_eps = draw.of({1e-6f, 1e-5f, 1e-3f});
  c.blocks.norm_after = draw.one_in(2);
  c.blocks.norm_before = !c.blocks.norm_after || draw.one_in(2);
  c.blocks.qk_norm = draw.of({QkNorm::none, QkNorm::none, QkNorm::head, QkNorm::width});
  c.blocks.activation = draw.of({Activation::silu, Activation::gelu_tanh, Activation::clamped});
  c.gate_alpha = 0.5 + 1.5 * draw.uniform(), c.gate_limit = 0.3 + draw.uniform();
  c.blocks.sinks = draw.one_in(3);
  if (draw.one_in(3)) c.rotary = 2 * draw.between(1, c.e / 2);
  draw_layers(draw, c);
  c.tie_embeddings = draw.one_in(2);
  c.qkv_bias = draw.one_in(3), c.o_bias = draw.one_in(4), c.mlp_bias = draw.one_in(4);
  if (draw.one_in(3)) c.embedding_scale = 0.5 + 3 * draw.uniform();
  if (draw.one_in(3)) c.attention_scale = 0.1 + 0.4 * draw.uniform();
  if (draw.one_in(3)) c.residual_scale = 0.2 + draw.uniform();
  if (draw.one_in(3)) c.logit_divisor = 1 + 7 * draw.uniform();
  if (draw.one_in(3)) c.query_growth = 0.3 * draw.uniform();
  c.rotated = draw.one_in(4);
  if (draw.one_in(3)) {
    c.experts = draw.between(2, 8), c.experts_per_row = draw.between(1, std::min(c.experts, 4));
    c.rotated = false;
    c.renormalised = draw.one_in(2);
    if (draw.one_in(2)) draw_router(draw, c);
    c.blocks.norm_before = true, c.blocks.norm_after = false;
    draw_other_mlps(draw, c);
    round_up(c.shared_f, limits.column_multiple);
  } else if (draw.one_in(5)) {
    c.kept_columns = draw.between(1, std::min({16, c.d, c.f, c.h * c.e}));
    // A GPU's kernel works on groups of as many columns as are kept, so these divide all widths.
    if (limits.column_multiple > 1) c.kept_columns = limits.column_multiple;
  }
  c.blocks.attention_gate = draw.one_in(3);
  if (draw.one_in(3))
    draw_delta_nets(draw, limits, c);
  else if (!c.rotated && c.kept_columns == 0 && draw.one_in(2))
    draw_further_parts(draw, limits, c);
  return c;
}

// Returns a weight whose columns are about 1 / sqrt(in), so that products keep the size of their input.
inline LinearWeight random_linear(Draw& draw, const std::string& format, int64_t out, int64_t in, bool bias) {
  const FormatSpec spec = parse_format(format);
  const double size = 1 / std::sqrt(static_cast<double>(in));
  LinearWeight w = spec.is_dense() ? make_dense(OwnedTensor::allocate(spec.kind == Kind::f32   ? DType::f32
                                                                      : spec.kind == Kind::f16 ? DType::f16
                                                                                               : DType::bf16,
                                                                      {out, in}))
                                   : allocate_weight(spec, out, in);
  const double code = spec.kind == Kind::grid ? 74.0 * 74 : std::exp2(spec.bits) / 3;  // the root of a mean square
  const double scale = spec.scale == ScaleKind::u8 ? 148 : 1;
  for (const StoredTensor& t : stored_tensors(w)) {
    const auto positive = [&] { return size / code * (0.5 + draw.uniform()); };
    if (t.tensor.dtype == DType::bf16)
      for (bf16& v : t.tensor.as<bf16>()) v = to_bf16(static_cast<float>(size * draw.normal()));
    else if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>())
        v = to_f16(static_cast<float>(spec.is_dense() ? size * draw.normal() : positive()));
    else if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>())
        v = static_cast<float>(spec.is_dense() ? size * draw.normal() : positive() / scale);
    else
      for (int64_t i = 0; i < t.tensor.bytes(); ++i) t.tensor.data[i] = static_cast<std::byte>(draw.between(0, 255));
  }
  if (!bias) return w;
  w.bias = OwnedTensor::allocate(DType::f32, {out});
  for (float& v : w.bias.view.as<float>()) v = static_cast<float>(0.3 * draw.normal());
  return w;
}

// A delta net has these besides its linears, as files have them.
struct RandomDelta {
  std::vector<float> convolution, log_rate, step_bias;
};

// Some heads forget nearly all at each row, and others next to nothing.
inline RandomDelta random_delta(Draw& draw, const DeltaNet& delta) {
  RandomDelta d;
  for (int64_t i = 0; i < delta.channels() * delta.kernel; ++i)
    d.convolution.push_back(static_cast<float>(draw.normal() / std::sqrt(static_cast<double>(delta.kernel))));
  for (int head = 0; head < delta.value_heads; ++head) {
    d.log_rate.push_back(static_cast<float>(std::log(0.01 + 3 * draw.uniform())));
    d.step_bias.push_back(static_cast<float>(draw.normal() - 1.5));
  }
  return d;
}

// Corrections are as large as scores differ.
inline std::vector<float> random_adjustments(Draw& draw, const RoutingRule& rule) {
  std::vector<float> adjustments;
  if (!rule.is_adjusted()) return adjustments;
  for (int i = 0; i < rule.experts; ++i) adjustments.push_back(static_cast<float>(0.3 * draw.normal()));
  for (int i = 0; i < rule.experts; ++i) adjustments.push_back(static_cast<float>(0.5 + draw.uniform()));
  return adjustments;
}

struct RandomModel {
  ModelConfig config;
  Program program;
  std::vector<LinearWeight> linears;      // by WeightId
  std::vector<std::vector<float>> norms;  // by NormId, multiplied by their factors
  std::vector<LinearWeight> routers;
  std::vector<std::vector<float>> adjustments;  // of the routers
  std::vector<RandomDelta> deltas;
  std::vector<std::vector<int32_t>> orders;
  std::vector<int32_t> draft_tokens;  // ascending
  LinearWeight draft_head;            // the head's rows of these
};

inline std::string random_format(Draw& draw) {
  if (draw.one_in(2)) return draw.of({"f32", "bf16", "f16"});
  return draw.of({"int2g16z", "int3g16", "int4g32z", "int4g64zs8", "int5g32zs8", "int6g32", "int7g128z", "int8g64zs8",
                  "int8c", "lut2g16", "lut4g64", "lut5g32", "lut6g64"});
}

inline RandomModel random_model(uint64_t seed, const ShapeLimits& limits) {
  Draw draw(seed);
  RandomModel m;
  m.config = random_config(draw, limits);
  m.program = build_program(m.config, kRandomContext);
  for (const LinearId id : m.program.linears) {
    const Shape shape = shape_of(m.config, id);
    if (id.role == Role::head && m.config.tie_embeddings)
      m.linears.push_back(m.linears.front());
    else
      m.linears.push_back(random_linear(draw, is_fixed(id.role) ? draw.of({"f32", "bf16"}) : random_format(draw),
                                        shape[0], shape[1], has_bias(m.config, id.role)));
  }
  for (const NormWeight& norm : m.program.norms) {
    m.norms.emplace_back(static_cast<size_t>(norm_size(m.config, norm.layer, norm.norm)));
    for (float& v : m.norms.back()) v = static_cast<float>((0.5 + draw.uniform()) * norm.factor);
  }
  for (size_t i = 0; i < m.program.routers.size(); ++i) {
    m.routers.push_back(
        random_linear(draw, draw.of({"f32", "bf16"}), m.config.experts, m.config.d, m.config.router.bias));
    m.adjustments.push_back(random_adjustments(draw, m.program.routing));
  }
  for (size_t i = 0; i < m.program.deltas.size(); ++i) m.deltas.push_back(random_delta(draw, m.config.delta));
  for (const OrderOf& order : m.program.orders) {
    const int64_t kept = m.config.kept_columns;
    std::vector<int32_t> columns = draw.shuffled(shape_of(m.config, {order.layer, order.stop->roles[0]})[1] - kept);
    const std::vector<int32_t> twice(columns.end() - kept, columns.end());
    columns.insert(columns.end(), twice.begin(), twice.end());
    m.orders.push_back(columns);
  }
  m.draft_tokens = draw.shuffled(m.config.v);
  m.draft_tokens.resize(static_cast<size_t>(draw.between(1, m.config.v)));
  std::ranges::sort(m.draft_tokens);
  m.draft_head = take_rows(m.linears[static_cast<size_t>(m.program.head_weight)], m.draft_tokens);
  return m;
}

inline ref::Weights reference_weights(const RandomModel& m) {
  ref::Weights w;
  for (const LinearWeight& linear : m.linears) w.linears.push_back(ref::decoded(linear));
  for (const std::vector<float>& norm : m.norms) w.norms.emplace_back(norm.begin(), norm.end());
  for (const LinearWeight& router : m.routers) w.routers.push_back(ref::decoded(router));
  for (const std::vector<float>& adjustments : m.adjustments)
    w.adjustments.emplace_back(adjustments.begin(), adjustments.end());
  for (const RandomDelta& d : m.deltas)
    w.deltas.push_back({{d.convolution.begin(), d.convolution.end()},
                        {d.log_rate.begin(), d.log_rate.end()},
                        {d.step_bias.begin(), d.step_bias.end()}});
  w.orders = m.orders;
  w.draft_head = ref::decoded(m.draft_head);
  w.draft_tokens = m.draft_tokens;
  return w;
}

}  // namespace fidelio
