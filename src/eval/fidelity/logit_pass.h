// A logit pass computes the logits that score given sequences, from one or several models side by side. It holds only
// as many rows at a time as a runner does, so that neither a file nor a matrix of all logits is needed.
//
//   sequence   t0 t1 t2 t3 t4          first_scored = 2
//   rows fed   t0 t1 t2 t3             the last token is only a target
//   logits        r1 r2 r3             row r_i scores token t_(i+1)
//
// A sequence that fits into one batch (max_rows) is never cut. Short sequences share a batch, and a longer one is fed
// in chunks; its state, in a model that keeps one, lies in slot 0 between them. None of this changes a logit, because a
// row's result does not depend on the other rows (row invariance). The rows are `output` rows, so the measurement sees
// what decoding computes.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/page_table.h"
#include "runtime/runner.h"

namespace fidelio {

struct ScoredSequence {
  std::span<const int32_t> ids;  // at least two tokens
  int64_t first_scored = 1;      // the tokens from ids[first_scored] on are scored; at least 1
};

// A ScoredRow describes one row of logits, which predicts sequences[sequence].ids[position]; `token` is that id.
struct ScoredRow {
  int64_t sequence, position;
  int32_t token;
};

// PassLimits says what the batches must fit into. With several runners it holds the smallest limit of each kind.
struct PassLimits {
  int64_t max_rows = 0, max_logit_rows = 0, cache_pages = 0, max_positions = 0;
  StateShape state = {};
};
PassLimits limits_of(const Runner& runner);

// A PassPlan lays out the batches of a pass, one after the other. It is pure bookkeeping.
class PassPlan {
 public:
  // Throws Error, naming the sequence, if one is too short, scores nothing, or does not fit the context or the cache.
  PassPlan(std::span<const ScoredSequence> sequences, const PassLimits& limits);
  // Makes the next batch and says what each of its logit rows scores. Returns false when everything is done. A batch
  // may have no logit rows.
  bool next(Batch& batch, std::vector<ScoredRow>& rows);
  int64_t finished() const { return static_cast<int64_t>(sequence_); }  // number of sequences fed to their end

 private:
  std::span<const ScoredSequence> sequences_;
  PassLimits limits_;
  PageTable pages_;
  size_t sequence_ = 0;        // the next sequence to be fed
  int64_t fed_ = 0;            // rows of that sequence already fed
  std::vector<int64_t> done_;  // sequences whose pages the next call frees
};

// KeptStreams holds the last residual streams of a model's pass, batch by batch. The first pass fills it. Later
// passes of the same runner, with the same weights and sequences, then compute the same logits, bit for bit, without
// running the layers. This lets a search that measures plan after plan against one source run the source only once.
class KeptStreams {
 public:
  // Nothing is kept if it would take more than `most_bytes`. The default holds a certificate's 104,960 tokens of
  // 2,048 values each, which suits a model of about a billion parameters.
  explicit KeptStreams(int64_t most_bytes = int64_t{1} << 30) : most_bytes_(most_bytes) {}
  void begin(std::span<const ScoredSequence> sequences, int64_t d);
  bool keeps() const { return keeps_; }
  bool complete() const { return complete_; }
  void end() { complete_ = keeps_; }
  std::vector<float>& batch(size_t i);  // the stream of a batch, (n, d)

 private:
  int64_t most_bytes_, rows_ = 0;
  bool keeps_ = false, complete_ = false;
  std::vector<std::vector<float>> batches_;
};

// A PassModel is a model to run, the precision of its step, optionally its kept streams, and optionally memory that
// the runner allocated, with room for the pass's largest number of logit rows. Logits then go there, and a GPU's need
// not leave it.
struct PassModel {
  Runner* runner;
  Reading reading;
  KeptStreams* kept = nullptr;
  float* place = nullptr;
};
// The callback gets `rows` (m) and, for each model, its logits (m, v), which are valid only during the call.
using RowsCallback =
    std::function<void(std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits)>;
// This is called with the number of sequences done and the number of all sequences.
using ProgressCallback = std::function<void(int64_t done, int64_t total)>;

// Runs every sequence through every model. The models must be different Runners with the same vocabulary size.
void run_pass(std::span<const PassModel> models, std::span<const ScoredSequence> sequences,
              const RowsCallback& callback, const ProgressCallback& progress = {});

}  // namespace fidelio
