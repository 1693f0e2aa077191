#include "eval/studies/at_sampling.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace fidelio {

std::optional<SamplingOptions> recommended_sampling(const GenerationDefaults& d) {
  const bool says_something = d.do_sample || d.temperature || d.top_k || d.top_p || d.min_p;
  if (!says_something || d.do_sample == false) return std::nullopt;
  SamplingOptions sampling;
  sampling.temperature = d.temperature.value_or(1.0);
  sampling.top_k = std::max<int64_t>(0, d.top_k.value_or(0));
  sampling.top_p = d.top_p.value_or(1.0);
  sampling.min_p = d.min_p.value_or(0.0);
  if (sampling.temperature == 0) return std::nullopt;
  validate(sampling);
  return sampling;
}

nlohmann::json sampling_json(const SamplingOptions& s) {
  return {{"temperature", s.temperature}, {"top_k", s.top_k}, {"top_p", s.top_p}, {"min_p", s.min_p}};
}

SamplingOptions sampling_from_json(const nlohmann::json& json) {
  SamplingOptions s;
  s.temperature = json.at("temperature").get<double>();
  s.top_k = json.at("top_k").get<int64_t>();
  s.top_p = json.at("top_p").get<double>();
  s.min_p = json.at("min_p").get<double>();
  return s;
}

std::string sampling_text(const SamplingOptions& s) {
  return fmt::format("temperature {:g}{}{}{}", s.temperature, s.top_k > 0 ? fmt::format(", top-k {}", s.top_k) : "",
                     s.top_p < 1 ? fmt::format(", top-p {:g}", s.top_p) : "",
                     s.min_p > 0 ? fmt::format(", min-p {:g}", s.min_p) : "");
}

SampledRows::SampledRows(const SamplingOptions& sampling)
    : filters_(sampling.top_k > 0 || sampling.top_p < 1 || sampling.min_p > 0) {
  check(sampling.temperature > 0, "fidelity as sampled needs a temperature above 0, not {}", sampling.temperature);
  std::vector<LogitChange> none;
  rule_ = choice_rule(sampling, {}, 0, 0, 0, none);
  rule_.changes = {};
}

double SampledRows::ear(std::span<const float> p_logits, std::span<const float> q_logits) {
  const TokenDistribution p = chooser_.distribution(p_logits, rule_), q = chooser_.distribution(q_logits, rule_);
  check(p.total > 0 && q.total > 0, "a logit is not finite: the model computes NaN or infinity");
  const auto all_p = static_cast<double>(p.total), all_q = static_cast<double>(q.total);
  double ear = 0;
  for (size_t i = 0, j = 0; i < p.ids.size() && j < q.ids.size();) {  // both are in ascending order of ids
    if (p.ids[i] < q.ids[j]) {
      ++i;
    } else if (q.ids[j] < p.ids[i]) {
      ++j;
    } else {
      ear += std::min(static_cast<double>(p.weights[i++]) / all_p, static_cast<double>(q.weights[j++]) / all_q);
    }
  }
  return ear;
}

}  // namespace fidelio
