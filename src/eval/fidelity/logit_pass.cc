#include "eval/fidelity/logit_pass.h"

#include <algorithm>

#include "core/error.h"
#include "step/own_slot.h"

namespace fidelio {

PassLimits limits_of(const Runner& runner) {
  return {runner.options().max_rows, runner.options().max_logit_rows, runner.cache_pages(),
          runner.config().max_positions, runner.program().state};
}

PassPlan::PassPlan(std::span<const ScoredSequence> sequences, const PassLimits& limits)
    : sequences_(sequences), limits_(limits), pages_(limits.cache_pages) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto size = static_cast<int64_t>(sequences[i].ids.size());
    check(sequences[i].first_scored >= 1 && sequences[i].first_scored < size,
          "sequence {} of {} tokens scores from token {}: it needs at least one token before the first scored one and "
          "one to score",
          i, size, sequences[i].first_scored);
    check(size <= limits.max_positions, "sequence {} has {} tokens, the model's context is {}: use a shorter context",
          i, size, limits.max_positions);
    check(PageTable::pages_for(size) <= limits.cache_pages,
          "sequence {} has {} tokens, the cache holds {}: make it larger", i, size, limits.cache_pages * kPageTokens);
  }
}

bool PassPlan::next(Batch& batch, std::vector<ScoredRow>& rows) {
  batch.clear();
  rows.clear();
  for (int64_t id : done_) pages_.release(id);
  done_.clear();
  while (sequence_ < sequences_.size()) {
    const ScoredSequence& s = sequences_[sequence_];
    const auto id = static_cast<int64_t>(sequence_), total = static_cast<int64_t>(s.ids.size()) - 1;
    const int64_t room = limits_.max_rows - batch.rows(), count = std::min(total - fed_, limits_.max_rows);
    if (count > room || !pages_.grow(id, total)) break;
    for (int64_t i = fed_; i < fed_ + count; ++i)
      if (i + 1 >= s.first_scored) rows.push_back({id, i + 1, s.ids[static_cast<size_t>(i + 1)]});
    const int64_t wanted = std::min(count, std::max<int64_t>(0, fed_ + count + 1 - s.first_scored));
    batch.append(s.ids.subspan(static_cast<size_t>(fed_), static_cast<size_t>(count)), fed_, pages_.pages(id), wanted,
                 RowKind::output);
    if (count < total) continue_in_slot(limits_.state, batch, 0);
    fed_ += count;
    if (fed_ < total) break;  // the batch is full
    done_.push_back(id);
    ++sequence_;
    fed_ = 0;
  }
  return batch.rows() > 0;
}

void KeptStreams::begin(std::span<const ScoredSequence> sequences, int64_t d) {
  int64_t rows = 0;
  for (const ScoredSequence& s : sequences) rows += static_cast<int64_t>(s.ids.size()) - 1;
  check(!complete_ || rows == rows_, "streams of {} rows were kept, the pass has {}: it is over other sequences", rows_,
        rows);
  if (complete_) return;
  rows_ = rows;
  keeps_ = rows * d * static_cast<int64_t>(sizeof(float)) <= most_bytes_;
  batches_.clear();
}

std::vector<float>& KeptStreams::batch(size_t i) {
  if (i >= batches_.size()) batches_.resize(i + 1);
  return batches_[i];
}

namespace {

// Provides the batch's residual stream after the last layer: it is computed, or taken from what an earlier pass kept.
void run_layers(const PassModel& m, const Batch& batch, size_t number) {
  m.runner->begin(batch, m.reading);
  const auto values = static_cast<size_t>(batch.rows() * m.runner->config().d);
  if (m.kept && m.kept->complete()) {
    const std::vector<float>& stream = m.kept->batch(number);
    check(stream.size() == values, "a kept stream of {} values, the batch has {}: it was batched otherwise",
          stream.size(), values);
    return m.runner->write_stream(stream);
  }
  m.runner->embed();
  m.runner->layers(0, m.runner->config().L);
  if (!m.kept || !m.kept->keeps()) return;
  std::vector<float>& stream = m.kept->batch(number);
  stream.resize(values);
  m.runner->read_stream(stream);
}

std::span<const float> logits_of(const PassModel& m, int64_t first, int64_t count) {
  if (m.place == nullptr) return m.runner->logits(first, count);
  const std::span to(m.place, static_cast<size_t>(count * m.runner->config().v));
  m.runner->read_logits(first, count, to);
  return to;
}

}  // namespace

void run_pass(std::span<const PassModel> models, std::span<const ScoredSequence> sequences,
              const RowsCallback& callback, const ProgressCallback& progress) {
  check(!models.empty(), "a pass needs a model");
  PassLimits limits = limits_of(*models[0].runner);
  for (size_t i = 1; i < models.size(); ++i) {
    const PassLimits other = limits_of(*models[i].runner);
    check(models[i].runner->config().v == models[0].runner->config().v,
          "models with different vocabularies cannot be compared: {} and {} tokens", models[0].runner->config().v,
          models[i].runner->config().v);
    for (size_t j = 0; j < i; ++j)
      check(models[i].runner != models[j].runner,
            "models run side by side need a runner each: one holds a single cache");
    check(other.state == limits.state, "models that keep different states for a sequence cannot be compared");
    limits = {std::min(limits.max_rows, other.max_rows), std::min(limits.max_logit_rows, other.max_logit_rows),
              std::min(limits.cache_pages, other.cache_pages), std::min(limits.max_positions, other.max_positions),
              limits.state};
  }
  PassPlan plan(sequences, limits);
  Batch batch;
  std::vector<ScoredRow> rows;
  std::vector<std::span<const float>> logits(models.size());
  for (const PassModel& m : models) {
    m.runner->reserve_states(1);
    if (m.kept) m.kept->begin(sequences, m.runner->config().d);
  }
  for (size_t number = 0; plan.next(batch, rows); ++number) {
    for (const PassModel& m : models) run_layers(m, batch, number);
    const auto total = static_cast<int64_t>(rows.size());
    for (int64_t first = 0; first < total; first += limits.max_logit_rows) {
      const int64_t count = std::min(limits.max_logit_rows, total - first);
      for (size_t i = 0; i < models.size(); ++i) logits[i] = logits_of(models[i], first, count);
      callback(std::span(rows).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), logits);
    }
    if (progress) progress(plan.finished(), static_cast<int64_t>(sequences.size()));
  }
  for (const PassModel& m : models)
    if (m.kept) m.kept->end();
}

}  // namespace fidelio
