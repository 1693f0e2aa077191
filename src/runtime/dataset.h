// Texts for calibration and measurement, as token sequences.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

struct Dataset {
  std::vector<std::vector<int32_t>> sequences;  // each at most `context` tokens
  int64_t tokens = 0;                           // of all sequences
  std::string sha256;                           // of the files' bytes, in the order given
};

struct DatasetOptions {
  int64_t context = 512;  // longest sequence
  int64_t max_tokens =
      0;  // 0 = all; else sequences spread evenly over every file until their tokens reach this, files sharing alike
};

// Files ending in .jsonl hold a conversation or text a line ({"text"}, {"messages": [...]}, which is read as a server reads
// it with the line's tools, or {"prompt","completion"}), cut at `context`; everything else is plain text, tokenised whole
// without special tokens and cut into windows of `context`.
Dataset read_dataset(const std::vector<std::string>& files, const Tokenizer& tokenizer, const ChatTemplate* chat,
                     const DatasetOptions& options);

// Every k-th sequence, so that the chosen ones are spread over all of them, until their tokens reach `tokens`; all of
// them if they have no more. Throws Error if not one of them is so short.
std::vector<std::vector<int32_t>> spread_evenly(std::span<const std::vector<int32_t>> sequences, int64_t tokens);

// Packs sequences into ragged batches of at most `rows` rows and `pages` cache pages; a sequence is never split over
// batches. Pages are numbered from 0 in every batch: calibration and measuring need no cache between batches.
struct PackedBatch {
  Batch batch;
  std::vector<int64_t> sequences;  // which sequence each of the batch's sequences is
};
std::vector<PackedBatch> pack_batches(const std::vector<std::vector<int32_t>>& sequences, int64_t rows, int64_t pages);

}  // namespace fidelio
