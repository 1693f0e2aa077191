#include "runtime/execution/batch_part.h"

namespace fidelio {

void check_batch(const Batch& batch, const ModelConfig& config, const RunnerOptions& options, int64_t cache_pages) {
  check(batch.rows() <= options.max_rows, "a batch of {} rows is larger than the runner's {}", batch.rows(),
        options.max_rows);
  for (int32_t id : batch.ids)
    check(id >= 0 && id < config.v, "token id {} is outside the vocabulary of {}", id, config.v);
  for (int32_t page : batch.pages)
    check(page >= 0 && page < cache_pages, "page {} is outside the cache of {} pages", page, cache_pages);
  for (const Segment& s : batch.segments) {
    check(s.position + s.rows <= s.pages * kPageTokens, "position {} of a sequence with {} pages of {}",
          s.position + s.rows - 1, s.pages, kPageTokens);
    check(s.position + s.rows <= options.context || config.rope.type != RopeType::longrope,
          "position {} of a model whose rotary frequencies were chosen for sequences of {} at most",
          s.position + s.rows - 1, options.context);
    check(s.position + s.rows <= config.max_positions || !has_dynamic_rope(config),
          "position {} of a model whose rotary frequencies hold for {} positions (\"dynamic\" rope)",
          s.position + s.rows - 1, config.max_positions);
  }
}

void check_states(const Batch& batch, const StateShape& shape, int64_t slots) {
  const auto in_range = [&](int32_t slot) {
    check(slot < slots, "slot {} for a state, of {} that the runner has", slot, slots);
  };
  for (const Segment& s : batch.segments) {
    in_range(s.state);
    check((s.state >= 0) == (shape.floats() > 0 && s.position > 0),
          "a segment at position {} begins from slot {}, and its model keeps {}", s.position, s.state,
          shape.floats() > 0 ? "states" : "no states");
  }
  for (const KeptState& kept : batch.kept) {
    check(kept.slot >= 0, "a state is to be kept in slot {}", kept.slot);
    in_range(kept.slot);
  }
}

bool has_both_kinds(const Batch& batch) {
  for (const Segment& s : batch.segments)
    if (s.kind != batch.segments[0].kind) return true;
  return false;
}

std::vector<ChoiceRule> BatchPart::rules(std::span<const ChoiceRule> of_whole) const {
  std::vector<ChoiceRule> own;
  for (size_t place : places) own.push_back(of_whole[place]);
  return own;
}

void BatchPart::put(std::span<const Choice> choices, std::span<Choice> of_whole) const {
  for (size_t i = 0; i < places.size(); ++i) of_whole[places[i]] = choices[i];
}

void take_kind(const Batch& whole, RowKind kind, BatchPart& part) {
  part.batch.clear();
  part.places.clear();
  for (const Segment& s : whole.segments) {
    if (s.kind != kind) continue;
    const auto first_row = static_cast<int32_t>(part.batch.ids.size());
    part.batch.append(std::span(whole.ids).subspan(static_cast<size_t>(s.first_row), static_cast<size_t>(s.rows)),
                      s.position, whole.pages_of(s), 0, kind);
    part.batch.begin_from(s.state);
    for (const KeptState& kept : whole.kept)
      if (kept.row >= s.first_row && kept.row < s.first_row + s.rows)
        part.batch.keep_state(kept.row - s.first_row, kept.slot);
    for (size_t i = 0; i < whole.logit_rows.size(); ++i) {
      const int32_t row = whole.logit_rows[i] - s.first_row;
      if (row < 0 || row >= s.rows) continue;
      part.batch.logit_rows.push_back(first_row + row);
      part.places.push_back(i);
    }
  }
}

void feed_known(const Batch& batch, std::span<const int32_t> from, std::span<const Choice> known, FedBatch& to) {
  to.batch = batch;
  to.from.assign(batch.ids.size(), -1);
  for (size_t i = 0; i < from.size(); ++i) {
    const auto place = static_cast<size_t>(from[i]);
    if (from[i] < 0) continue;
    if (place < known.size())
      to.batch.ids[i] = std::max(0, known[place].id);
    else
      to.from[i] = from[i];
  }
}

}  // namespace fidelio
