// app: how tokens are chosen, for every verb that generates.
#pragma once
#include <set>

#include "app/options/common.h"
#include "engine/sampler.h"

namespace fidelio::app {

struct Sampling {
  SamplingOptions options;
  bool recommended = false;
  std::set<std::string> given;  // options of the command line, without dashes
};
// --temperature ... --seed, and --recommended, or, where that is what holds anyway (`by_default`), --no-recommended.
void add_sampling(CLI::App& verb, Sampling& sampling, bool by_default = false);

// Returns the options that the command line gives. Where --recommended holds, what that leaves open is as the model's
// generation_config.json has it, and as `serve` has it where that says nothing.
SamplingOptions sampling_of(const Sampling& sampling, const std::string& model);

}  // namespace fidelio::app
