#include "engine/scheduler.h"

#include <algorithm>

#include "core/error.h"
#include "step/state.h"

namespace fidelio {

void Scheduler::remove(Sequence* sequence) {
  release_states(*sequence);
  pages_.release(sequence->number);
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
}

// Puts a sequence back into the queue. It is older than all that wait there, except those preempted before it.
void Scheduler::preempt(Sequence* sequence) {
  ++preemptions_;
  release_states(*sequence);
  pages_.release(sequence->number);
  sequence->fed = 0;
  sequence->decoding = false;
  std::erase(running_, sequence);
  const auto older = [](const Sequence* a, const Sequence* b) { return a->number < b->number; };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), sequence, older), sequence);
}

// Gets pages for this many tokens, and preempts the youngest sequences if necessary. Returns false if the sequence
// itself was the youngest and has been preempted.
bool Scheduler::make_room(const Sequence& sequence, int64_t tokens) {
  while (!pages_.grow(sequence.number, tokens)) {
    Sequence* youngest = running_.back();
    preempt(youngest);
    if (youngest == &sequence) return false;
  }
  return true;
}

int64_t Scheduler::prompt_end(const Sequence& s) const {
  if (s.request.prompt_logprobs) return 0;
  return keeps_states() ? s.output_begin / kStateChunk * kStateChunk : s.output_begin;
}

// Returns tokens as the page table knows them. If prompt rows and output rows leave different bits, the kind of the
// row is part of the key.
std::span<const int32_t> Scheduler::keys_of(const Sequence& s, int64_t count) {
  keys_.assign(s.history.begin(), s.history.begin() + count);
  if (!limits_.kinds_agree)
    for (int64_t i = prompt_end(s); i < count; ++i) keys_[static_cast<size_t>(i)] = ~keys_[static_cast<size_t>(i)];
  return keys_;
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.max_sequences) {
    Sequence& s = *waiting_.front();
    // At least one token is fed, because its logits are needed.
    if (limits_.reuse_prefixes && !s.scores_prompt()) {
      const PageTable::Reused found = pages_.reuse(s.number, keys_of(s, s.size() - 1), s.size() - 1);
      s.fed = found.tokens;
      s.kept.slot = found.state;
    }
    const auto spare = static_cast<int64_t>(running_.size());
    if (PageTable::pages_for(s.size()) - s.fed / kPageTokens + spare > pages_.free_pages()) {
      release_states(s);
      pages_.release(s.number);
      s.fed = 0;
      return;
    }
    reused_tokens_ += s.fed;
    if (s.result.ids.empty()) s.result.reused = s.fed;  // later its own rows may be found again, which do not count
    pages_.grow(s.number, s.size());
    running_.push_back(&s);
    waiting_.pop_front();
  }
}

std::span<Sequence* const> Scheduler::decoding() {
  decoding_.clear();
  for (const int32_t slot : retired_) states_.release(slot);
  retired_.clear();
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    s->decoding = s->decodes() && make_room(*s, s->size());
    if (s->decoding) decoding_.push_back(s);
  }
  admit();  // after the running sequences have the pages that they need
  return decoding_;
}

int64_t Scheduler::room_for(Sequence& s, int64_t rows) {
  while (rows > 1 && !pages_.grow(s.number, s.fed + rows)) --rows;
  if (!keeps_states()) return rows;
  // The state after the last row replaces that before the first, so each row but the last needs a slot. One is left for
  // every sequence that may need one of its own in this step.
  const int64_t left = std::ranges::count_if(running_, [&](const Sequence* other) { return needs_slot(*other); });
  for (int64_t free = free_states(); std::ssize(s.kept.spare) < rows - 1 && free > left; --free)
    s.kept.spare.push_back(take_slot());
  return std::min(rows, std::ssize(s.kept.spare) + 1);
}

void Scheduler::append_draft(Batch& batch, Sequence& s, int64_t drafts) {
  batch.append(std::span(s.history).last(1), s.size() - 1, pages_.pages(s.number), 1, RowKind::output);
  if (!keeps_states()) return;
  // The states of drafts are overwritten when they are verified, so all of them take turns in one slot.
  batch.begin_from(drafts == 0 ? s.kept.slot : s.kept.spare.front());
  batch.keep_state(0, s.kept.spare.front());
}

void Scheduler::append_output(Batch& batch, Sequence& s, int64_t rows) {
  batch.append(std::span(s.history).subspan(static_cast<size_t>(s.fed), static_cast<size_t>(rows)), s.fed,
               pages_.pages(s.number), rows, RowKind::output);
  if (!keeps_states()) return;
  s.kept.begin = s.fed;
  s.kept.after.assign(s.kept.spare.begin(), s.kept.spare.begin() + (rows - 1));
  s.kept.spare.erase(s.kept.spare.begin(), s.kept.spare.begin() + (rows - 1));
  batch.begin_from(s.kept.slot);
  s.kept.after.push_back(own_slot(s));
  // There are slots for all sequences that decode: drafts leave one to each that shares its own with another sequence.
  check(s.kept.after.back() >= 0, "{} sequences run with {} slots for their states", running(), states_.slots());
  for (int64_t row = 0; row < rows; ++row) batch.keep_state(row, s.kept.after[static_cast<size_t>(row)]);
}

std::span<const Scheduler::Chunk> Scheduler::append_chunks(Batch& batch) {
  chunks_.clear();
  for (Sequence* s : running_) {
    if (s->decoding) continue;
    const bool prompt = s->fed < prompt_end(*s);
    const bool scored = s->fed < s->output_begin && s->scores_prompt();
    const int64_t end = prompt ? prompt_end(*s) : scored ? s->output_begin : s->size();
    int64_t count = std::min(end - s->fed, limits_.max_rows - batch.rows());
    if (scored)  // every running sequence may need a row of logits of its own
      count = std::min(count, std::max<int64_t>(1, limits_.max_logit_rows - std::ssize(batch.logit_rows) - running()));
    if (prompt && keeps_states()) count = count / kStateChunk * kStateChunk;
    if (count <= 0) continue;
    const bool last = s->fed + count == s->size();
    const int64_t wanted = scored ? count : last ? 1 : 0;
    if (!append_chunk(batch, *s, count, wanted, prompt ? RowKind::prompt : RowKind::output)) continue;
    if (wanted > 0) chunks_.push_back({s, s->fed - wanted, wanted, last});
  }
  return chunks_;
}

bool Scheduler::append_chunk(Batch& batch, Sequence& s, int64_t rows, int64_t wanted, RowKind kind) {
  int32_t state = -1;
  if (keeps_states()) {
    if (s.fed > 0) publish(s, s.fed, s.kept.slot);  // earlier steps computed these rows
    state = own_slot(s);
    if (state < 0) return false;
  }
  batch.append(std::span(s.history).subspan(static_cast<size_t>(s.fed), static_cast<size_t>(rows)), s.fed,
               pages_.pages(s.number), wanted, kind);
  s.fed += rows;
  if (!keeps_states()) return true;
  batch.begin_from(s.kept.slot);
  batch.keep_state(rows - 1, state);
  if (state != s.kept.slot && s.kept.slot >= 0) retired_.push_back(s.kept.slot);
  s.kept.slot = state;
  return true;
}

void Scheduler::settle(Sequence& s) {
  pages_.shrink(s.number, s.size());
  Sequence::KeptStates& kept = s.kept;
  if (kept.after.empty()) return publish(s, s.fed, kept.slot);
  const auto slot_at = [&](int64_t end) { return kept.after[static_cast<size_t>(end - kept.begin - 1)]; };
  for (int64_t end = (kept.begin / kStateChunk + 1) * kStateChunk; end <= s.fed; end += kStateChunk)
    publish(s, end, slot_at(end));
  const int32_t now = slot_at(s.fed);
  states_.hold(now);
  release_states(s);
  kept.slot = now;
  publish(s, s.fed, now);
}

// --- states --------------------------------------------------------------------------------------------------------
// Publishes the pages of the first `count` positions of a sequence. If these end where a snapshot may be, `slot` is the
// state after them.
void Scheduler::publish(Sequence& s, int64_t count, int32_t slot) {
  if (!limits_.reuse_prefixes) return;
  if (pages_.published_tokens(s.number) + kPageTokens <= count) pages_.publish(s.number, keys_of(s, count), count);
  if (!keeps_states() || count % kStateChunk != 0 || pages_.published_tokens(s.number) != count) return;
  const int32_t page = pages_.keep_state(s.number, slot);
  if (page < 0 || count <= prompt_end(s)) return;
  // Only this sequence continues from its output, after a preemption, so the newest of these snapshots is enough.
  if (s.kept.page >= 0) pages_.drop_state(s.kept.page, s.kept.snapshot);
  s.kept.page = page, s.kept.snapshot = slot;
}

// Tells whether the state of a sequence must not be overwritten because others hold it, or because there is none.
bool Scheduler::needs_slot(const Sequence& s) const { return s.kept.slot < 0 || states_.holders(s.kept.slot) > 1; }

// Takes a slot, if necessary that of the snapshot that was used least recently. Returns -1 if sequences hold all of
// them.
int32_t Scheduler::take_slot() {
  const int32_t slot = states_.take();
  return slot < 0 && pages_.drop_oldest_state() ? states_.take() : slot;
}

// Returns a slot that a sequence alone will hold after the coming step: its own, or a new one. Returns -1 if there is
// none, because other sequences begin from its own in this step or hold all of them.
int32_t Scheduler::own_slot(Sequence& s) {
  if (!needs_slot(s)) return s.kept.slot;
  if (const int32_t slot = take_slot(); slot >= 0) return slot;
  if (s.kept.slot >= 0) pages_.drop_states(s.kept.slot);
  return needs_slot(s) ? -1 : s.kept.slot;
}

void Scheduler::release_states(Sequence& s) {
  // `after` holds the sequence's own slot as its last one if the last row overwrites it.
  if (s.kept.after.empty() || s.kept.after.back() != s.kept.slot) states_.release(s.kept.slot);
  for (const int32_t slot : s.kept.after) states_.release(slot);
  for (const int32_t slot : s.kept.spare) states_.release(slot);
  s.kept.after.clear(), s.kept.spare.clear();
  s.kept.slot = -1;
}

}  // namespace fidelio
