// Fidelity as a model is sampled: the same two distances after the temperature and the filters that its authors recommend
// in generation_config.json, where they recommend any.
//
//   EAR   of what is left after temperature, top-k, top-p and min-p: how often two draws agree under the best coupling
//   KL    at that temperature before the filters: a filter that drops one token of the source's makes it infinite
//
// The filters are the sampler's own (kernels/cpu/choice/choose.h), whose weights are integers, on the host: what is
// compared is what a request would draw from. Penalties depend on what was said before, and are not applied.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "engine/sampler.h"
#include "kernels/cpu/choice/choose.h"
#include "text/chat_template.h"

namespace fidelio {

// Nothing where generation_config.json recommends greedy decoding (do_sample false, or temperature 0), says nothing of
// sampling, or is not there.
std::optional<SamplingOptions> recommended_sampling(const GenerationDefaults& defaults);
// {temperature, top_k, top_p, min_p}.
nlohmann::json sampling_json(const SamplingOptions& sampling);
SamplingOptions sampling_from_json(
    const nlohmann::json& json);  // throws nlohmann::json::exception where one is missing
// "temperature 0.6, top-p 0.9": without the filters that keep every token.
std::string sampling_text(const SamplingOptions& sampling);

// EAR of both rows' distributions after the filters. One object serves one thread.
class SampledRows {
 public:
  explicit SampledRows(const SamplingOptions& sampling);
  bool filters() const { return filters_; }  // else every token stays, and EAR is the one before the filters
  double ear(std::span<const float> p_logits, std::span<const float> q_logits);

 private:
  ChoiceRule rule_;
  bool filters_;
  cpu::Chooser chooser_;
};

}  // namespace fidelio
