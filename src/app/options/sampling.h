// This file has the options by which tokens are chosen, for every verb that generates.
#pragma once
#include <set>

#include "app/options/common.h"
#include "engine/sampler.h"

namespace fidelio::app {

struct Sampling {
  SamplingOptions options;
  bool recommended = false;
  std::set<std::string> given;  // These are the options given on the command line, without dashes.
};
// Adds --temperature ... --seed, and --recommended or, where that is on anyway (`by_default`), --no-recommended.
void add_sampling(CLI::App& verb, Sampling& sampling, bool by_default = false);

// Returns the options that the command line gives. With --recommended, options that it leaves open come from the
// model's generation_config.json, or are those of `serve` where that file has none.
SamplingOptions sampling_of(const Sampling& sampling, const std::string& model);

}  // namespace fidelio::app
