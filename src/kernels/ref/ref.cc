#include "kernels/ref/ref.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace fidelio::ref {

std::vector<double> linear(std::span<const double> x, std::span<const double> w, std::span<const double> bias,
                           int64_t M, int64_t K, int64_t N) {
  std::vector<double> y(static_cast<size_t>(M * N));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * w[n * K + k];
      y[m * N + n] = sum;
    }
  return y;
}

std::vector<double> rmsnorm(std::span<const double> x, std::span<const double> weight, double eps, int64_t M,
                            int64_t d) {
  std::vector<double> y(static_cast<size_t>(M * d));
  for (int64_t m = 0; m < M; ++m) {
    double square = 0;
    for (int64_t i = 0; i < d; ++i) square += x[m * d + i] * x[m * d + i];
    const double factor = 1 / std::sqrt(square / static_cast<double>(d) + eps);
    for (int64_t i = 0; i < d; ++i) y[m * d + i] = x[m * d + i] * factor * weight[i];
  }
  return y;
}

void rope(std::span<double> x, std::span<const double> inverse_frequencies, double scale, int64_t position,
          int64_t heads, int64_t e) {
  const auto pairs = static_cast<int64_t>(inverse_frequencies.size());
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies[i];
      const double c = std::cos(angle) * scale, s = std::sin(angle) * scale;
      double& a = x[head * e + i];
      double& b = x[head * e + i + pairs];
      const double rotated = a * c - b * s;
      b = b * c + a * s;
      a = rotated;
    }
}

std::vector<double> attention(std::span<const double> q, std::span<const double> k, std::span<const double> v,
                              int64_t position, int64_t h, int64_t hk, int64_t e, int64_t window,
                              std::span<const double> sinks) {
  std::vector<double> out(static_cast<size_t>(h * e));
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  for (int64_t head = 0; head < h; ++head) {
    const int64_t shared = head / (h / hk);
    std::vector<double> score;
    for (int64_t t = first; t <= position; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < e; ++i) sum += q[head * e + i] * k[(t * hk + shared) * e + i];
      score.push_back(sum / std::sqrt(static_cast<double>(e)));
    }
    if (!sinks.empty()) score.push_back(sinks[static_cast<size_t>(head)]);
    const std::vector<double> p = softmax(score);
    for (int64_t t = first; t <= position; ++t)
      for (int64_t i = 0; i < e; ++i) out[head * e + i] += p[t - first] * v[(t * hk + shared) * e + i];
  }
  return out;
}

std::vector<double> rounded(std::span<const double> x, int64_t M, int64_t K, int64_t group, int bits) {
  std::vector<double> y(static_cast<size_t>(M * K));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t begin = 0; begin < K; begin += group) {
      const int64_t end = std::min(K, begin + group);
      double largest = 0;
      for (int64_t k = begin; k < end; ++k) largest = std::max(largest, std::abs(x[m * K + k]));
      const double scale = largest / ((1 << (bits - 1)) - 1);
      for (int64_t k = begin; k < end; ++k)
        y[m * K + k] = scale == 0 ? 0 : scale * std::nearbyint(x[m * K + k] / scale);
    }
  return y;
}

std::vector<double> swiglu(std::span<const double> gate, std::span<const double> up) {
  std::vector<double> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return y;
}

std::vector<double> geglu(std::span<const double> gate, std::span<const double> up) {
  std::vector<double> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double t = std::sqrt(2 / std::numbers::pi) * (gate[i] + 0.044715 * gate[i] * gate[i] * gate[i]);
    y[i] = gate[i] * 0.5 * (1 + std::tanh(t)) * up[i];
  }
  return y;
}

std::vector<double> gated(const Gating& how, std::span<const double> gate, std::span<const double> up) {
  if (how.function == Gate::silu) return swiglu(gate, up);
  if (how.function == Gate::gelu_tanh) return geglu(gate, up);
  std::vector<double> y(gate.size());
  if (how.function == Gate::clamped) {
    const double limit = how.limit, alpha = how.alpha;
    for (size_t i = 0; i < y.size(); ++i) {
      const double x = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
      y[i] = x / (1 + std::exp(-alpha * x)) * (u + 1);
    }
    return y;
  }
  for (size_t i = 0; i < y.size(); ++i) y[i] = up[i] / (1 + std::exp(-gate[i]));
  return y;
}

void delta_step(const DeltaStep& step, std::span<double> state, std::span<double> out) {
  const size_t keys = step.k.size(), values = step.v.size();
  const auto unit = [](std::span<const double> x) {
    double sum = 1e-6;
    for (const double value : x) sum += value * value;
    std::vector<double> y;
    for (const double value : x) y.push_back(value / std::sqrt(sum));
    return y;
  };
  const std::vector<double> q = unit(step.q), k = unit(step.k);
  for (double& s : state) s *= step.kept;
  for (size_t j = 0; j < values; ++j) {
    double known = 0, read = 0;
    for (size_t i = 0; i < keys; ++i) known += k[i] * state[i * values + j];
    const double change = step.written * (step.v[j] - known);
    for (size_t i = 0; i < keys; ++i) {
      state[i * values + j] += k[i] * change;
      read += q[i] * state[i * values + j];
    }
    out[j] = read / std::sqrt(static_cast<double>(keys));
  }
}

std::vector<double> softmax(std::span<const double> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(logits[i] - top);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> turned(std::span<const double> x, const Hadamard& how, int64_t M) {
  std::vector<double> y(x.size());
  for (int64_t i = 0; i < M * how.columns; ++i) {
    const int64_t in_block = i % how.columns % how.block(), element = in_block / how.stride, p = in_block % how.stride;
    for (int64_t j = 0; j < how.order; ++j)
      y[i] += how.entry(element, j) * x[i - in_block + j * how.stride + p] * how.scale();
  }
  return y;
}

namespace {

std::vector<double> scores_of(std::span<const double> logits, const RoutingRule& rule) {
  if (rule.scoring == Scoring::softmax) return softmax(logits);
  std::vector<double> scores;
  for (const double logit : logits) scores.push_back(1 / (1 + std::exp(-logit)));
  return scores;
}

// The places of the `count` largest, of equal ones the first.
std::vector<int64_t> largest(std::span<const double> values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

}  // namespace

std::vector<double> choice_scores(std::span<const double> logits, const RoutingRule& rule,
                                  std::span<const double> adjustments) {
  if (!rule.by_score()) return {logits.begin(), logits.end()};
  std::vector<double> by = scores_of(logits, rule);
  for (size_t expert = 0; rule.corrected && expert < by.size(); ++expert) by[expert] += adjustments[expert];
  return by;
}

std::vector<double> group_scores(std::span<const double> by, const RoutingRule& rule) {
  const size_t each = by.size() / static_cast<size_t>(rule.groups);
  std::vector<double> sums;
  for (size_t first = 0; first < by.size(); first += each) {
    std::vector<double> group(by.begin() + static_cast<int64_t>(first),
                              by.begin() + static_cast<int64_t>(first + each));
    std::ranges::sort(group, std::greater());
    sums.push_back(group[0] + group[1]);
  }
  return sums;
}

std::vector<ChosenExpert> route(std::span<const double> logits, const RoutingRule& rule,
                                std::span<const double> adjustments) {
  std::vector<double> by = choice_scores(logits, rule, adjustments);
  if (rule.groups > 1) {
    const std::vector<int64_t> kept = largest(group_scores(by, rule), rule.groups_per_row);
    const int64_t each = rule.experts / rule.groups;
    for (int64_t expert = 0; expert < rule.experts; ++expert)
      if (std::ranges::find(kept, expert / each) == kept.end()) by[expert] = -std::numeric_limits<double>::infinity();
  }
  const std::vector<double> scores = scores_of(logits, rule);
  std::vector<ChosenExpert> chosen;
  double sum = rule.scoring == Scoring::sigmoid ? kLeastScores : 0;
  for (const int64_t expert : largest(by, rule.per_row)) {
    chosen.push_back({expert, scores[expert]});
    sum += scores[expert];
  }
  for (ChosenExpert& one : chosen) {
    if (rule.renormalised) one.share /= sum;
    one.share *= rule.factor;
    if (rule.scaled) one.share *= adjustments[rule.experts + one.expert];
  }
  std::ranges::sort(chosen, {}, &ChosenExpert::expert);
  return chosen;
}

}  // namespace fidelio::ref
