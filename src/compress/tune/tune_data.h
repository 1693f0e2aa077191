// What tuning reads: text, and text that the source writes itself.
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
  int64_t tokens = 524288, samples = -1, held = 8192;  // samples: train::default_samples
  std::string samples_file;                            // "": they are not kept
  // Given where the file's name is ours: one that holds something else is then said so, and written anew.
  std::function<void(const std::string&)> about_damaged{};
};

// Who writes the samples, and how text becomes its tokens.
struct TuneSource {
  const Checkpoint& source;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;
  std::function<std::unique_ptr<Runner>(const RunnerOptions&)> make_runner;
};

// Windows of `context` of these documents and of samples that begin as they do, to tune on, and those held out to stop
// by: every k-th of text and samples alike. Samples that the file holds already are read, if they are of the same model,
// text and seed. Several ranks deal out the samples, and the first keeps them.
train::TuneData tune_data_of(const std::vector<Document>& documents, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks = Ranks());
// The same of sequences that are windows already; `text.tokens` is not looked at.
train::TuneData tune_data_of(const Dataset& read, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks = Ranks());

}  // namespace fidelio
