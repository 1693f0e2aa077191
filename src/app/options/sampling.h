// app: how tokens are chosen, for every verb that generates.
#pragma once
#include "app/options/common.h"
#include "engine/sampler.h"

namespace fidelio::app {

struct Sampling {
  SamplingOptions options;
  bool recommended = false;
};
void add_sampling(CLI::App& verb, Sampling& sampling);  // --temperature ... --seed --recommended

// What the model's generation_config.json says, where --recommended asks for it, in place of values of the command
// line; those values otherwise.
SamplingOptions sampling_of(const Sampling& sampling, const std::string& model);

}  // namespace fidelio::app
