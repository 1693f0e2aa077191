// eval --draft: how well a draft guesses for a model.
#pragma once
#include <functional>

#include "app/options/draft.h"
#include "eval/studies/compare.h"

namespace fidelio::app {

struct EvalDraft {
  DraftOptions draft;
  double temperature = 1;
};

// What is found of a draft: {draft, bytes_share, ear, temperature, judged, accepted, acceptance, expected_acceptance}, as
// eval_draft prints it. `verb` names itself where the draft is refused.
nlohmann::json measure_draft(const std::string& verb, const RunOptions& run, const TextModel& model,
                             const std::vector<EvalText>& texts, const WindowOptions& windows,
                             const RunnerOptions& measuring, const EvalDraft& options);

// The expected acceptance rate of the draft against the model on the texts, and, while the model continues the texts'
// windows with rejection sampling, the acceptance beside the expected rate at the same places: those must agree.
// `measuring`: the runner's options for windows of texts.
void eval_draft(const RunOptions& run, const TextModel& model, const std::vector<EvalText>& texts,
                const WindowOptions& windows, const RunnerOptions& measuring, const EvalDraft& options,
                const std::string& json, const std::string& page);

}  // namespace fidelio::app
