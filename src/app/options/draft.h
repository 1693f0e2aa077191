// This file opens the draft that the command line asks for.
#pragma once
#include "app/options/common.h"
#include "engine/speculation.h"

namespace fidelio::app {

struct DraftOptions {
  std::string draft = "off";
  int64_t most = 8;
  bool fixed = false;
};
void add_draft(CLI::App& verb, DraftOptions& options);  // It adds --draft --drafts --fixed-drafts.

// Sets the options with which a model of v tokens must be opened for these drafts, given as for --draft: the one number
// of high bits that their parts read, and whether one of them is the predictor. Throws Error where there are two
// numbers.
void prepare_for_drafts(RunnerOptions& options, std::span<const std::string> drafts, const RunOptions& run, int64_t v);
bool is_high_bits(const std::string& draft);
bool is_predictor(const std::string& draft);

// This is an opened draft; a copy lives as long as this object.
struct Draft {
  std::string name;              // It is the name as asked for.
  std::string folder;            // It is the folder of the copy, if it is one.
  std::unique_ptr<Runner> copy;  // It runs the copy, or the model's predictor.
  SpeculationOptions how;
};
// Opens a draft. Its name is off, auto, or parts joined by +, of which at most one is not lookup:
//   lookup       what followed the same tokens earlier in prompt and answer
//   mtp, mtp:a8  the block of the model that predicts a token more
//   4, 4:a8, a8  the model's own weights read as their 4 high bits, with activations of their own
//   FOLDER       the same model in another format; FOLDER:a8
// auto is what `fidelio draft` has chosen for the model. Without such a choice it is lookup together with the high bits
// of the codes, where these can be cut to 4 bits or fewer. Throws Error naming what the model lacks.
Draft open_draft(const DraftOptions& options, Runner& model, const RunOptions& run);

// `fidelio draft` keeps its choice for the model in a folder here.
// It holds "draft" in the form of --draft, where "copy" stands for draft_folder().
std::string draft_choice_file(const std::string& model);
std::string draft_folder(const std::string& model);  // It holds the copy.
struct ChosenDraft {
  std::string draft;  // It is that "draft".
  // This is the draft vocabulary that its reading uses; if empty, the whole head is used.
  std::vector<int32_t> head_tokens;
};
// Returns the choice for a model of v tokens, or nothing where none was made. Throws Error where it was made for other
// weights.
std::optional<ChosenDraft> chosen_draft(const std::string& folder, int64_t v);

}  // namespace fidelio::app
