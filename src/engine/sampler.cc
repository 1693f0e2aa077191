#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

bool changes_logits(const SamplingOptions& o) {
  return o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0 || !o.logit_bias.empty();
}

void collect_changes(const SamplingOptions& o, std::span<const int32_t> history, int64_t output_begin,
                     int64_t vocabulary, std::vector<LogitChange>& changes) {
  struct Seen {
    bool anywhere = false;
    int in_output = 0;
    float bias = 0;
  };
  std::map<int32_t, Seen> tokens;
  for (size_t i = 0; i < history.size(); ++i) {
    Seen& seen = tokens[history[i]];
    seen.anywhere = true;
    seen.in_output += static_cast<int64_t>(i) >= output_begin;
  }
  for (const auto& [id, bias] : o.logit_bias) tokens[id].bias = bias;
  for (const auto& [id, seen] : tokens) {
    if (id < 0 || id >= vocabulary) continue;
    const double less = seen.in_output > 0 ? o.presence_penalty + o.frequency_penalty * seen.in_output : 0.0;
    changes.push_back({id, seen.anywhere && o.repetition_penalty != 1, static_cast<float>(less), seen.bias});
  }
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

ChoiceRule choice_rule(const SamplingOptions& o, std::span<const int32_t> history, int64_t output_begin,
                       int64_t position, int64_t vocabulary, std::vector<LogitChange>& changes) {
  changes.clear();
  if (changes_logits(o)) collect_changes(o, history, output_begin, vocabulary, changes);
  ChoiceRule rule;
  rule.changes = changes;
  rule.repetition = o.repetition_penalty;
  rule.greedy = o.temperature == 0;
  if (rule.greedy) return rule;
  const double log2_e = 1.4426950408889634;
  rule.scale = static_cast<float>(std::clamp(log2_e / o.temperature, double{std::numeric_limits<float>::min()},
                                             double{std::numeric_limits<float>::max()}));
  rule.top_k = o.top_k;
  rule.top_p = o.top_p;
  if (o.min_p > 0) rule.farthest = static_cast<float>(-std::log2(o.min_p));
  rule.random = Rng(o.seed, static_cast<uint64_t>(position)).next();
  return rule;
}

void check_chosen(const Choice& choice) {
  check(choice.id >= 0,
        "a logit is not finite: the model computes NaN or infinity; its weights are damaged, a format's scale "
        "overflowed, or a penalty or bias is beyond reason");
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace fidelio
