// A Measurer compares the served runner, with the weights that are in force there, with the reference on the texts of a
// compression. It keeps what the source makes of each set from the first comparison for all others.
#pragma once
#include <optional>

#include "compress/certificate/certificate.h"
#include "compress/desk/desk.h"
#include "compress/desk/runners.h"
#include "eval/fidelity/logit_pass.h"

namespace fidelio {

class Measurer {
 public:
  Measurer(Desk& desk, Runners& runners) : desk_(desk), runners_(runners) {}

  // Measures on the set that plans are tried on.
  FidelityReport adjustment();
  // Measures on the set of the certificate. `as_sampled` adds the figures as generation_config.json recommends to
  // sample. They take a third longer, and only the certified plan needs them.
  FidelityReport certificate(bool as_sampled);
  WholeAnswers answers();  // as many as the job asks for
  // Returns how the source's authors recommend to sample it; nothing if they do not.
  std::optional<SamplingOptions> recommended() const;

  // Measures the source's own weights through the serving kernels, on a few windows of every domain: no plan can be
  // nearer. Throws Error if a target of the job lies beyond that, before anything is quantised.
  FloorFigures checked_floor();

 private:
  FidelityReport measure(const TextSet& on, KeptStreams* kept, bool as_sampled = false);
  Desk& desk_;
  Runners& runners_;
  KeptStreams adjustment_streams_, certificate_streams_;
};

}  // namespace fidelio
