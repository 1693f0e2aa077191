// LogitPass: the logits that score given sequences, from one or several models side by side, as few at a time as a
// runner holds: no file of logits, no matrix of them.
//
//   sequence   t0 t1 t2 t3 t4          first_scored = 2
//   rows fed   t0 t1 t2 t3             the last token is only a target
//   logits        r1 r2 r3             row r_i scores token t_(i+1)
//
// A sequence that fits into one batch (max_rows) is never cut; short ones share batches; a longer one is fed in chunks.
// By row invariance none of this changes a logit. Rows are `output` rows: what is measured is what decoding computes.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/page_table.h"
#include "runtime/runner.h"

namespace fidelio {

struct ScoredSequence {
  std::span<const int32_t> ids;  // at least 2
  int64_t first_scored = 1;      // tokens ids[first_scored..] are scored; >= 1
};

// One row of logits: it predicts sequences[sequence].ids[position], which is `token`.
struct ScoredRow {
  int64_t sequence, position;
  int32_t token;
};

// What the batches must fit into: the smallest of the runners' limits.
struct PassLimits {
  int64_t max_rows = 0, max_logit_rows = 0, cache_pages = 0, max_positions = 0;
};
PassLimits limits_of(const Runner& runner);

// The batches of a pass, one after the other. Pure bookkeeping.
class PassPlan {
 public:
  // Throws Error naming a sequence that is too short, scores nothing, or does not fit the context or the cache.
  PassPlan(std::span<const ScoredSequence> sequences, const PassLimits& limits);
  // The next batch and what each of its logit rows scores; false when all is done. A batch may have no logit rows.
  bool next(Batch& batch, std::vector<ScoredRow>& rows);
  int64_t finished() const { return static_cast<int64_t>(sequence_); }  // sequences fed to their end

 private:
  std::span<const ScoredSequence> sequences_;
  PassLimits limits_;
  PageTable pages_;
  size_t sequence_ = 0;        // the next to be fed
  int64_t fed_ = 0;            // rows of it already fed
  std::vector<int64_t> done_;  // sequences whose pages the next call gives back
};

// The last residual streams of a model's pass, batch after batch: the first pass fills it, and later passes of the same
// runner with the same weights over the same sequences compute logits from it, without the layers, to the same bits.
// A search that measures plan after plan against one source runs the source once.
class KeptStreams {
 public:
  // Keeps nothing where that would take more bytes. The default holds a certificate's 104,960 tokens at 2,048 values
  // each, which is a model of about a billion parameters.
  explicit KeptStreams(int64_t most_bytes = int64_t{1} << 30) : most_bytes_(most_bytes) {}
  void begin(std::span<const ScoredSequence> sequences, int64_t d);
  bool keeps() const { return keeps_; }
  bool complete() const { return complete_; }
  void end() { complete_ = keeps_; }
  std::vector<float>& batch(size_t i);  // (n, d)

 private:
  int64_t most_bytes_, rows_ = 0;
  bool keeps_ = false, complete_ = false;
  std::vector<std::vector<float>> batches_;
};

struct PassModel {
  Runner* runner;
  Reading reading;
  KeptStreams* kept = nullptr;
};
// rows (m) and, for each model, logits (m, v), valid during the call.
using RowsCallback =
    std::function<void(std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits)>;
// Called with the number of sequences done and the number in all.
using ProgressCallback = std::function<void(int64_t done, int64_t total)>;

// Runs every sequence through every model. The models must be different Runners of one vocabulary size.
void run_pass(std::span<const PassModel> models, std::span<const ScoredSequence> sequences,
              const RowsCallback& callback, const ProgressCallback& progress = {});

}  // namespace fidelio
