// This file makes the data that tuning reads: text, and text that the source writes itself.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ranks/ranks.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"
#include "runtime/texts/corpus.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "train/tune/tuner.h"

namespace fidelio {

struct TuneText {
  int64_t tokens = 524288, samples = -1, held = 8192;  // -1 samples: train::default_samples
  std::string samples_file;                            // "" if they are not kept
  // If the name of the file is fidelio's own, this is told about a file that holds something else, which is then
  // written anew. Without it such a file is an Error.
  std::function<void(const std::string&)> about_damaged{};
};

// A TuneSource is the model that writes the samples, with the means to make text of its tokens.
struct TuneSource {
  const Checkpoint& source;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;
  std::function<std::unique_ptr<Runner>(const RunnerOptions&)> make_runner;
};

// Returns windows of `context` tokens of these documents, and of samples that begin as they do. Every k-th window of
// text and samples alike is held out, to decide when tuning stops. Samples that the file already holds are read, if
// they are of the same model, text and seed. Several ranks share the sampling, and the first one writes the file.
train::TuneData tune_data_of(const std::vector<Document>& documents, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks = Ranks());
// Does the same for sequences that are windows already. `text.tokens` is ignored.
train::TuneData tune_data_of(const Dataset& read, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks = Ranks());

}  // namespace fidelio
