// This file has the operations of the Cpu backend that a gated delta net needs (op::Convolve, op::DeltaRule and
// op::GatedNorm in step/program.h), and those of gates that are sigmoids.
#include <algorithm>
#include <cassert>

#include "kernels/cpu/cpu_state.h"

namespace fidelio {

static_assert(kStateChunk == cpu::kDeltaRows);

Cpu::Matrix Cpu::pack_convolution(std::span<const float> weight, int64_t channels) {
  Matrix packed = allocate(std::ssize(weight) / channels, channels);
  for (int64_t i = 0; i < std::ssize(weight); ++i)
    packed.row(i % packed.rows)[i / packed.rows] = weight[static_cast<size_t>(i)];
  return packed;
}

Cpu::States Cpu::allocate_states(const StateShape& shape, int64_t slots) {
  State& s = *state_;
  // A thread has the scratch of the kernels, and a state for rows whose own is not kept.
  const int64_t floats = cpu::in_vectors(cpu::delta_scratch_floats(shape.key_dim)) +
                         cpu::in_vectors(int64_t{shape.key_dim} * shape.value_dim);
  if (shape.layers > 0 && floats > s.delta_scratch_floats) {
    s.delta_scratch_floats = floats;
    s.delta_scratch = Buffer(static_cast<size_t>(s.pool.threads() * floats) * sizeof(float));
  }
  return {shape, slots, Buffer(static_cast<size_t>(slots * shape.floats()) * sizeof(float))};
}

void Cpu::split_gate(const Matrix& x, Matrix& q, Matrix& gate) {
  State& s = *state_;
  const int64_t e = s.shape.head_dim;
  assert(x.columns == 2 * q.columns && q.columns == gate.columns && q.columns % e == 0);
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns, [&](int64_t row) {
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
  for_rows(s.pool, out.rows, out.columns, [&](int64_t row) {
    float* y = s.acts.as<float>() + row * out.columns;
    s.kernels.sigmoid_gated(gate.row(row), y, y, out.columns);
  });
  return out;
}

void Cpu::add_shared(const Matrix& y, const Matrix& gate, Matrix& x) {
  State& s = *state_;
  assert(y.columns == x.columns && gate.columns == 1);
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns,
           [&](int64_t row) { s.kernels.add_gated(*gate.row(row), y.row(row), x.row(row), x.columns); });
}

Cpu::Acts Cpu::gated_norm(const Matrix& x, const Matrix& gate, const Matrix& weight, float eps, Gate function) {
  State& s = *state_;
  const int64_t e = weight.columns;
  assert(function != Gate::gelu_tanh && x.columns % e == 0 && gate.columns == x.columns);
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), x.columns);
  const auto gated = s.gate_function(function);
  for_rows(s.pool, out.rows * (x.columns / e), e, [&](int64_t head) {  // heads lie one after the other, as rows do
    float* y = s.acts.as<float>() + head * e;
    s.kernels.norm(x.data() + head * e, weight.data(), eps, y, e);
    gated(gate.data() + head * e, y, y, e);
  });
  return out;
}

// --- states --------------------------------------------------------------------------------------------------------
std::span<const KeptState> Cpu::State::kept_of(const Segment& segment) const {
  const auto first = std::ranges::lower_bound(kept, segment.first_row, {}, &KeptState::row),
             last = std::ranges::lower_bound(kept, segment.first_row + segment.rows, {}, &KeptState::row);
  return {first, last};
}

void Cpu::convolve(const Matrix& x, const Matrix& weight, Matrix& y, States& states, int layer) {
  State& s = *state_;
  const int64_t channels = x.columns, before = weight.rows - 1;
  assert(weight.columns == channels && y.columns == channels && states.shape.channels == channels &&
         states.shape.rows == before);
  constexpr int64_t kChannels = 256;  // those of one job
  const int64_t parts = (channels + kChannels - 1) / kChannels;
  s.pool.run(static_cast<int64_t>(s.segments.size()) * parts, [&](int64_t job, int) {
    const Segment& segment = s.segments[static_cast<size_t>(job / parts)];
    const int64_t begin = job % parts * kChannels, end = std::min(begin + kChannels, channels);
    const float* old = segment.state < 0 ? nullptr : states.inputs(segment.state, layer);
    s.kernels.convolve({x.row(segment.first_row), old, weight.data(), y.row(segment.first_row), segment.rows, channels,
                        weight.rows, begin, end});
    // The rows before the first one lie in the slot that the segment begins from. If a state is kept there, that is
    // done last, from the oldest input to the newest: each of these lies further behind than the place it goes to.
    const auto keep = [&](const KeptState& kept) {
      const int64_t row = kept.row - segment.first_row;
      for (int64_t i = 0; i < before; ++i) {
        float* to = states.inputs(kept.slot, layer) + i * channels;
        const int64_t of = row - before + 1 + i;  // the row whose input it is
        if (of >= 0)
          std::copy(x.row(kept.row - row + of) + begin, x.row(kept.row - row + of) + end, to + begin);
        else if (old)
          std::copy(old + (of + before) * channels + begin, old + (of + before) * channels + end, to + begin);
        else
          std::fill(to + begin, to + end, 0.f);
      }
    };
    for (const KeptState& kept : s.kept_of(segment))
      if (kept.slot != segment.state) keep(kept);
    for (const KeptState& kept : s.kept_of(segment))
      if (kept.slot == segment.state) keep(kept);
  });
}

namespace {

// One call of delta_rule().
struct DeltaCall {
  const cpu::KernelSet& kernels;
  const Cpu::Matrix &x, &b, &a, &decay, &y;
  const Cpu::States& states;
  int layer;

  int64_t size() const { return int64_t{states.shape.key_dim} * states.shape.value_dim; }
  float* state(int64_t slot, int64_t head) const { return states.matrices(slot, layer) + head * size(); }
  const float* first_state(const Segment& segment, int64_t head) const {
    return segment.state < 0 ? nullptr : state(segment.state, head);
  }
  cpu::DeltaArgs args(int64_t row, int64_t head) const {
    const StateShape& shape = states.shape;
    const int64_t dk = shape.key_dim, dv = shape.value_dim, keys = (x.columns - y.columns) / 2,
                  group = shape.heads * dk / keys;
    const float *q = x.row(row) + head / group * dk, *v = x.row(row) + 2 * keys + head * dv;
    return {.rows = 1,
            .key_dim = dk,
            .value_dim = dv,
            .q = q,
            .k = q + keys,
            .v = v,
            .stride = x.columns,
            .b = b.row(row) + head,
            .a = a.row(row) + head,
            .gate_stride = shape.heads,
            .rate = decay.row(0)[head],
            .bias = decay.row(1)[head],
            .out = y.row(row) + head * dv,
            .out_stride = y.columns,
            .from = nullptr,
            .to = nullptr,
            .next = nullptr,
            .scratch = nullptr};
  }

  // Takes the rows of a segment through a head's state. Runs of rows end at multiples of kStateChunk and where a state
  // is kept, so a run of kStateChunk rows is a whole chunk. A chunk in whose midst a state is kept goes row by row, as
  // the rows of output do: the scheduler keeps states of prompts at the ends of chunks.
  void run(const Segment& segment, std::span<const KeptState> kept, int64_t head, const float* next,
           float* scratch) const {
    float* own = scratch + cpu::in_vectors(cpu::delta_scratch_floats(states.shape.key_dim));
    const float* from = first_state(segment, head);
    for (int32_t done = 0; done < segment.rows;) {
      const int32_t row = segment.first_row + done;
      int32_t count = std::min(segment.rows - done, kStateChunk - (segment.position + done) % kStateChunk);
      if (!kept.empty()) count = std::min(count, kept[0].row - row + 1);
      const int32_t last = row + count - 1;
      cpu::DeltaArgs run = args(row, head);
      run.rows = count;
      run.from = from;
      run.to = !kept.empty() && kept[0].row == last ? state(kept[0].slot, head) : own;
      run.next = next;
      run.scratch = scratch;
      const bool is_whole = segment.kind == RowKind::prompt && count == kStateChunk;
      (is_whole ? kernels.delta_chunk : kernels.delta_rows)(run);
      while (!kept.empty() && kept[0].row == last) {
        if (float* to = state(kept[0].slot, head); to != run.to) std::copy_n(run.to, size(), to);
        kept = kept.subspan(1);
      }
      from = run.to;
      next = nullptr;
      done += count;
    }
  }
};

}  // namespace

void Cpu::delta_rule(const Matrix& x, const Matrix& b, const Matrix& a, const Matrix& decay, Matrix& y, States& states,
                     int layer) {
  State& s = *state_;
  const DeltaCall call{s.kernels, x, b, a, decay, y, states, layer};
  const int64_t heads = states.shape.heads, jobs = static_cast<int64_t>(s.segments.size()) * heads;
  const auto segment = [&](int64_t job) -> const Segment& { return s.segments[static_cast<size_t>(job / heads)]; };
  // Few rows of each sequence stream states from memory, so a thread takes runs of heads and fetches the next state.
  const auto range = [&](int64_t first, int64_t last, int thread) {
    for (int64_t job = first; job < last; ++job)
      call.run(segment(job), s.kept_of(segment(job)), job % heads,
               job + 1 < last ? call.first_state(segment(job + 1), (job + 1) % heads) : nullptr,
               s.delta_scratch.as<float>() + thread * s.delta_scratch_floats);
  };
  if (std::ranges::any_of(s.segments, [](const Segment& some) { return some.rows > 16; }))
    return s.pool.run(jobs, [&](int64_t job, int thread) { range(job, job + 1, thread); });
  s.pool.run_ranges(jobs, range);
}

}  // namespace fidelio
