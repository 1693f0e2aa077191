#include "kernels/ref/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fidelio::ref {
namespace {

void add(std::span<const double> from, std::span<double> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

std::span<double> row_of(std::vector<double>& matrix, int64_t row, int64_t columns) {
  return std::span(matrix).subspan(static_cast<size_t>(row * columns), static_cast<size_t>(columns));
}

}  // namespace

Matrix decoded(const LinearWeight& weight) {
  const std::vector<float> w = decode(weight);
  Matrix matrix{weight.out, weight.in, {w.begin(), w.end()}, {}};
  if (weight.bias) {
    const std::span<float> bias = weight.bias.as<float>();
    matrix.bias.assign(bias.begin(), bias.end());
  }
  return matrix;
}

Executor::Executor(const Program& program, const Weights& weights, int64_t pages, int64_t slots)
    : p_(program), w_(weights), values_(program.values.size()), cache_(program.attention.layers.size()) {
  const StateShape& s = program.state;
  const LayerState zero{std::vector<double>(static_cast<size_t>(s.matrices())),
                        std::vector<double>(static_cast<size_t>(s.inputs()))};
  states_.assign(static_cast<size_t>(slots), State{std::vector<LayerState>(static_cast<size_t>(s.layers), zero),
                                                   std::vector<double>(static_cast<size_t>(s.carried))});
  for (int layer = 0; layer < p_.attention.depth(); ++layer) {
    const int64_t width = int64_t{p_.attention.kv_heads_of(layer)} * p_.attention.head_dim_of(layer);
    const auto size = static_cast<size_t>(pages * kPageTokens * width);
    cache_[static_cast<size_t>(layer)] = {std::vector<double>(size), std::vector<double>(size)};
  }
}

void Executor::begin(const Batch& batch) {
  ids_ = batch.ids;
  logit_rows_ = batch.logit_rows;
  segments_ = batch.segments;
  kept_ = batch.kept;
  rows_.clear();
  for (const Segment& segment : batch.segments) {
    const std::span<const int32_t> pages = batch.pages_of(segment);
    for (int32_t i = 0; i < segment.rows; ++i) rows_.push_back({segment.position + i, {pages.begin(), pages.end()}});
  }
}

void Executor::run(OpRange range) {
  for (int32_t i = range.first; i < range.last; ++i)
    std::visit([this](const auto& operation) { run(operation); }, p_.ops[static_cast<size_t>(i)]);
}

std::vector<double> Executor::product(const Matrix& matrix, std::span<const double> x) const {
  return linear(x, matrix.w, matrix.bias, static_cast<int64_t>(x.size()) / matrix.in, matrix.in, matrix.out);
}

// --- rows ----------------------------------------------------------------------------------------------------------
void Executor::run(const op::Embed& o) {
  const Matrix& table = w_.linears[static_cast<size_t>(o.table)];
  std::vector<double>& to = value(o.to);
  to.clear();
  for (const int32_t id : ids_)
    for (int64_t i = 0; i < table.in; ++i) to.push_back(table.w[static_cast<size_t>(id * table.in + i)] * o.factor);
}

void Executor::run(const op::Norm& o) {
  const int64_t d = columns(o.from);
  std::vector<double> from = value(o.from);
  if (p_.values[static_cast<size_t>(o.to)].rows == Rows::logits) {
    from.clear();
    for (const int32_t row : logit_rows_) {
      const std::span<double> wanted = row_of(value(o.from), row, d);
      from.insert(from.end(), wanted.begin(), wanted.end());
    }
  }
  const int64_t count = static_cast<int64_t>(from.size()) / d;
  value(o.to) = rmsnorm(from, w_.norms[static_cast<size_t>(o.weight)], o.eps, count, d);
}

void Executor::run(const op::AddNorm& o) {
  add(rmsnorm(value(o.from), w_.norms[static_cast<size_t>(o.weight)], o.eps, rows(), columns(o.from)), value(o.to));
}

void Executor::run(const op::Product& o) {
  for (const op::Output& output : o.outputs) {
    const bool of_draft = output.to == p_.draft_logits;
    const Matrix& matrix = of_draft ? w_.draft_head : w_.linears[static_cast<size_t>(output.weight)];
    std::vector<double> y = product(matrix, value(o.from));
    if (o.adds)
      add(y, value(output.to));
    else
      value(output.to) = std::move(y);
  }
}

void Executor::run(const op::Gated& o) { value(o.to) = gated(o.function, value(o.gate), value(o.up)); }

void Executor::run(const op::Turn& o) {
  value(o.to) = turned(value(o.from), p_.hadamards[static_cast<size_t>(o.hadamard)], rows());
}

void Executor::run(const op::Reorder& o) {
  std::vector<double> to;
  for (int64_t row = 0; row < rows(); ++row)
    for (const int32_t column : w_.orders[static_cast<size_t>(o.order)])
      to.push_back(value(o.from)[static_cast<size_t>(row * columns(o.from) + column)]);
  value(o.to) = std::move(to);
}

void Executor::run(const op::Spread& o) {
  const int64_t v = columns(o.to);
  std::vector<double>& to = value(o.to);
  to.assign(logit_rows_.size() * static_cast<size_t>(v), -std::numeric_limits<double>::infinity());
  auto from = value(o.from).begin();
  for (size_t row = 0; row < logit_rows_.size(); ++row)
    for (const int32_t token : w_.draft_tokens) to[row * static_cast<size_t>(v) + static_cast<size_t>(token)] = *from++;
}

// --- attention -----------------------------------------------------------------------------------------------------
double Executor::query_factor(int64_t position) const {
  const AttentionShape& shape = p_.attention;
  return shape.query_scale *
         (1 + shape.query_growth * std::log(1.0 + static_cast<double>(position / shape.query_growth_positions)));
}

int64_t Executor::place(const Row& row, int64_t position) const {
  return int64_t{row.pages.at(static_cast<size_t>(position / kPageTokens))} * kPageTokens + position % kPageTokens;
}

void Executor::prepare(std::span<double> heads, int layer, NormId norm, int64_t position) const {
  const AttentionShape& shape = p_.attention;
  const Rotation& rotation = shape.rotations[static_cast<size_t>(shape.layers[static_cast<size_t>(layer)].rotation)];
  const int64_t e = shape.head_dim_of(layer), count = std::ssize(heads) / e;
  if (norm >= 0)
    std::ranges::copy(rmsnorm(heads, w_.norms[static_cast<size_t>(norm)], p_.attention.norm_eps, count, e),
                      heads.begin());
  const std::vector<double> frequencies(rotation.inverse_frequencies.begin(), rotation.inverse_frequencies.end());
  rope(heads, frequencies, rotation.scale, position, count, e);
}

void Executor::run(const op::Heads& o) {
  LayerCache& cache = cache_[static_cast<size_t>(o.layer)];
  const int64_t width = columns(o.q), kv_width = columns(o.k);
  for (int64_t i = 0; i < rows(); ++i) {
    const Row& row = rows_[static_cast<size_t>(i)];
    const std::span<double> q = row_of(value(o.q), i, width), k = row_of(value(o.k), i, kv_width),
                            v = row_of(value(o.v), i, kv_width);
    for (double& x : q) x *= query_factor(row.position);
    prepare(q, o.layer, o.q_norm, row.position);
    prepare(k, o.layer, o.k_norm, row.position);
    std::ranges::copy(k, row_of(cache.keys, place(row, row.position), kv_width).begin());
    std::ranges::copy(v, row_of(cache.values, place(row, row.position), kv_width).begin());
  }
}

void Executor::run(const op::Queries& o) {
  for (int64_t i = 0; i < rows(); ++i) {
    const Row& row = rows_[static_cast<size_t>(i)];
    const std::span<double> q = row_of(value(o.q), i, columns(o.q));
    for (double& x : q) x *= query_factor(row.position);
    prepare(q, o.layer, o.norm, row.position);
  }
}

void Executor::run(const op::NormHeads& o) {
  const std::vector<double>& weight = w_.norms[static_cast<size_t>(o.weight)];
  const auto e = static_cast<int64_t>(weight.size());
  const std::vector<double> normed =
      rmsnorm(value(o.from), weight, o.eps, static_cast<int64_t>(value(o.from).size()) / e, e);
  if (o.adds)
    add(normed, value(o.to));
  else
    value(o.to) = normed;
}

void Executor::run(const op::Columns& o) {
  std::vector<double> to;
  for (int64_t i = 0; i < rows(); ++i) {
    const std::span<double> part = row_of(value(o.from), i, columns(o.from))
                                       .subspan(static_cast<size_t>(o.first), static_cast<size_t>(columns(o.to)));
    to.insert(to.end(), part.begin(), part.end());
  }
  value(o.to) = std::move(to);
}

void Executor::run(const op::Clear& o) { value(o.to).assign(static_cast<size_t>(rows() * columns(o.to)), 0); }

void Executor::run(const op::Scale& o) {
  for (double& x : value(o.to)) x *= w_.norms[static_cast<size_t>(o.factor)].front();
}

void Executor::run(const op::Softcap& o) {
  const double cap = o.cap;
  for (double& x : value(o.to)) x = cap * std::tanh(x / cap);
}

void Executor::run(const op::Attend& o) {
  const AttentionShape& shape = p_.attention;
  LayerCache& cache = cache_[static_cast<size_t>(o.layer)];
  const int64_t e = shape.head_dim_of(o.layer), hk = shape.kv_heads_of(o.layer), width = columns(o.q),
                kv_width = hk * e;
  std::vector<double> to;
  for (int64_t i = 0; i < rows(); ++i) {
    const Row& row = rows_[static_cast<size_t>(i)];
    std::vector<double> keys, values;  // (position + 1, hk, e)
    for (int64_t position = 0; position <= row.position; ++position) {
      const std::span<double> k = row_of(cache.keys, place(row, position), kv_width),
                              v = row_of(cache.values, place(row, position), kv_width);
      keys.insert(keys.end(), k.begin(), k.end());
      values.insert(values.end(), v.begin(), v.end());
    }
    const std::vector<double> attended =
        attention(row_of(value(o.q), i, width), keys, values, row.position, shape.heads, hk, e,
                  shape.layers[static_cast<size_t>(o.layer)].window,
                  o.sinks < 0 ? std::span<const double>() : w_.norms[static_cast<size_t>(o.sinks)]);
    to.insert(to.end(), attended.begin(), attended.end());
  }
  value(o.to) = std::move(to);
}

void Executor::run(const op::GateHeads& o) { value(o.to) = gated(Gate::sigmoid, value(o.gate), value(o.from)); }

void Executor::run(const op::SplitGate& o) {
  const auto e = static_cast<size_t>(p_.attention.head_dim);
  std::vector<double>&to = value(o.to), &gate = value(o.gate);
  to.clear(), gate.clear();
  const std::vector<double>& from = value(o.from);
  for (size_t i = 0; i < from.size(); ++i) (i / e % 2 == 0 ? to : gate).push_back(from[i]);
}

// --- delta nets ----------------------------------------------------------------------------------------------------
template <typename Keep, typename Step>
void Executor::for_each_row(int layer, const Keep& keep, const Step& step) {
  const StateShape& s = p_.state;
  const auto at = static_cast<size_t>(layer);
  for (const Segment& segment : segments_) {
    LayerState state{std::vector<double>(static_cast<size_t>(s.matrices())),
                     std::vector<double>(static_cast<size_t>(s.inputs()))};
    if (segment.state >= 0) state = states_.at(static_cast<size_t>(segment.state)).layers[at];
    for (int32_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
      step(state, row);
      for (const KeptState& kept : kept_)
        if (kept.row == row) keep(states_.at(static_cast<size_t>(kept.slot)).layers[at], state);
    }
  }
}

void Executor::run(const op::Convolve& o) {
  const auto channels = static_cast<size_t>(columns(o.from)), before = static_cast<size_t>(p_.state.rows),
             kernel = before + 1;
  const std::vector<double>& w = w_.deltas[static_cast<size_t>(o.delta)].convolution;
  value(o.to).assign(value(o.from).size(), 0);
  const auto keep = [](LayerState& kept, const LayerState& state) { kept.inputs = state.inputs; };
  for_each_row(o.delta, keep, [&](LayerState& state, int32_t row) {
    const std::span<double> from = row_of(value(o.from), row, columns(o.from)),
                            to = row_of(value(o.to), row, columns(o.from));
    state.inputs.insert(state.inputs.end(), from.begin(), from.end());
    for (size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (size_t i = 0; i < kernel; ++i) sum += w[c * kernel + i] * state.inputs[i * channels + c];
      to[c] = sum / (1 + std::exp(-sum));
    }
    state.inputs.erase(state.inputs.begin(), state.inputs.begin() + static_cast<std::ptrdiff_t>(channels));
  });
}

void Executor::run(const op::DeltaRule& o) {
  const StateShape& s = p_.state;
  const DeltaWeights& w = w_.deltas[static_cast<size_t>(o.delta)];
  const int64_t values = columns(o.to), keys = (columns(o.from) - values) / 2, group = s.heads * s.key_dim / keys;
  value(o.to).assign(static_cast<size_t>(rows() * values), 0);
  const auto keep = [](LayerState& kept, const LayerState& state) { kept.matrices = state.matrices; };
  for_each_row(o.delta, keep, [&](LayerState& state, int32_t row) {
    const std::span<double> from = row_of(value(o.from), row, columns(o.from)), to = row_of(value(o.to), row, values),
                            b = row_of(value(o.b), row, s.heads), a = row_of(value(o.a), row, s.heads);
    for (int64_t head = 0; head < s.heads; ++head) {
      const auto at = static_cast<size_t>(head);
      const double rate = std::exp(w.log_rate[at]), pace = std::log1p(std::exp(a[at] + w.step_bias[at]));
      const std::span<const double> q = from.subspan(static_cast<size_t>(head / group * s.key_dim)),
                                    k = q.subspan(static_cast<size_t>(keys));
      delta_step({q.first(static_cast<size_t>(s.key_dim)), k.first(static_cast<size_t>(s.key_dim)),
                  from.subspan(static_cast<size_t>(2 * keys + head * s.value_dim), static_cast<size_t>(s.value_dim)),
                  std::exp(-rate * pace), 1 / (1 + std::exp(-b[at]))},
                 row_of(state.matrices, head, int64_t{s.key_dim} * s.value_dim),
                 to.subspan(static_cast<size_t>(head * s.value_dim), static_cast<size_t>(s.value_dim)));
    }
  });
}

void Executor::run(const op::GatedNorm& o) {
  const std::vector<double>& weight = w_.norms[static_cast<size_t>(o.weight)];
  const auto e = static_cast<int64_t>(weight.size());
  const std::vector<double> normed =
      rmsnorm(value(o.from), weight, o.eps, static_cast<int64_t>(value(o.from).size()) / e, e);
  value(o.to) = gated(o.function, value(o.gate), normed);
}

void Executor::run(const op::AddShared& o) {
  const int64_t d = columns(o.to);
  for (int64_t row = 0; row < rows(); ++row) {
    const double share = 1 / (1 + std::exp(-value(o.gate)[static_cast<size_t>(row)]));
    const std::span<double> from = row_of(value(o.from), row, d), to = row_of(value(o.to), row, d);
    for (size_t i = 0; i < to.size(); ++i) to[i] += share * from[i];
  }
}

// --- the predictor --------------------------------------------------------------------------------------------------
void Executor::run(const op::Before& o) {
  const int64_t d = columns(o.to);
  std::vector<double> to;
  for (const Segment& segment : segments_) {
    const std::vector<double> carried = segment.state < 0 ? std::vector<double>(static_cast<size_t>(d))
                                                          : states_.at(static_cast<size_t>(segment.state)).carried;
    to.insert(to.end(), carried.begin(), carried.end());
    for (int32_t row = segment.first_row; row + 1 < segment.first_row + segment.rows; ++row) {
      const std::span<double> before = row_of(value(o.from), row, d);
      to.insert(to.end(), before.begin(), before.end());
    }
  }
  value(o.to) = std::move(to);
}

void Executor::run(const op::Carry& o) {
  for (const KeptState& kept : kept_) {
    const std::span<double> row = row_of(value(o.from), kept.row, columns(o.from));
    states_.at(static_cast<size_t>(kept.slot)).carried.assign(row.begin(), row.end());
  }
}

void Executor::run(const op::Join& o) {
  std::vector<double> to;
  for (int64_t row = 0; row < rows(); ++row)
    for (const ValueId from : {o.a, o.b}) {
      const std::span<double> part = row_of(value(from), row, columns(from));
      to.insert(to.end(), part.begin(), part.end());
    }
  value(o.to) = std::move(to);
}

// --- experts -------------------------------------------------------------------------------------------------------
void Executor::run(const op::Route& o) {
  const auto router = static_cast<size_t>(o.router);
  value(o.logits) = product(w_.routers[router], value(o.from));
  slots_.clear();
  for (int64_t row = 0; row < rows(); ++row)
    for (const auto& [expert, share] :
         route(row_of(value(o.logits), row, p_.routing.experts), p_.routing, w_.adjustments[router]))
      slots_.push_back({row, expert, share});
  std::ranges::stable_sort(slots_, {}, &Slot::expert);
}

void Executor::run(const op::Take& o) {
  std::vector<double> to;
  for (const Slot& slot : slots_) {
    const std::span<double> row = row_of(value(o.from), slot.row, columns(o.from));
    to.insert(to.end(), row.begin(), row.end());
  }
  value(o.to) = std::move(to);
}

const Matrix& Executor::expert(ExpertsId id, int64_t expert) const {
  const LayerExperts& experts = p_.experts[static_cast<size_t>(id)];
  const LinearId wanted{experts.layer, experts.role, static_cast<int>(expert)};
  return w_.linears.at(static_cast<size_t>(std::ranges::find(p_.linears, wanted) - p_.linears.begin()));
}

void Executor::run(const op::RoutedProduct& o) {
  for (const op::RoutedOutput& output : o.outputs) {
    std::vector<double> to;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::vector<double> y = product(expert(output.weights, slots_[slot].expert),
                                            row_of(value(o.from), static_cast<int64_t>(slot), columns(o.from)));
      to.insert(to.end(), y.begin(), y.end());
    }
    value(output.to) = std::move(to);
  }
}

void Executor::run(const op::Combine& o) {
  const int64_t d = columns(o.to);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const std::span<double> from = row_of(value(o.from), static_cast<int64_t>(slot), d),
                            to = row_of(value(o.to), slots_[slot].row, d);
    for (size_t i = 0; i < to.size(); ++i) to[i] += slots_[slot].share * from[i];
  }
}

}  // namespace fidelio::ref
