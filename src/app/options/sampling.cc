#include "app/options/sampling.h"

namespace fidelio::app {

void add_sampling(CLI::App& verb, Sampling& s) {
  verb.add_option("--temperature", s.options.temperature, "0 = greedy");
  verb.add_option("--top-k", s.options.top_k, "Sample among the k most likely tokens; 0 = all");
  verb.add_option("--top-p", s.options.top_p, "Sample among the most likely tokens that reach probability p");
  verb.add_option("--min-p", s.options.min_p, "Sample among tokens at least so likely relative to the best");
  verb.add_option("--repetition-penalty", s.options.repetition_penalty, "Of tokens in prompt and answer; 1 = none");
  verb.add_option("--presence-penalty", s.options.presence_penalty, "Subtracted from logits of tokens in the answer");
  verb.add_option("--frequency-penalty", s.options.frequency_penalty, "Subtracted per occurrence in the answer");
  verb.add_option("--seed", s.options.seed, "Same seed, same answer");
  verb.add_flag("--recommended", s.recommended, "Sample as the model's generation_config.json recommends");
}

SamplingOptions sampling_of(const Sampling& s, const std::string& model) {
  SamplingOptions o = s.options;
  if (!s.recommended) return o;
  const GenerationDefaults defaults = GenerationDefaults::load(open_text_files(model));
  if (defaults.do_sample == false) return o;
  o.temperature = defaults.temperature.value_or(1.0);
  o.top_k = defaults.top_k.value_or(o.top_k);
  o.top_p = defaults.top_p.value_or(o.top_p);
  o.min_p = defaults.min_p.value_or(o.min_p);
  o.repetition_penalty = defaults.repetition_penalty.value_or(o.repetition_penalty);
  return o;
}

}  // namespace fidelio::app
