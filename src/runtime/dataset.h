// This file reads texts for calibration and measurement, as sequences of tokens.
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
  int64_t tokens = 0;                           // the tokens of all sequences
  std::string sha256;                           // the hash of the files' bytes, in the order given
};

struct DatasetOptions {
  int64_t context = 512;  // the length of the longest sequence
  // If this is not 0, sequences spread evenly over every file are used until their tokens reach this number, of which
  // each file has the same share. With 0 all sequences are used.
  int64_t max_tokens = 0;
};

// Reads files. One that ends in .jsonl holds a conversation or text on each line, which is cut at `context` tokens:
// {"text"}, {"messages": [...]}, which is read as a server reads it with the line's tools, or {"prompt",
// "completion"}. Any other file is plain text. It is tokenised whole without special tokens and cut into windows of
// `context` tokens. Throws Error naming the file (and line) that holds no text or is malformed.
Dataset read_dataset(const std::vector<std::string>& files, const Tokenizer& tokenizer, const ChatTemplate* chat,
                     const DatasetOptions& options);

// Returns every k-th sequence until their tokens reach `tokens`, so that the chosen ones are spread over all. Returns
// all sequences if they have no more tokens than that. Throws Error if even the shortest is longer than `tokens`.
std::vector<std::vector<int32_t>> spread_evenly(std::span<const std::vector<int32_t>> sequences, int64_t tokens);

// Packs sequences into ragged batches of at most `rows` rows and `pages` cache pages. A sequence is never split over
// batches. Pages are numbered from 0 in every batch, because calibration and measuring need no cache between batches.
struct PackedBatch {
  Batch batch;
  std::vector<int64_t> sequences;  // the index of each of the batch's sequences
};
std::vector<PackedBatch> pack_batches(const std::vector<std::vector<int32_t>>& sequences, int64_t rows, int64_t pages);

}  // namespace fidelio
