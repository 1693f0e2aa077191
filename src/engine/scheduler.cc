#include "engine/scheduler.h"

#include <algorithm>

namespace fidelio {

void Scheduler::remove(Sequence* sequence) {
  pages_.release(sequence->number);
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
}

// Puts a sequence back into the queue. It is older than all that wait there, except those preempted before it.
void Scheduler::preempt(Sequence* sequence) {
  ++preemptions_;
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

// Returns tokens as the page table knows them. If prompt rows and output rows leave different bits, the kind of the
// row is part of the key.
std::span<const int32_t> Scheduler::keys_of(const Sequence& s, int64_t count) {
  keys_.assign(s.history.begin(), s.history.begin() + count);
  if (!limits_.kinds_agree)
    for (int64_t i = s.request.prompt_logprobs ? 0 : s.output_begin; i < count; ++i)
      keys_[static_cast<size_t>(i)] = ~keys_[static_cast<size_t>(i)];
  return keys_;
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.max_sequences) {
    Sequence& s = *waiting_.front();
    // At least one token is fed, because its logits are needed.
    if (limits_.reuse_prefixes && !s.scores_prompt())
      s.fed = pages_.reuse(s.number, keys_of(s, s.size() - 1), s.size() - 1);
    const auto spare = static_cast<int64_t>(running_.size());
    if (PageTable::pages_for(s.size()) - s.fed / kPageTokens + spare > pages_.free_pages()) {
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
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    s->decoding = s->decodes() && make_room(*s, s->size());
    if (s->decoding) decoding_.push_back(s);
  }
  admit();  // after the running sequences have the pages that they need
  return decoding_;
}

int64_t Scheduler::room_for(const Sequence& s, int64_t rows) {
  while (rows > 1 && !pages_.grow(s.number, s.fed + rows)) --rows;
  return rows;
}

std::span<const Scheduler::Chunk> Scheduler::append_chunks(Batch& batch) {
  chunks_.clear();
  for (Sequence* s : running_) {
    if (s->decoding) continue;
    const bool prompt = s->fed < s->output_begin;
    const bool scored = prompt && s->scores_prompt();
    const int64_t end = prompt ? s->output_begin : s->size();
    int64_t count = std::min(end - s->fed, limits_.max_rows - batch.rows());
    if (scored)  // every running sequence may need a row of logits of its own
      count = std::min(count, std::max<int64_t>(1, limits_.max_logit_rows - std::ssize(batch.logit_rows) - running()));
    if (count <= 0) continue;
    const bool last = s->fed + count == s->size();
    const int64_t wanted = scored ? count : last ? 1 : 0;
    batch.append(std::span(s->history).subspan(static_cast<size_t>(s->fed), static_cast<size_t>(count)), s->fed,
                 pages_.pages(s->number), wanted,
                 prompt && !s->request.prompt_logprobs ? RowKind::prompt : RowKind::output);
    s->fed += count;
    if (wanted > 0) chunks_.push_back({s, s->fed - wanted, wanted, last});
  }
  return chunks_;
}

void Scheduler::settle(const Sequence& s) {
  pages_.shrink(s.number, s.size());
  if (limits_.reuse_prefixes && pages_.published_tokens(s.number) + kPageTokens <= s.fed)
    pages_.publish(s.number, keys_of(s, s.fed), s.fed);
}

}  // namespace fidelio
