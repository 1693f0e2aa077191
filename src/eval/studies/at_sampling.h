// This file measures fidelity for a model as it is sampled: the same two distances after the temperature and the
// filters that its authors recommend in generation_config.json, if they recommend any.
//
//   EAR   after temperature, top-k, top-p and min-p: how often two draws agree under the best coupling
//   KL    at that temperature, before the filters: a filter that drops one token of the source's makes it infinite
//
// The filters are those of the sampler (kernels/cpu/choice/choose.h), with integer weights, on the host. So the
// comparison sees what a request would draw from. Penalties depend on what was said before and are not applied.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "engine/sampler.h"
#include "kernels/cpu/choice/choose.h"
#include "text/chat_template.h"

namespace fidelio {

// Returns the recommended sampling. The result is empty if generation_config.json recommends greedy decoding
// (do_sample false, or temperature 0), says nothing about sampling, or does not exist.
std::optional<SamplingOptions> recommended_sampling(const GenerationDefaults& defaults);
// The JSON has the form {temperature, top_k, top_p, min_p}. Reading it throws nlohmann::json::exception if one is
// missing.
nlohmann::json sampling_json(const SamplingOptions& sampling);
SamplingOptions sampling_from_json(const nlohmann::json& json);
// Returns for example "temperature 0.6, top-p 0.9". Filters that keep every token are not named.
std::string sampling_text(const SamplingOptions& sampling);

// SampledRows computes the EAR of two rows' distributions after the filters. One object serves one thread.
class SampledRows {
 public:
  explicit SampledRows(const SamplingOptions& sampling);
  bool filters() const { return filters_; }  // if false, every token stays, and EAR is the one before the filters
  double ear(std::span<const float> p_logits, std::span<const float> q_logits);

 private:
  ChoiceRule rule_;
  bool filters_;
  cpu::Chooser chooser_;
};

}  // namespace fidelio
