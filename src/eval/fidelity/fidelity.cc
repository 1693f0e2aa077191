#include "eval/fidelity/fidelity.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/fast_exp.h"

namespace fidelio {
namespace {

constexpr size_t kBlock = 16;     // four vectors, because four independent sums hide the latency of an addition
constexpr float kPadding = -100;  // a shifted logit whose exp vanishes beside that of the largest, which is 1

size_t padded(size_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// Lanes are sixteen FP64 sums, which are added up in a fixed order at the end.
struct Lanes {
  Double4 sum[kBlock / 4] = {};
  void add(size_t j, Float4 x) { sum[j] += __builtin_convertvector(x, Double4); }
  double total() const {
    const Double4 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return (all[0] + all[1]) + (all[2] + all[3]);
  }
};

float row_maximum(std::span<const float> logits) {
  Float4 lanes[kBlock / 4];
  std::fill(lanes, lanes + kBlock / 4, splat4(logits[0]));
  size_t i = 0;
  for (; i + kBlock <= logits.size(); i += kBlock)
    for (size_t j = 0; j < kBlock / 4; ++j) {
      const Float4 x = load4(&logits[i + 4 * j]);
      lanes[j] = lanes[j] < x ? x : lanes[j];
    }
  float maximum = logits[0];
  for (const Float4& lane : lanes)
    for (int j = 0; j < 4; ++j) maximum = std::max(maximum, lane[j]);
  for (; i < logits.size(); ++i) maximum = std::max(maximum, logits[i]);
  return maximum;
}

void check_finite(std::span<const float> logits) {
  check(!logits.empty(), "a row of logits is empty");
  // x - x is 0 for a finite x and NaN otherwise, and a NaN stays in a sum.
  Float4 sum = splat4(0);
  size_t i = 0;
  for (; i + 4 <= logits.size(); i += 4) sum += load4(&logits[i]) - load4(&logits[i]);
  for (; i < logits.size(); ++i) sum[0] += logits[i] - logits[i];
  check(sum[0] + sum[1] + sum[2] + sum[3] == 0,
        "a logit is not finite: the model computes NaN or infinity; its weights are damaged or a format's scale "
        "overflowed");
}

// Fills `exps` with the exps of the shifted logits, whose number is padded to whole blocks. Returns their sum.
double exp_of(std::span<const float> shifted, std::span<float> exps) {
  Lanes sum;
  for (size_t i = 0; i < shifted.size(); i += kBlock)
    for (size_t j = 0; j < kBlock / 4; ++j) {
      const Float4 e = fast_exp(load4(&shifted[i + 4 * j]));
      store4(&exps[i + 4 * j], e);
      sum.add(j, e);
    }
  return sum.total();
}

// Computes shifted = logits - maximum and its exp, both padded to whole blocks. Returns the sum of the exps.
double shift_and_exp(std::span<const float> logits, float maximum, std::vector<float>& shifted,
                     std::vector<float>& exps) {
  const size_t n = padded(logits.size());
  shifted.resize(n);
  exps.resize(n);
  for (size_t i = 0; i < logits.size(); ++i) shifted[i] = logits[i] - maximum;
  std::fill(shifted.begin() + static_cast<std::ptrdiff_t>(logits.size()), shifted.end(), kPadding);
  return exp_of(shifted, exps);
}

struct FullSums {
  double kl, distance, entropy;  // distance = sum |p - q|
};

// Passes once over the vocabulary. Here p = exp_p inverse_p and q likewise. `offset` is ln sum_p - ln sum_q, so that
// t = ln(q / p) = (shifted_q - shifted_p) + offset.
FullSums full_vocabulary(std::span<const float> xp, std::span<const float> xq, std::span<const float> ep,
                         std::span<const float> eq, double sum_p, double sum_q) {
  const auto inverse_p = static_cast<float>(1 / sum_p), inverse_q = static_cast<float>(1 / sum_q);
  const double log_sum_p = std::log(sum_p);
  const auto offset = static_cast<float>(log_sum_p - std::log(sum_q));
  Lanes kl, distance, weighted;
  for (size_t i = 0; i < xp.size(); i += kBlock)
    for (size_t j = 0; j < kBlock / 4; ++j) {
      const size_t k = i + 4 * j;
      const Float4 p = load4(&ep[k]) * inverse_p, q = load4(&eq[k]) * inverse_q, x = load4(&xp[k]);
      const Float4 t = (load4(&xq[k]) - x) + offset, difference = q - p;
      // Both are the same number, but `near` overflows for large t.
      const Float4 near = p * exp_minus_1_minus_x(t), far = difference - p * t;
      kl.add(j, t > 1 ? far : near);
      distance.add(j, difference < 0 ? -difference : difference);
      weighted.add(j, p * x);
    }
  return {kl.total(), distance.total(), log_sum_p - weighted.total()};
}

// Finds the ids of the `count` largest logits, largest first and the lower id first among equals. A whole block is
// skipped if its maximum does not beat the smallest one kept, which is nearly always so after a few thousand logits.
void largest(std::span<const float> logits, size_t count, std::vector<int32_t>& ids) {
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  count = std::min(count, logits.size());
  ids.clear();
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const auto block = logits.subspan(first, std::min(kBlock, logits.size() - first));
    if (ids.size() == count && row_maximum(block) <= logits[static_cast<size_t>(ids.back())]) continue;
    for (size_t i = first; i < first + block.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      if (ids.size() == count) {
        if (!better(id, ids.back())) continue;
        ids.pop_back();
      }
      ids.insert(std::upper_bound(ids.begin(), ids.end(), id, better), id);
    }
  }
}

int32_t first_maximum(std::span<const float> logits, float maximum) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), maximum) - logits.begin());
}

}  // namespace

// There are only K terms, so this uses plain FP64.
void compare_top(std::span<const float> p_top, std::span<const float> q_top, PositionFidelity& f) {
  const auto log_p = [&](size_t k) { return static_cast<double>(p_top[k]) - f.log_sum_exp_p; };
  const auto log_q = [&](size_t k) { return static_cast<double>(q_top[k]) - f.log_sum_exp_q; };
  double mass_p = 0, mass_q = 0;
  for (size_t k = 0; k < p_top.size(); ++k) {
    const double p = std::exp(log_p(k)), q = std::exp(log_q(k));
    mass_p += p;
    mass_q += q;
    f.kl_raw += p * (log_p(k) - log_q(k));
    f.ear_raw += std::min(p, q);
  }
  f.top_k_mass = mass_p;
  const double offset = std::log(mass_p) - std::log(mass_q);
  double distance = 0;
  for (size_t k = 0; k < p_top.size(); ++k) {
    const double p = std::exp(log_p(k)) / mass_p, q = std::exp(log_q(k)) / mass_q;
    const double t = log_q(k) - log_p(k) + offset;
    f.kl_renormalised += p * (std::expm1(t) - t);
    distance += std::fabs(p - q);
  }
  f.ear_renormalised = 1 - distance / 2;
}

double log_sum_exp(std::span<const float> logits) {
  check_finite(logits);
  const float maximum = row_maximum(logits);
  Lanes sum;
  size_t i = 0;
  for (; i + kBlock <= logits.size(); i += kBlock)
    for (size_t j = 0; j < kBlock / 4; ++j) sum.add(j, fast_exp(load4(&logits[i + 4 * j]) - maximum));
  for (; i < logits.size(); ++i) sum.add(0, fast_exp(Float4{logits[i] - maximum, kPadding, kPadding, kPadding}));
  return static_cast<double>(maximum) + std::log(sum.total());
}

PositionFidelity RowComparer::compare(std::span<const float> p_logits, std::span<const float> q_logits) {
  check(p_logits.size() == q_logits.size(), "reference and candidate have different vocabularies: {} and {} logits",
        p_logits.size(), q_logits.size());
  check_finite(p_logits);
  check_finite(q_logits);
  vocabulary_ = p_logits.size();
  const float max_p = row_maximum(p_logits), max_q = row_maximum(q_logits);
  const double sum_p = shift_and_exp(p_logits, max_p, shifted_p_, exp_p_),
               sum_q = shift_and_exp(q_logits, max_q, shifted_q_, exp_q_);
  const FullSums full = full_vocabulary(shifted_p_, shifted_q_, exp_p_, exp_q_, sum_p, sum_q);

  PositionFidelity f;
  f.kl = full.kl;
  f.ear = 1 - full.distance / 2;
  f.entropy = full.entropy;
  f.confidence = 1 / sum_p;  // the largest shifted logit is 0
  f.log_sum_exp_p = static_cast<double>(max_p) + std::log(sum_p);
  f.log_sum_exp_q = static_cast<double>(max_q) + std::log(sum_q);
  f.top_p = first_maximum(p_logits, max_p);
  f.top_q = first_maximum(q_logits, max_q);
  if (!f.agree()) {
    const auto probability = [](std::span<const float> logits, int32_t id, double log_sum) {
      return std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
    };
    f.margin_p = probability(p_logits, f.top_p, f.log_sum_exp_p) - probability(p_logits, f.top_q, f.log_sum_exp_p);
    f.margin_q = probability(q_logits, f.top_q, f.log_sum_exp_q) - probability(q_logits, f.top_p, f.log_sum_exp_q);
  }
  largest(p_logits, static_cast<size_t>(top_k_), top_);
  top_p_.clear();
  top_q_.clear();
  for (const int32_t id : top_) {
    top_p_.push_back(p_logits[static_cast<size_t>(id)]);
    top_q_.push_back(q_logits[static_cast<size_t>(id)]);
  }
  compare_top(top_p_, top_q_, f);
  return f;
}

RowComparer::Distance RowComparer::at_temperature(double temperature) {
  check(temperature > 0 && vocabulary_ > 0, "a comparison at temperature {}: expected one above 0, of rows compared",
        temperature);
  const auto sharper = static_cast<float>(1 / temperature);
  for (std::vector<float>* row : {&shifted_p_, &shifted_q_}) {
    for (size_t i = 0; i < vocabulary_; ++i) (*row)[i] *= sharper;
    std::fill(row->begin() + static_cast<std::ptrdiff_t>(vocabulary_), row->end(), kPadding);
  }
  const double sum_p = exp_of(shifted_p_, exp_p_), sum_q = exp_of(shifted_q_, exp_q_);
  const FullSums full = full_vocabulary(shifted_p_, shifted_q_, exp_p_, exp_q_, sum_p, sum_q);
  return {full.kl, 1 - full.distance / 2};
}

int entropy_bin(double entropy) {
  const auto above = std::upper_bound(kEntropyEdges.begin() + 1, kEntropyEdges.end(), entropy);
  return static_cast<int>(above - kEntropyEdges.begin()) - 1;
}

void FidelitySums::add(const PositionFidelity& f) {
  ++positions;
  kl += f.kl;
  ear += f.ear;
  kl_raw += f.kl_raw;
  ear_raw += f.ear_raw;
  kl_renormalised += f.kl_renormalised;
  ear_renormalised += f.ear_renormalised;
  top_k_mass += f.top_k_mass;
  entropy += f.entropy;
  kl_sampled += f.kl_sampled;
  ear_sampled += f.ear_sampled;
  (f.agree() ? agreements : disagreements) += 1;
  margin_p += f.margin_p;
  margin_q += f.margin_q;
  const auto bin = static_cast<size_t>(entropy_bin(f.entropy));
  bin_positions[bin] += 1;
  bin_flips[bin] += f.agree() ? 0 : 1;
}

}  // namespace fidelio
