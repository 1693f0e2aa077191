// The weights of a plan moved nearer to the source (train/tune/tuner.h): the same formats, the same bytes.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/desk.h"
#include "compress/tune/tune_data.h"

namespace fidelio {

class PlanTuner {
 public:
  PlanTuner(Desk& desk, Journal& journal) : desk_(desk), journal_(journal) {}

  struct Tuned {
    std::map<LinearId, LinearWeight> weights;  // those that were given
    double gain = 1;                           // KL after over KL before, on windows held out of the tuning
    nlohmann::json about;                      // for the checkpoint's provenance
  };
  // `name`: of the plan, for files in the journal, where a run that was killed goes on. Norms, biases and what stays
  // dense are left alone. The text is the calibration's documents and the source's own samples, never the certificate's.
  Tuned tune(const std::string& name, const std::map<LinearId, FormatSpec>& formats,
             const std::map<LinearId, LinearWeight>& weights);

 private:
  const train::TuneData& data();
  Desk& desk_;
  Journal& journal_;
  std::optional<train::TuneData> data_;
  std::vector<Checkpoint> read_;  // what weights of this are views into
};

}  // namespace fidelio
