// This file has the operations of the Cuda backend that a gated delta net needs (op::Convolve, op::DeltaRule and
// op::GatedNorm in step/program.h), and those of a gate on attention's output and of a shared expert.
#include <algorithm>

#include "kernels/cuda/backend/cuda_state.h"

namespace fidelio {
namespace {

static_assert(cuda::kDeltaChunk == kStateChunk);
constexpr size_t kSegmentWords = sizeof(cuda::DeltaSegment) / sizeof(int32_t);

// Returns one layer's part of all slots.
cuda::StateSlots slots_of(const DeviceBuffer& buffer, int64_t layer, int64_t of_layer, int64_t layers) {
  return {buffer.as<float>() + layer * of_layer, layers * of_layer};
}

}  // namespace

Cuda::States Cuda::allocate_states(const StateShape& shape, int64_t slots) {
  if (shape.floats() == 0) return {};
  check(shape.key_dim <= cuda::kMostKeyColumns && shape.rows < cuda::kWidestConvolution,
        "the CUDA backend runs delta nets with keys of at most {} columns and convolutions over at most {} positions, "
        "not {} and {}: run this model with --device cpu",
        cuda::kMostKeyColumns, cuda::kWidestConvolution, shape.key_dim, shape.rows + 1);
  state_->keeps_states = true;
  const auto buffer = [&](int64_t of_slot) {
    return DeviceBuffer(static_cast<size_t>(slots * of_slot) * sizeof(float));
  };
  return {shape, slots, buffer(shape.layers * shape.matrices()), buffer(shape.layers * shape.inputs()),
          buffer(shape.carried)};
}

// Recorded steps contain the number of segments and the addresses of the lists. Both are made the same for batches of
// one shape: segments are counted in fours, as attention's units are, and each list has a place that depends on the
// numbers of segments and of rows alone.
void Cuda::State::list_states(const Batch& batch, std::vector<int32_t>& table) {
  delta = {};
  states_at = table.size();
  if (!keeps_states) return;
  delta.count = static_cast<int>(batch.segments.size());
  if (delta.count > 4) delta.count = (delta.count + 3) / 4 * 4;
  const bool in_chunks = kind == RowKind::prompt && mode != Activations::f32;
  std::vector<int32_t> chunk_rows;
  for (const Segment& s : batch.segments) {
    const int32_t before = (kStateChunk - s.position % kStateChunk) % kStateChunk,
                  chunks = in_chunks ? std::max(0, (s.rows - before) / kStateChunk) : 0;
    table.insert(table.end(), {s.first_row, s.rows, s.state, chunks > 0 ? before : s.rows, chunks,
                               static_cast<int32_t>(chunk_rows.size())});
    for (int32_t i = 0; i < chunks; ++i) chunk_rows.push_back(s.first_row + before + i * kStateChunk);
  }
  table.resize(states_at + static_cast<size_t>(delta.count) * kSegmentWords);  // the others have no rows
  table.insert(table.end(), static_cast<size_t>(rows) + 1, 0);                 // list_kept() sets these
  table.insert(table.end(), chunk_rows.begin(), chunk_rows.end());
  delta.chunks = static_cast<int>(chunk_rows.size());
}

void Cuda::State::list_kept(const Batch& batch, std::vector<int32_t>& table) const {
  if (!keeps_states) return;
  const size_t at = states_at + static_cast<size_t>(delta.count) * kSegmentWords;
  auto next = batch.kept.begin();
  for (int64_t row = 0; row <= rows; ++row) {
    table[at + static_cast<size_t>(row)] = static_cast<int32_t>(table.size());
    for (; next != batch.kept.end() && next->row == row; ++next) table.push_back(next->slot);
  }
}

void Cuda::State::point_to_states() {
  if (!keeps_states) return;
  const int32_t* const lists = ids + states_at;
  delta.segments = reinterpret_cast<const cuda::DeltaSegment*>(lists);
  delta.kept = lists + static_cast<size_t>(delta.count) * kSegmentWords;
  delta.chunk_rows = delta.kept + rows + 1;
  delta.slots = ids;  // the lists count from the table's beginning
}

Cuda::Matrix Cuda::pack_convolution(std::span<const float> weight, int64_t channels) {
  Matrix packed = allocate(channels, std::ssize(weight) / channels);
  upload(weight, packed);
  return packed;
}

void Cuda::convolve(const Matrix& x, const Matrix& weight, Matrix& y, States& states, int layer) {
  State& s = *state_;
  assert(weight.rows == x.columns && y.columns == x.columns && states.shape.channels == x.columns);
  const cuda::NarrowProduct along = std::exchange(s.narrow, {});
  s.flush();
  cuda::convolve(
      s.stream, s.delta,
      {x.data(), weight.data(), y.data(), s.rows, static_cast<int>(x.columns), static_cast<int>(weight.columns),
       slots_of(states.inputs, layer, states.shape.inputs(), states.shape.layers), s.kind == RowKind::prompt},
      along);
}

void Cuda::delta_rule(const Matrix& x, const Matrix& b, const Matrix& a, const Matrix& decay, Matrix& y, States& states,
                      int layer) {
  State& s = *state_;
  const StateShape& shape = states.shape;
  const int64_t keys = (x.columns - y.columns) / 2;
  assert(y.columns == int64_t{shape.heads} * shape.value_dim && b.columns == shape.heads && a.columns == shape.heads);
  s.flush();
  cuda::DeltaRule d{x.data(),
                    b.data(),
                    a.data(),
                    decay.data(),
                    y.data(),
                    static_cast<int>(x.columns),
                    shape.heads,
                    static_cast<int>(shape.heads * shape.key_dim / keys),
                    shape.key_dim,
                    shape.value_dim,
                    slots_of(states.matrices, layer, shape.matrices(), shape.layers)};
  // Rows of prompts go through one kernel even in batches without a whole chunk, so that their bits are the same in
  // all.
  if (s.kind == RowKind::output || s.mode == Activations::f32) return cuda::delta_rows(s.stream, s.delta, d);
  s.grow(s.delta_products, 4 * cuda::delta_product_floats(s.delta.chunks, d.heads, d.key_dim));
  s.grow(s.delta_scores, 4 * cuda::delta_score_floats(s.delta.chunks, d.heads));
  s.grow(s.delta_factors, 4 * cuda::delta_factor_floats(s.delta.chunks, d.heads));
  d.products = s.delta_products.as<float>();
  d.scores = s.delta_scores.as<float>();
  d.factors = s.delta_factors.as<float>();
  cuda::delta_chunks(s.stream, s.delta, d);
}

Cuda::Acts Cuda::gated_norm(const Matrix& x, const Matrix& gate, const Matrix& weight, float eps, Gate function) {
  State& s = *state_;
  const int64_t e = weight.columns;
  assert(function != Gate::gelu_tanh && x.columns % e == 0 && gate.columns == x.columns);
  s.flush();
  const Acts y = s.fresh_acts(s.rows, x.columns);
  const bool prepares = e % cuda::kBlockColumns == 0;
  cuda::gated_norm(s.stream, x.data(), gate.data(), weight.data(), eps, function, y.rows,
                   static_cast<int>(x.columns / e), static_cast<int>(e), s.acts.as<float>(),
                   prepares ? s.blocks_for(y.kind, s.expected) : cuda::PreparedRows{});
  return y;
}

void Cuda::split_gate(const Matrix& x, Matrix& q, Matrix& gate) {
  State& s = *state_;
  assert(x.columns == 2 * q.columns && q.columns == gate.columns && q.columns % s.head_dim == 0);
  s.flush();
  cuda::split_heads(s.stream, x.data(), s.rows, static_cast<int>(q.columns / s.head_dim), s.head_dim, q.data(),
                    gate.data());
}

Cuda::Acts Cuda::gate_heads(Acts acts, const Matrix& gate) {
  State& s = *state_;
  assert(s.is_alive(acts) && acts.columns == gate.columns && "the newest acts are gated");
  s.flush();
  s.write_values();
  // Preparations of the old values do not hold for the new ones, which lie in their place.
  const Acts y = s.fresh_acts(acts.rows, acts.columns, acts.kind);
  cuda::gated(s.stream, Gate::sigmoid, gate.data(), acts.values, y.rows, y.columns, s.acts.as<float>(),
              s.blocks_for(y.kind, s.expected));
  return y;
}

void Cuda::add_shared(const Matrix& y, const Matrix& gate, Matrix& x) {
  State& s = *state_;
  assert(y.columns == x.columns && gate.columns == 1);
  s.flush();
  cuda::add_shared(s.stream, y.data(), gate.data(), s.rows, x.columns, x.data());
}

}  // namespace fidelio
