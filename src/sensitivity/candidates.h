// A CandidateSet holds every candidate format of every group, quantised once and kept in a store. A search assigns a
// candidate by passing a pointer. If all candidates together are small they stay packed in memory; otherwise each is
// read when it is asked for. Memory then holds about one model, in the formats that are being measured, and the
// errors of all candidates.
#pragma once
#include <map>

#include "ranks/ranks.h"
#include "sensitivity/candidate_store.h"
#include "sensitivity/estimate.h"

namespace fidelio {

class CandidateSet {
 public:
  // All candidates are held in memory, packed, if they take no more than this. Otherwise they are read from the store
  // each time.
  static constexpr int64_t kHeldBytes = int64_t{1} << 30;

  // Quantises the candidates. Linears of the layers, a head and a tied embedding are quantised by GPTQ against the
  // source's own activations over `calibration`, and the runner keeps the source's weights. An embedding that is only
  // looked up is rounded to nearest. Stops that `store` holds are taken from there, and new ones are saved there.
  // Several ranks divide the stops among them. A rank that does not find the others' stops, because its store is its
  // own, makes them too. Runner, source and store must outlive the set.
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

// Returns ||W - Q||^2 / ||W||^2 for a weight Q and the original W.
double relative_error(const LinearWeight& w, const LinearWeight& original, ThreadPool& pool);
// Adds to every group its format in the source, at no cost, so that there is a plan for any target that the source
// itself meets. A group whose linears differ in format gets no such option.
void offer_source(const Checkpoint& source, const std::vector<LinearGroup>& groups, SensitivityTable& table);
// Returns the bytes of everything that no group holds: tensors that stay as the source has them, their shared
// codebooks, and the block that predicts a token more in its own format (quant/quantize_model.h).
int64_t fixed_bytes(const Checkpoint& source, const std::vector<LinearGroup>& groups);
// Returns the format that a plan gives to each linear.
std::map<LinearId, FormatSpec> formats_of(const SensitivityTable& table, const Plan& plan);

}  // namespace fidelio
