#include "app/options/sampling.h"

#include <algorithm>

namespace fidelio::app {
namespace {

// A generation_config.json may recommend values for these options.
const std::set<std::string> kRecommended = {"temperature", "top-k", "top-p", "min-p", "repetition-penalty"};

}  // namespace

void add_sampling(CLI::App& verb, Sampling& s, bool by_default) {
  const auto add = [&](const char* name, auto& value, std::string words) {
    const auto note = [&s, name](const std::string&) { s.given.insert(name); };
    if (by_default && kRecommended.contains(name)) words += " (default: as the model recommends)";
    verb.add_option(std::string("--") + name, value, words)->each(note);
  };
  add("temperature", s.options.temperature, "How freely tokens are chosen; 0 = always the likeliest one (greedy)");
  add("top-k", s.options.top_k, "Choose among the k most likely tokens; 0 = all");
  add("top-p", s.options.top_p, "Choose among the most likely tokens that together reach probability p");
  add("min-p", s.options.min_p, "Choose among tokens at least so likely relative to the best");
  add("repetition-penalty", s.options.repetition_penalty, "Of tokens in prompt and answer; 1 = none");
  add("presence-penalty", s.options.presence_penalty, "Subtracted from logits of tokens in the answer");
  add("frequency-penalty", s.options.frequency_penalty, "Subtracted per occurrence in the answer");
  add("seed", s.options.seed, "Same seed, same answer");
  s.recommended = by_default;
  if (by_default)
    verb.add_flag_callback(
        "--no-recommended", [&s] { s.recommended = false; },
        "Do not sample as the model's generation_config.json recommends: greedily, unless options say otherwise");
  else
    verb.add_flag("--recommended", s.recommended,
                  "Sample as the model's generation_config.json recommends, where other options do not say otherwise");
}

SamplingOptions sampling_of(const Sampling& s, const std::string& model) {
  SamplingOptions o = s.options;
  if (!s.recommended) return o;
  const GenerationDefaults defaults = GenerationDefaults::load(open_text_files(model));
  const auto settle = [&](const char* name, auto& value, auto recommended) {
    if (!s.given.contains(name)) value = recommended;
  };
  // A model without recommended sampling is greedy, as in transformers: at temperature 1 a small one writes nonsense.
  const bool sampled =
      defaults.do_sample.value_or(defaults.temperature || defaults.top_k || defaults.top_p || defaults.min_p);
  settle("temperature", o.temperature, sampled ? defaults.temperature.value_or(1.0) : 0);
  settle("top-k", o.top_k, std::max<int64_t>(0, defaults.top_k.value_or(o.top_k)));
  settle("top-p", o.top_p, defaults.top_p.value_or(o.top_p));
  settle("min-p", o.min_p, defaults.min_p.value_or(o.min_p));
  settle("repetition-penalty", o.repetition_penalty, defaults.repetition_penalty.value_or(o.repetition_penalty));
  return o;
}

}  // namespace fidelio::app
