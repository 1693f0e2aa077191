// RandomBatches deals the tokens of a few random sequences out to steps: prompts in chunks, then outputs of one row or,
// as in verification, of several, of which some are taken back.
#pragma once
#include "runtime/execution/random_model_fixture.h"

namespace fidelio {

class RandomBatches {
 public:
  // `one_kind`: the rows of a step are all of prompts or all of output. `has_states`: sequences keep states besides
  // pages.
  RandomBatches(Draw& draw, int vocabulary, bool is_long, bool one_kind, bool has_states)
      : draw_(draw),
        vocabulary_(vocabulary),
        one_kind_(one_kind),
        has_states_(has_states),
        sequences_(is_long ? 1 : draw.between(1, 4)) {
    for (Sequence& s : sequences_) {
      s.prompt = is_long           ? draw_.between(520, 560)
                 : draw_.one_in(4) ? draw_.between(30, has_states ? 140 : 70)
                                   : draw_.between(1, 12);
      s.end = s.prompt + draw_.between(1, 5);
      rows_ += s.end;
      pages_ += s.end / kPageTokens + 1;
    }
    if (has_states) free_slots_ = draw_.shuffled(slots());
    std::vector<int32_t> free = draw_.shuffled(pages_);
    for (Sequence& s : sequences_)
      for (int position = 0; position < s.end; position += kPageTokens) s.pages.push_back(free.back()), free.pop_back();
  }
  int64_t rows() const { return rows_; }  // of all steps together
  int64_t pages() const { return pages_; }
  // A sequence has the slot of its state, and in a step as many as it keeps states.
  int64_t slots() const { return has_states_ ? std::ssize(sequences_) * (1 + kMostKept) : 0; }

  // Fills the batch of the next step. Returns false once all tokens have passed.
  bool next(Batch& batch) {
    batch.clear();
    free_slots_.insert(free_slots_.end(), given_back_.begin(), given_back_.end());
    given_back_.clear();
    std::vector<Sequence*> left;
    for (Sequence& s : sequences_)
      if (s.next < s.end) left.push_back(&s);
    if (left.empty()) return false;
    Sequence& first = *left[static_cast<size_t>(draw_.between(0, static_cast<int>(left.size()) - 1))];
    append(first, batch);
    const RowKind kind = batch.segments[0].kind;
    for (Sequence* s : left)
      if (s != &first && (!one_kind_ || s->kind() == kind) && !draw_.one_in(3)) append(*s, batch);
    return true;
  }

 private:
  struct Sequence {
    int prompt = 0, end = 0, next = 0;
    std::vector<int32_t> pages;
    int32_t state = -1;
    RowKind kind() const { return next < prompt ? RowKind::prompt : RowKind::output; }
  };
  void append(Sequence& s, Batch& batch) {
    const bool is_prompt = s.kind() == RowKind::prompt;
    const int left = is_prompt ? s.prompt - s.next : std::min(3, s.end - s.next);
    const int count = draw_.one_in(3) ? left : draw_.between(1, left);
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(draw_.between(0, vocabulary_ - 1));
    const int wanted = is_prompt ? draw_.between(0, std::min(count, 3)) : count;
    batch.append(tokens, s.next, s.pages, wanted, s.kind());
    s.next += has_states_ ? keep_states(s, batch, count, is_prompt) : count;
  }

  // Keeps the state after each row of output, and after the last row of a prompt and perhaps one before it. The slot
  // that the sequence begins from may be written too. Returns how many rows stay: some rows of output are taken back.
  int keep_states(Sequence& s, Batch& batch, int count, bool is_prompt) {
    batch.begin_from(s.state);
    const int stay = is_prompt ? count : draw_.between(1, count);
    std::vector<int> rows;
    if (is_prompt && count > 1 && draw_.one_in(3)) rows.push_back(draw_.between(0, count - 2));
    for (int row = is_prompt ? count - 1 : 0; row < count; ++row) rows.push_back(row);
    const int32_t before = s.state;
    bool is_free = before >= 0;  // nothing is kept yet where the sequence began
    for (const int row : rows) {
      const bool in_place = is_free && draw_.one_in(2);
      const int32_t slot = in_place ? before : free_slots_.back();
      in_place ? void(is_free = false) : free_slots_.pop_back();
      batch.keep_state(row, slot);
      if (row == stay - 1)
        s.state = slot;
      else
        given_back_.push_back(slot);
    }
    if (is_free) given_back_.push_back(before);
    return stay;
  }

  static constexpr int kMostKept = 3;  // the most states that a sequence keeps in a step

  Draw& draw_;
  int vocabulary_;
  bool one_kind_, has_states_;
  std::vector<Sequence> sequences_;
  int64_t rows_ = 0, pages_ = 0;
  std::vector<int32_t> free_slots_, given_back_;  // those of the second list are free once the step is done
};

}  // namespace fidelio
