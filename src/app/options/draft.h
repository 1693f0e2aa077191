// app: what drafts for a model, from the command line.
#pragma once
#include "app/options/common.h"
#include "engine/speculation.h"

namespace fidelio::app {

struct DraftOptions {
  std::string draft = "off";
  int64_t most = 8;
  bool fixed = false;
};
void add_draft(CLI::App& verb, DraftOptions& options);  // --draft --drafts --fixed-drafts

// What a model of v tokens is to be opened with (RunnerOptions::high_bits) for these drafts, as --draft takes them: the one
// number of high bits that parts of them read, or 0. Throws Error where there are two.
int high_bits_of(std::span<const std::string> drafts, const RunOptions& run, int64_t v);
bool is_high_bits(const std::string& draft);

// An opened draft: a copy lives as long as this does.
struct Draft {
  std::string name;    // as asked for
  std::string folder;  // of the copy, if it is one
  std::unique_ptr<Runner> copy;
  SpeculationOptions how;
};
// off, auto, or parts joined by +, one of them at most a reading or a folder:
//   lookup       what followed the same tokens earlier in prompt and answer
//   4, 4:a8, a8  the model's own weights read as their 4 high bits, with activations of their own
//   FOLDER       the same model in another format; FOLDER:a8
// auto is what `fidelio draft` has chosen for the model; where it has not, lookup and, where codes can be cut to 4 bits
// or fewer, their view. Throws Error naming what the model lacks.
Draft open_draft(const DraftOptions& options, Runner& model, const RunOptions& run);

// Where `fidelio draft` keeps what it has chosen for the model in a folder:
std::string draft_choice_file(const std::string& model);  // "draft", as --draft takes it, with "copy" for
std::string draft_folder(const std::string& model);       // a copy in this folder
struct ChosenDraft {
  std::string draft;                 // that "draft"
  std::vector<int32_t> head_tokens;  // its reading has a short head of these; none: the whole one
};
// For a model of v tokens; none where nothing was chosen. Throws Error where it was chosen for other weights.
std::optional<ChosenDraft> chosen_draft(const std::string& folder, int64_t v);

}  // namespace fidelio::app
