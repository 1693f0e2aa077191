// This file has the operations of the Cuda backend that a predictor of the token after the next needs (op::Before,
// op::Carry and op::Join in step/op.h).
#include "kernels/cuda/backend/cuda_state.h"

namespace fidelio {

void Cuda::before(const Matrix& x, Matrix& y, States& states) {
  State& s = *state_;
  assert(x.columns == y.columns && states.shape.carried == x.columns);
  s.flush();
  cuda::before(s.stream, s.delta, x.data(), x.columns, {states.carried.as<float>(), x.columns}, y.data());
}

void Cuda::carry(const Matrix& x, States& states) {
  State& s = *state_;
  assert(states.shape.carried == x.columns);
  s.flush();
  cuda::carry(s.stream, s.delta, x.data(), x.columns, {states.carried.as<float>(), x.columns});
}

Cuda::Acts Cuda::join(const Matrix& x, const Matrix& y) {
  State& s = *state_;
  assert(x.columns == y.columns);
  s.flush();
  const Acts joined = s.fresh_acts(s.rows, 2 * x.columns);
  cuda::join(s.stream, x.data(), y.data(), joined.rows, x.columns, s.acts.as<float>());
  return joined;
}

}  // namespace fidelio
