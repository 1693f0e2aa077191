// RandomBatches deals the tokens of a few random sequences out to steps: prompts in chunks, then outputs of one row or,
// as in verification, of several.
#pragma once
#include "runtime/execution/random_model_fixture.h"

namespace fidelio {

class RandomBatches {
 public:
  // `one_kind`: the rows of a step are all of prompts or all of output.
  RandomBatches(Draw& draw, int vocabulary, bool is_long, bool one_kind)
      : draw_(draw), vocabulary_(vocabulary), one_kind_(one_kind), sequences_(is_long ? 1 : draw.between(1, 4)) {
    for (Sequence& s : sequences_) {
      s.prompt = is_long ? draw_.between(520, 560) : draw_.one_in(4) ? draw_.between(30, 70) : draw_.between(1, 12);
      s.end = s.prompt + draw_.between(1, 5);
      rows_ += s.end;
      pages_ += s.end / kPageTokens + 1;
    }
    std::vector<int32_t> free = draw_.shuffled(pages_);
    for (Sequence& s : sequences_)
      for (int position = 0; position < s.end; position += kPageTokens) s.pages.push_back(free.back()), free.pop_back();
  }
  int64_t rows() const { return rows_; }  // of all steps together
  int64_t pages() const { return pages_; }

  // Fills the batch of the next step. Returns false once all tokens have passed.
  bool next(Batch& batch) {
    batch.clear();
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
    s.next += count;
  }

  Draw& draw_;
  int vocabulary_;
  bool one_kind_;
  std::vector<Sequence> sequences_;
  int64_t rows_ = 0, pages_ = 0;
};

}  // namespace fidelio
