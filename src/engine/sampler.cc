#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

void apply_penalties(std::vector<float>& logits, std::span<const int32_t> history, int64_t output_begin,
                     const SamplingOptions& o) {
  const auto known = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  if (o.repetition_penalty != 1) {
    const std::unordered_set<int32_t> seen(history.begin(), history.end());
    for (int32_t id : seen) {
      if (!known(id)) continue;
      float& x = logits[static_cast<size_t>(id)];
      x = static_cast<float>(x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty);
    }
  }
  if (o.presence_penalty != 0 || o.frequency_penalty != 0) {
    std::unordered_map<int32_t, int> count;
    for (int32_t id : history.subspan(static_cast<size_t>(output_begin))) ++count[id];
    for (auto [id, times] : count)
      if (known(id))
        logits[static_cast<size_t>(id)] -= static_cast<float>(o.presence_penalty + o.frequency_penalty * times);
  }
  for (auto [id, bias] : o.logit_bias)
    if (known(id)) logits[static_cast<size_t>(id)] += bias;
}

bool changes_logits(const SamplingOptions& o) {
  return o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0 || !o.logit_bias.empty();
}

}  // namespace

void validate(const SamplingOptions& o) {
  check(std::isfinite(o.temperature) && o.temperature >= 0, "temperature must be >= 0, not {}", o.temperature);
  check(o.top_k >= 0, "top_k must be >= 0 (0 = off), not {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "top_p must be in (0, 1], not {}", o.top_p);
  check(o.min_p >= 0 && o.min_p <= 1, "min_p must be in [0, 1], not {}", o.min_p);
  check(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0, "repetition_penalty must be > 0, not {}",
        o.repetition_penalty);
  check(std::isfinite(o.presence_penalty) && std::isfinite(o.frequency_penalty), "penalties must be finite");
}

// A row that holds NaN or +infinity has no best and no order; -infinity is a token that may not be said.
void check_orderable(std::span<const float> logits) {
  const bool orderable = std::all_of(logits.begin(), logits.end(), [](float x) { return x < INFINITY; });
  check(orderable && *std::max_element(logits.begin(), logits.end()) > -INFINITY,
        "a logit is not finite: the model computes NaN or infinity; its weights are damaged, a format's scale "
        "overflowed, or a penalty or bias is beyond reason");
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t Sampler::choose(std::span<const float> logits, std::span<const int32_t> history, int64_t output_begin,
                        int64_t position, const SamplingOptions& o) {
  if (changes_logits(o)) {
    adjusted_.assign(logits.begin(), logits.end());
    apply_penalties(adjusted_, history, output_begin, o);
    logits = adjusted_;
  }
  check_orderable(logits);
  if (o.temperature == 0) return argmax(logits);

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + o.top_k - 1, candidates_.end(), better);
    candidates_.resize(static_cast<size_t>(o.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), better);

  const double top = candidates_.front().logit;
  std::vector<double> weight(candidates_.size());
  double total = 0;
  for (size_t i = 0; i < weight.size(); ++i)
    total += weight[i] = std::exp((candidates_[i].logit - top) / o.temperature);
  size_t kept = weight.size();
  if (o.top_p < 1) {
    double sum = 0;
    for (kept = 0; kept < weight.size() && sum < o.top_p * total; ++kept) sum += weight[kept];
  }
  while (kept > 1 && weight[kept - 1] < o.min_p) --kept;  // weight[0] is 1: the others are relative to the best

  total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight[i];
  double u = Rng(o.seed, static_cast<uint64_t>(position)).uniform() * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (u < weight[i]) return candidates_[i].id;
    u -= weight[i];
  }
  return candidates_[kept - 1].id;
}

}  // namespace fidelio
