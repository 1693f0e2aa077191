// This file has the operations of the Cpu backend on parts of rows: heads, runs of columns, and single numbers
// (op::Queries, op::NormHeads, op::Columns, op::Clear, op::Scale and op::Softcap in step/op.h).
#include <algorithm>
#include <cassert>

#include "kernels/cpu/cpu_state.h"

namespace fidelio {

void Cpu::State::turn(float* head, int64_t row, int layer, const Matrix* norm) const {
  const int rotation = shape.layers[static_cast<size_t>(layer)].rotation;
  const int64_t before = pairs_before(rotation), pairs = pairs_before(rotation + 1) - before,
                angles = max_rows * before + row * pairs;
  if (norm) kernels.norm(head, norm->data(), shape.norm_eps, head, shape.head_dim_of(layer));
  kernels.rotate(head, cosine.as<float>() + angles, sine.as<float>() + angles, 2 * pairs);
}

void Cpu::State::turn_query(Matrix& q, int64_t row, int layer, const Matrix* norm) const {
  if (const float factor = query_factor[static_cast<size_t>(row)]; factor != 1)
    for (float& value : std::span(q.row(row), static_cast<size_t>(q.columns))) value *= factor;
  const int64_t e = shape.head_dim_of(layer);
  for (int64_t head = 0; head < shape.heads; ++head) turn(q.row(row) + head * e, row, layer, norm);
}

void Cpu::turn_queries(Matrix& q, const Matrix* q_norm, const KvCache&, int layer) {
  State& s = *state_;
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), q.columns,
           [&](int64_t row) { s.turn_query(q, row, layer, q_norm); });
}

void Cpu::norm_heads(const Matrix& x, const Matrix& weight, float eps, Matrix& y, bool adds) {
  State& s = *state_;
  const int64_t e = weight.columns;
  assert(x.columns % e == 0 && y.columns == x.columns && e <= s.max_columns);
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns, [&](int64_t row, int thread) {
    float* normed = s.turn_scratch.as<float>() + thread * s.max_columns;
    for (int64_t first = 0; first < x.columns; first += e) {
      float* to = y.row(row) + first;
      s.kernels.norm(x.row(row) + first, weight.data(), eps, adds ? normed : to, e);
      for (int64_t i = 0; adds && i < e; ++i) to[i] += normed[i];
    }
  });
}

void Cpu::columns(const Matrix& x, int64_t first, Matrix& y) {
  assert(first + y.columns <= x.columns);
  for_rows(state_->pool, static_cast<int64_t>(state_->ids.size()), y.columns,
           [&](int64_t row) { std::copy_n(x.row(row) + first, y.columns, y.row(row)); });
}

void Cpu::clear(Matrix& x) { std::fill_n(x.data(), static_cast<int64_t>(state_->ids.size()) * x.columns, 0.f); }

void Cpu::scale(Matrix& x, const Matrix& factor) {
  const float by = *factor.data();
  for_rows(state_->pool, static_cast<int64_t>(state_->ids.size()), x.columns, [&](int64_t row) {
    for (float& value : std::span(x.row(row), static_cast<size_t>(x.columns))) value *= by;
  });
}

void Cpu::softcap(Matrix& x, int64_t rows, float cap) {
  State& s = *state_;
  constexpr int64_t kPiece = 4096;  // columns that a thread takes at once
  const int64_t pieces = (x.columns + kPiece - 1) / kPiece;
  s.pool.run(rows * pieces, [&](int64_t job, int) {
    const int64_t first = job % pieces * kPiece;
    s.kernels.softcap(x.row(job / pieces) + first, cap, std::min(kPiece, x.columns - first));
  });
}

}  // namespace fidelio
