// A Constraint says which tokens an answer may continue with, for example those that keep it a JSON text of some
// schema.
//
// A state is a number whose meaning the constraint knows. States are made when they are first reached and live as
// long as the constraint. What may follow depends on the state alone, so the rows of a speculative block are masked
// one by one, whatever is rejected later. Only one thread may use a constraint at a time.
#pragma once
#include <cstdint>
#include <span>

namespace fidelio {

class Constraint {
 public:
  using State = int32_t;
  static constexpr State kFree = -2;       // this row is not constrained
  static constexpr State kForbidden = -1;  // no allowed answer begins like this

  virtual ~Constraint() = default;
  virtual State start() = 0;
  // Returns a mask in which bit id % 64 of word id / 64 is set if token `id` may come next. It is valid until the
  // next call of any member.
  virtual std::span<const uint64_t> allowed(State state) = 0;
  virtual State next(State state, int32_t id) = 0;
  virtual bool may_end(State state) = 0;   // the answer so far is complete, so that a stop id may come
  virtual bool must_end(State state) = 0;  // only a stop id may come
};

}  // namespace fidelio
