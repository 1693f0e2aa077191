#include "compress/desk/runners.h"

#include "core/error.h"
#include "quant/vectors/shared_codebooks.h"

namespace fidelio {

Runners::Runners(const Checkpoint& source, const MakeRunner& make_runner, const RunnerOptions& measuring,
                 const RunnerOptions& serving, const std::vector<FormatSpec>& formats, ThreadPool& pool)
    : source_(source),
      serving_(serving),
      reference_(make_runner(measuring)),
      codebooks_(shared_codebooks(source, formats, pool)) {
  for (LinearId id : linears_of(source.config())) own_[id] = reference_->linear(id);
}

Runner& Runners::served() {
  check(served_ != nullptr, "the served runner is not there: a Runners::Serving must be alive while it is used");
  return *served_;
}

Runners::Serving::Serving(Runners& runners) : runners_(runners) {
  check(runners.reference_is_own() && !runners.served_,
        "a served runner is made once, of the reference with its own weights: end what is in force first");
  runners.served_ = runners.reference_->make_sibling(runners.source_, runners.serving_);
}

Runners::InForce::InForce(Runners& runners, Which which)
    : runners_(runners), which_(which), runner_(which == Which::served ? runners.served() : runners.reference()) {
  if (which_ == Which::reference) ++runners_.lent_;
}

Runners::InForce::~InForce() {
  for (const auto& [id, weight] : runners_.own_) runner_.set_linear(id, weight);
  if (which_ == Which::reference) --runners_.lent_;
}

}  // namespace fidelio
