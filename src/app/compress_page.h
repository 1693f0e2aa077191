// The page about one compression: what was certified, which plans there were, what each group can bear, and what it
// got.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "alloc/plan.h"
#include "app/seconds.h"
#include "eval/compare.h"
#include "sensitivity/gamma.h"

namespace fidelio::app {

struct UniformPoint {  // every group in one format, on the search text
  std::string format;
  double bits = 0, kl = 0, ear = 0;
};
struct TrialPoint {  // a plan that was measured on the way
  double bits = 0, kl = 0;
  Estimate ear;
  double predicted_ear = 0;
};

// gamma_law of one linear of the source, at kGammaBits.
struct GammaRow {
  std::string linear;
  GammaLaw law;
};
inline constexpr int kGammaBits = 4;

struct CompressStory {
  std::string model;
  const SensitivityTable& table;
  const std::vector<Plan>& front;
  const Plan& plan;
  std::vector<UniformPoint> uniform;
  std::vector<TrialPoint> trials;
  std::vector<GammaRow> gamma;
  int gamma_group = 0;
  const FidelityReport& certified;
  std::string search, allocate_by;
  const nlohmann::json& report;                          // what --json writes
  std::vector<std::pair<std::string, Seconds>> seconds;  // of this run, by phase
};
std::string compress_page(const CompressStory& story);  // self-contained HTML

}  // namespace fidelio::app
