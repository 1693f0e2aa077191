// Every candidate format of every group, quantised once and held as codes: what a search assigns by handing over
// pointers.
#pragma once
#include "quant/quantize_model.h"
#include "sensitivity/estimate.h"

namespace fidelio {

class CandidateSet {
 public:
  // Quantises by GPTQ against the source's own activations over `calibration` (the runner keeps the source's weights),
  // a head and a tied embedding among them; an embedding that is only looked up by rounding. Stops that `store` holds are taken from there. Several ranks, which need a store,
  // deal out the stops; one that does not find what the others made (a store of its own) makes it, too.
  CandidateSet(Runner& runner, const Checkpoint& source, const Dataset& calibration,
               const std::vector<LinearGroup>& groups, const std::vector<FormatSpec>& formats,
               const GptqOptions& options, ThreadPool& pool, StopStore* store = nullptr, const Ranks& ranks = Ranks());

  const std::vector<CandidateGroup>& groups() const { return groups_; }
  const LinearWeight& weight(LinearId id, const FormatSpec& format) const;
  int64_t bytes() const { return bytes_; }  // held, of all candidates

 private:
  std::vector<CandidateGroup> groups_;
  std::map<LinearId, std::vector<LinearWeight>> weights_;
  int64_t bytes_ = 0;
};

// ||W - Q||^2 / ||W||^2 of a weight and the one it stands for.
double relative_error(const LinearWeight& w, const LinearWeight& original, ThreadPool& pool);
// Adds to every group what it is in the source, at no cost, so that there is a plan for any target that the source itself
// meets. A group whose linears differ in format has no such option.
void offer_source(const Checkpoint& source, const std::vector<LinearGroup>& groups, SensitivityTable& table);
// Bytes of everything no group holds: tensors that stay as the source has them.
int64_t fixed_bytes(const Checkpoint& source, const std::vector<LinearGroup>& groups);
// The formats a plan gives to each linear.
std::map<LinearId, FormatSpec> formats_of(const SensitivityTable& table, const Plan& plan);

}  // namespace fidelio
