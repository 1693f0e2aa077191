// This file has the operations of the Cpu backend that a gated delta net needs (op::Convolve, op::DeltaRule and
// op::GatedNorm in step/program.h), and those of a gate on attention's output.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/cpu_state.h"

namespace fidelio {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

Cpu::States Cpu::allocate_states(const StateShape& shape, int64_t slots) {
  State& s = *state_;
  s.delta_scratch.resize(static_cast<size_t>(s.pool.threads()) * static_cast<size_t>(shape.key_dim) *
                         static_cast<size_t>(shape.value_dim + 2));
  return {shape, slots, Buffer(static_cast<size_t>(slots * shape.floats()) * sizeof(float))};
}

void Cpu::split_gate(const Matrix& x, Matrix& q, Matrix& gate) {
  State& s = *state_;
  const int64_t e = s.shape.head_dim;
  assert(x.columns == 2 * q.columns && q.columns == gate.columns && q.columns % e == 0);
  s.pool.run(static_cast<int64_t>(s.ids.size()), [&](int64_t row, int) {
    for (int64_t head = 0; head < q.columns / e; ++head) {
      const float* from = x.row(row) + 2 * head * e;
      std::copy(from, from + e, q.row(row) + head * e);
      std::copy(from + e, from + 2 * e, gate.row(row) + head * e);
    }
  });
}

Cpu::Acts Cpu::gate_heads(Acts acts, const Matrix& gate) {
  State& s = *state_;
  assert(acts.version == s.version && acts.values == s.acts.as<float>() && gate.columns == acts.columns);
  const Acts out = s.publish(acts.rows, acts.columns);
  s.pool.run(out.rows, [&](int64_t row, int) {
    float* y = s.acts.as<float>() + row * out.columns;
    for (int64_t i = 0; i < out.columns; ++i) y[i] *= sigmoid(gate.row(row)[i]);
  });
  return out;
}

void Cpu::add_shared(const Matrix& y, const Matrix& gate, Matrix& x) {
  State& s = *state_;
  assert(y.columns == x.columns && gate.columns == 1);
  s.pool.run(static_cast<int64_t>(s.ids.size()), [&](int64_t row, int) {
    const float share = sigmoid(*gate.row(row));
    for (int64_t i = 0; i < x.columns; ++i) x.row(row)[i] += share * y.row(row)[i];
  });
}

// Calls step(row) for each row of a segment, and keep(slot) after the rows whose state is kept.
template <typename Step, typename Keep>
void Cpu::State::walk(const Segment& segment, const Step& step, const Keep& keep) const {
  const auto first = std::ranges::lower_bound(kept, segment.first_row, {}, &KeptState::row);
  auto next = first;
  for (int32_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
    step(row);
    for (; next != kept.end() && next->row == row; ++next) keep(next->slot);
  }
}

void Cpu::convolve(const Matrix& x, const Matrix& weight, Matrix& y, States& states, int layer) {
  State& s = *state_;
  const int64_t channels = x.columns, kernel = weight.columns, before = kernel - 1;
  assert(weight.rows == channels && y.columns == channels && states.shape.channels == channels);
  constexpr int64_t kChannels = 256;  // those of one job
  const int64_t parts = (channels + kChannels - 1) / kChannels;
  s.pool.run(static_cast<int64_t>(s.segments.size()) * parts, [&](int64_t job, int) {
    const Segment& segment = s.segments[static_cast<size_t>(job / parts)];
    const int64_t begin = job % parts * kChannels, end = std::min(begin + kChannels, channels);
    const float* old = segment.state < 0 ? nullptr : states.inputs(segment.state, layer);
    float window[16][kChannels];  // the inputs before the row, the oldest first
    assert(before <= 16);
    for (int64_t i = 0; i < before; ++i)
      for (int64_t c = begin; c < end; ++c) window[i][c - begin] = old ? old[i * channels + c] : 0;
    s.walk(
        segment,
        [&](int64_t row) {
          const float* in = x.row(row);
          for (int64_t c = begin; c < end; ++c) {
            const float* w = weight.row(c);
            float sum = w[before] * in[c];
            for (int64_t i = before; i-- > 0;) sum += w[i] * window[i][c - begin];
            for (int64_t i = 0; i + 1 < before; ++i) window[i][c - begin] = window[i + 1][c - begin];
            if (before > 0) window[before - 1][c - begin] = in[c];
            y.row(row)[c] = sum * sigmoid(sum);
          }
        },
        [&](int32_t slot) {
          for (int64_t i = 0; i < before; ++i)
            std::copy(window[i], window[i] + (end - begin), states.inputs(slot, layer) + i * channels + begin);
        });
  });
}

void Cpu::delta_rule(const Matrix& x, const Matrix& b, const Matrix& a, const Matrix& decay, Matrix& y, States& states,
                     int layer) {
  State& s = *state_;
  const StateShape& shape = states.shape;
  const int64_t heads = shape.heads, dk = shape.key_dim, dv = shape.value_dim, keys = (x.columns - y.columns) / 2,
                group = heads * dk / keys;
  s.pool.run(static_cast<int64_t>(s.segments.size()) * heads, [&](int64_t job, int thread) {
    const Segment& segment = s.segments[static_cast<size_t>(job / heads)];
    const int64_t head = job % heads;
    float *m = s.delta_scratch.data() + thread * dk * (dv + 2), *q = m + dk * dv, *k = q + dk;
    if (segment.state < 0)
      std::fill(m, m + dk * dv, 0.f);
    else
      std::copy_n(states.matrices(segment.state, layer) + head * dk * dv, dk * dv, m);
    const auto unit = [&](const float* from, float factor, float* to) {
      float sum = 0;
      for (int64_t i = 0; i < dk; ++i) sum += from[i] * from[i];
      const float scale = factor / std::sqrt(sum + 1e-6f);
      for (int64_t i = 0; i < dk; ++i) to[i] = from[i] * scale;
    };
    s.walk(
        segment,
        [&](int64_t row) {
          const float *from = x.row(row) + head / group * dk, *v = x.row(row) + 2 * keys + head * dv;
          unit(from, 1 / std::sqrt(static_cast<float>(dk)), q);
          unit(from + keys, 1, k);
          const float step = a.row(row)[head] + decay.row(1)[head],
                      softplus = step > 20 ? step : std::log1p(std::exp(step)),
                      kept = std::exp(decay.row(0)[head] * softplus), written = sigmoid(b.row(row)[head]);
          float* out = y.row(row) + head * dv;
          std::fill(out, out + dv, 0.f);
          for (int64_t i = 0; i < dk; ++i)
            for (int64_t j = 0; j < dv; ++j) {
              m[i * dv + j] *= kept;
              out[j] += k[i] * m[i * dv + j];
            }
          float change[512];
          assert(dv <= 512);
          for (int64_t j = 0; j < dv; ++j) change[j] = written * (v[j] - out[j]);
          std::fill(out, out + dv, 0.f);
          for (int64_t i = 0; i < dk; ++i)
            for (int64_t j = 0; j < dv; ++j) {
              m[i * dv + j] += k[i] * change[j];
              out[j] += q[i] * m[i * dv + j];
            }
        },
        [&](int32_t slot) { std::copy_n(m, dk * dv, states.matrices(slot, layer) + head * dk * dv); });
  });
}

Cpu::Acts Cpu::gated_norm(const Matrix& x, const Matrix& gate, const Matrix& weight, float eps, Gate function) {
  State& s = *state_;
  assert(function != Gate::gelu_tanh && x.columns % weight.columns == 0 && gate.columns == x.columns);
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), x.columns);
  s.pool.run(out.rows, [&](int64_t row, int) {
    float* y = s.acts.as<float>() + row * out.columns;
    for (int64_t head = 0; head < out.columns; head += weight.columns)
      s.kernels.norm(x.row(row) + head, weight.data(), eps, y + head, weight.columns);
    const float* g = gate.row(row);
    for (int64_t i = 0; i < out.columns; ++i) y[i] *= (function == Gate::silu ? g[i] : 1) * sigmoid(g[i]);
  });
  return out;
}

}  // namespace fidelio
