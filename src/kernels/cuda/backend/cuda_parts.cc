// This file has the operations of the Cuda backend on parts of rows: heads, runs of columns, and single numbers
// (op::Queries, op::NormHeads, op::Columns, op::Clear, op::Scale and op::Softcap in step/op.h).
#include "kernels/cuda/backend/cuda_state.h"

namespace fidelio {

void Cuda::turn_queries(Matrix& q, const Matrix* q_norm, const KvCache& cache, int layer) {
  State& s = *state_;
  s.flush();
  const AttentionShape& shape = cache.shape;
  const int which = shape.layers[static_cast<size_t>(layer)].rotation, e = shape.head_dim;
  const Rotation& rotation = shape.rotations[static_cast<size_t>(which)];
  const auto pairs = static_cast<int>(rotation.inverse_frequencies.size());
  // The frequencies of whole heads come first, and those of parts of heads behind them.
  const float* frequencies = cache.frequencies.as<float>() + int64_t{which} * e + (2 * pairs == e ? 0 : e / 2);
  cuda::prepare_heads(s.stream, s.positions, s.rows,
                      {frequencies, pairs, rotation.scale, shape.query_scale, static_cast<float>(shape.query_growth),
                       shape.query_growth_positions, q_norm ? q_norm->data() : nullptr, nullptr, shape.norm_eps},
                      shape.heads, 0, e, q.data(), nullptr);
}

void Cuda::norm_heads(const Matrix& x, const Matrix& weight, float eps, Matrix& y, bool adds) {
  State& s = *state_;
  assert(x.columns % weight.columns == 0 && x.columns == y.columns);
  s.flush();
  cuda::norm_heads(s.stream, x.data(), weight.data(), eps, s.rows, static_cast<int>(x.columns / weight.columns),
                   static_cast<int>(weight.columns), y.data(), adds);
}

void Cuda::columns(const Matrix& x, int64_t first, Matrix& y) {
  State& s = *state_;
  assert(first + y.columns <= x.columns);
  s.flush();
  cuda::columns(s.stream, x.data(), s.rows, x.columns, first, y.columns, y.data());
}

void Cuda::clear(Matrix& x) {
  State& s = *state_;
  s.flush();
  cuda::clear(s.stream, s.rows * x.columns, x.data());
}

void Cuda::scale(Matrix& x, const Matrix& factor) {
  State& s = *state_;
  s.flush();
  cuda::scale(s.stream, factor.data(), s.rows * x.columns, x.data());
}

void Cuda::softcap(Matrix& x, int64_t rows, float cap) {
  State& s = *state_;
  s.flush();
  cuda::softcap(s.stream, cap, rows * x.columns, x.data());
}

}  // namespace fidelio
