// This file chooses the draft that suits a model. Every kind of draft is made, measured on text that the model itself
// writes, and timed. The fastest is kept beside the model's weights, in its folder:
//
//   draft.json   what `--draft auto` is to use ("draft"), for which weights, and what every kind gives ("kinds")
//   draft/       the copy, where that is one (app/options/draft.h reads them)
//
// A kind is either the high bits of the model's codes ("4"), or a copy in a format of its own ("lut4g64"), or the block
// of the model that predicts a token more ("mtp"), as its file has it. A copy is quantised by GPTQ on text that the
// model writes and on calibration text, and is tuned towards the model if that is asked for. All are also tried with a
// draft vocabulary, a head of the most frequent tokens alone, where that saves something. Lookup costs nothing and is
// always allowed beside them.
//
// QSpec drafts with 4-bit activations over the same weights. That is no kind here, because such activations cost what
// 8-bit ones cost (step/reading.h); `--draft a4` of the verbs that generate has it for studies.
#pragma once
#include "app/drafts/draft_quality.h"
#include "app/drafts/draft_tuning.h"
#include "app/options/prompts.h"

namespace fidelio::app {

struct DraftChoiceOptions {
  // If empty, the kinds are 4, lut4g64 and lut3g64 (or int4g128z on a GPU that is timed), and mtp. A model without such
  // codes cannot have 4, and one without that block cannot have mtp.
  std::vector<std::string> kinds;
  PromptOptions prompts;  // Half of the answers are for calibration and half for measuring; every second one is greedy.
  double temperature = 0.7;
  std::vector<std::string> calibration;  // These are files.
  int64_t tokens = 16384;                // It counts tokens of calibration text beside the answers.
  int64_t most = 8;                      // It bounds the drafted tokens of a cycle.
  // Each kind is also tried with a draft vocabulary of this many tokens, the most frequent ones; it never guesses
  // others. 0 tries none, and a negative number means a quarter of the vocabulary.
  int64_t head_tokens = -1;
  int64_t bytes = 0;   // A copy may take this many bytes; 0 means any number.
  DraftTuning tuning;  // It is about copies.
  // If true, drafts cost the share of the model's bytes that they read, whatever time they take here.
  bool by_bytes = false;
  bool keep = true;  // If true, draft.json and draft/ are written; if false, drafts are only measured.
};
// Chooses a draft and returns the report. `note` is called with a line now and then. Throws Error naming a kind that
// the model cannot have.
nlohmann::json choose_draft(const RunOptions& run, const DraftChoiceOptions& options,
                            const std::function<void(const std::string&)>& note);
// Returns a table of what every kind gives.
std::string draft_table(const nlohmann::json& report);

}  // namespace fidelio::app
