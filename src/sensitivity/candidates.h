// Every candidate format of every group, quantised once and kept in a store. A search assigns them by handing over
// pointers; what is packed for that is held where all candidates together are small, and else read when it is asked
// for: memory has about one model in the format that is being measured, and the errors of the others.
#pragma once
#include <map>

#include "ranks/ranks.h"
#include "sensitivity/candidate_store.h"
#include "sensitivity/estimate.h"

namespace fidelio {

class CandidateSet {
 public:
  // All candidates are held, packed, where they take no more than this; more are read from the store each time.
  static constexpr int64_t kHeldBytes = int64_t{1} << 30;

  // Quantises by GPTQ against the source's own activations over `calibration` (the runner keeps the source's weights),
  // a head and a tied embedding among them; an embedding that is only looked up by rounding. Stops that `store` holds
  // are taken from there, and it keeps what is made. Several ranks deal out the stops; one that does not find what the
  // others made (a store of its own) makes it, too. Runner, source and store must outlive the set.
  CandidateSet(Runner& runner, const Checkpoint& source, const Dataset& calibration,
               const std::vector<LinearGroup>& groups, const std::vector<FormatSpec>& formats,
               const GptqOptions& options, ThreadPool& pool, CandidateStore& store, const Ranks& ranks = Ranks(),
               int64_t held_bytes = kHeldBytes);
  CandidateSet(const CandidateSet&) = delete;  // its groups refer to it

  const std::vector<CandidateGroup>& groups() const { return groups_; }
  LinearWeight weight(LinearId id, const FormatSpec& format) const;
  PackedLinear packed(LinearId id, const FormatSpec& format) const;

 private:
  Runner& runner_;
  const Checkpoint& source_;
  const CandidateStore& store_;
  std::vector<CandidateGroup> groups_;
  bool holds_ = false;
  mutable std::map<std::pair<LinearId, std::string>, PackedLinear> held_;
};

// ||W - Q||^2 / ||W||^2 of a weight and the one it stands for.
double relative_error(const LinearWeight& w, const LinearWeight& original, ThreadPool& pool);
// Adds to every group what it is in the source, at no cost, so that there is a plan for any target that the source itself
// meets. A group whose linears differ in format has no such option.
void offer_source(const Checkpoint& source, const std::vector<LinearGroup>& groups, SensitivityTable& table);
// Bytes of everything no group holds: tensors that stay as the source has them, a shared codebook of theirs among them.
int64_t fixed_bytes(const Checkpoint& source, const std::vector<LinearGroup>& groups);
// The formats a plan gives to each linear.
std::map<LinearId, FormatSpec> formats_of(const SensitivityTable& table, const Plan& plan);

}  // namespace fidelio
