// This file has the operations of the Cpu backend that a predictor of the token after the next needs (op::Before,
// op::Carry and op::Join in step/op.h).
#include <algorithm>
#include <cassert>

#include "kernels/cpu/cpu_state.h"

namespace fidelio {

void Cpu::before(const Matrix& x, Matrix& y, States& states) {
  const int64_t d = x.columns;
  assert(y.columns == d && states.shape.carried == d);
  for (const Segment& segment : state_->segments) {
    float* first = y.row(segment.first_row);
    if (segment.state < 0)
      std::fill(first, first + d, 0.f);
    else
      std::copy_n(states.carried(segment.state), d, first);
    std::copy_n(x.row(segment.first_row), (segment.rows - 1) * d, first + d);
  }
}

void Cpu::carry(const Matrix& x, States& states) {
  assert(states.shape.carried == x.columns);
  for (const KeptState& kept : state_->kept) std::copy_n(x.row(kept.row), x.columns, states.carried(kept.slot));
}

Cpu::Acts Cpu::join(const Matrix& x, const Matrix& y) {
  State& s = *state_;
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), x.columns + y.columns);
  s.pool.run(out.rows, [&](int64_t row, int) {
    float* to = s.acts.as<float>() + row * out.columns;
    std::copy_n(y.row(row), y.columns, std::copy_n(x.row(row), x.columns, to));
  });
  return out;
}

}  // namespace fidelio
