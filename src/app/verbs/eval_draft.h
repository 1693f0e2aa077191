// This file measures how well a draft guesses for a model (eval --draft).
#pragma once
#include <functional>

#include "app/options/draft.h"
#include "eval/studies/compare.h"

namespace fidelio::app {

struct EvalDraft {
  DraftOptions draft;
  double temperature = 1;
};

// Returns the measurements of a draft: {draft, bytes_share, ear, temperature, judged, accepted, acceptance,
// expected_acceptance}, as eval_draft prints them. `verb` is named where the draft is refused.
nlohmann::json measure_draft(const std::string& verb, const RunOptions& run, const TextModel& model,
                             const std::vector<EvalText>& texts, const WindowOptions& windows,
                             const RunnerOptions& measuring, const EvalDraft& options);

// Measures the expected acceptance rate of the draft on the texts. While the model continues the texts' windows with
// rejection sampling, it also counts the acceptance beside the expected rate at the same places, which must agree.
// `measuring` are the runner's options for windows of texts.
void eval_draft(const RunOptions& run, const TextModel& model, const std::vector<EvalText>& texts,
                const WindowOptions& windows, const RunnerOptions& measuring, const EvalDraft& options,
                const std::string& json, const std::string& page);

}  // namespace fidelio::app
