// Constraint: which tokens an answer may go on with, such as those that keep it a JSON text of some schema.
//
// A state is a number of the constraint's own; states are made as they are met and live as long as it does. What follows
// from a state depends on the state alone, so rows of a speculative block are masked one by one, whatever is rejected
// later. Asked by one thread at a time.
#pragma once
#include <cstdint>
#include <span>

namespace fidelio {

class Constraint {
 public:
  using State = int32_t;
  static constexpr State kFree = -2;       // nothing is asked of this row
  static constexpr State kForbidden = -1;  // no answer begins like this

  virtual ~Constraint() = default;
  virtual State start() = 0;
  // Bit id % 64 of word id / 64: token `id` may come next. Valid until the next call of any member.
  virtual std::span<const uint64_t> allowed(State state) = 0;
  virtual State next(State state, int32_t id) = 0;
  virtual bool may_end(State state) = 0;   // the answer so far is whole: a stop id may come
  virtual bool must_end(State state) = 0;  // and nothing else
};

}  // namespace fidelio
