// Which draft suits a model: every kind is made, measured on text the model itself writes and timed, and the fastest is
// kept beside the model's weights, in its folder:
//
//   draft.json   what `--draft auto` is to use ("draft"), for which weights, and what every kind gives ("kinds")
//   draft/       the copy, where that is one (app/options/draft.h reads them)
//
// A kind is a view of the codes ("4"), or a copy in a format of its own ("lut4g64"), quantised by GPTQ towards the model
// on what the model writes and on calibration text, and tuned towards it where that is asked for; and either with a head
// of its most frequent tokens alone, where that saves something. Lookup costs nothing and is always allowed beside.
#pragma once
#include "app/drafts/draft_quality.h"
#include "app/drafts/draft_tuning.h"
#include "app/options/prompts.h"

namespace fidelio::app {

struct DraftChoiceOptions {
  // None: 4, lut4g64 and lut3g64, or int4g128z on a GPU that is timed; a model without such codes cannot have 4.
  std::vector<std::string> kinds;
  PromptOptions prompts;  // half of the answers are for calibration, half for measuring; every second one is greedy
  double temperature = 0.7;
  std::vector<std::string> calibration;  // files
  int64_t tokens = 16384;                // of calibration text beside the answers
  int64_t most = 8;                      // drafts of a cycle
  // Each kind is also tried with a head of so many tokens, the most frequent ones: of all others it guesses none. 0: none
  // is; less: a quarter of the vocabulary.
  int64_t head_tokens = -1;
  int64_t bytes = 0;      // that a copy may take; 0: any
  DraftTuning tuning;     // of copies
  bool by_bytes = false;  // drafts cost what they read of the model's bytes, whatever they take here
  bool keep = true;       // write draft.json and draft/; false: only measure
};
// The report; `note` hears a line now and then. Throws Error naming a kind that the model cannot have.
nlohmann::json choose_draft(const RunOptions& run, const DraftChoiceOptions& options,
                            const std::function<void(const std::string&)>& note);
// A table of what every kind gives.
std::string draft_table(const nlohmann::json& report);

}  // namespace fidelio::app
