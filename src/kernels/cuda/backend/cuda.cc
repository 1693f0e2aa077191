#include "kernels/cuda/backend/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cuda/backend/cuda_state.h"
#include "kernels/cuda/backend/pack.h"

namespace fidelio {

namespace {

bool turns_whole_head(const AttentionShape& shape, const Rotation& rotation) {
  return static_cast<int>(rotation.inverse_frequencies.size()) * 2 == shape.head_dim;
}

// Returns the frequencies that a KvCache keeps.
std::vector<float> frequencies_of(const AttentionShape& shape) {
  std::vector<float> all;
  for (const Rotation& rotation : shape.rotations) {
    const size_t first = all.size(), half = static_cast<size_t>(shape.head_dim) / 2;
    all.resize(first + 2 * half, 0.0f);
    std::copy(rotation.inverse_frequencies.begin(), rotation.inverse_frequencies.end(),
              all.begin() + static_cast<std::ptrdiff_t>(first + (turns_whole_head(shape, rotation) ? 0 : half)));
  }
  return all;
}

// Returns how many cuts a context has, rounded up to one of few numbers, so that steps of a growing context have the
// same shape.
int cuts_for(int64_t context) {
  const int64_t cuts = (context + cuda::kCut - 1) / cuda::kCut;
  int64_t rounded = 1;
  while (rounded < cuts) rounded *= 2;
  return static_cast<int>(rounded >= 4 && rounded * 3 / 4 >= cuts ? rounded * 3 / 4 : rounded);
}

}  // namespace

Cuda::Cuda(const Options& options) : state_(std::make_unique<State>(options)) {}
Cuda::~Cuda() = default;
Cuda::Cuda(Cuda&&) noexcept = default;

// --- memory --------------------------------------------------------------------------------------------------------
Cuda::Matrix Cuda::allocate(int64_t rows, int64_t columns) {
  return {rows, columns, DeviceBuffer(static_cast<size_t>(rows * columns) * sizeof(float))};
}

Cuda::KvCache Cuda::allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format) {
  check(shape.is_uniform(),
        "the CUDA backend needs heads of one size in all layers; this model's layers differ in theirs, as Gemma 4's "
        "do: run it on the CPU (leave --device out)");
  check(shape.heads % shape.kv_heads == 0, "{} heads cannot share {} kv heads evenly", shape.heads, shape.kv_heads);
  check(shape.head_dim % 8 == 0 && shape.head_dim <= 256,
        "the CUDA backend needs a head dim that 8 divides, 256 at most, not {}", shape.head_dim);
  const int64_t slots = pages * shape.kv_heads * kPageTokens;
  check(slots <= std::numeric_limits<int32_t>::max(),
        "a cache of {} pages of {} kv heads has more vectors a layer than 2^31; ask for fewer sequences or a shorter "
        "context",
        pages, shape.kv_heads);
  KvCache cache{
      format, pages, shape,
      DeviceBuffer(static_cast<size_t>(shape.depth() * 2 * slots *
                                       (shape.head_dim * State::element_bytes(format) + State::scale_bytes(format)))),
      DeviceBuffer(shape.rotations.size() * static_cast<size_t>(shape.head_dim) * sizeof(float))};
  const std::vector<float> frequencies = frequencies_of(shape);
  cuda::to_device(state_->stream, cache.frequencies.data(), frequencies.data(), cache.frequencies.size());
  cuda::wait_for(state_->stream);
  return cache;
}

void Cuda::reserve(int64_t rows, int64_t columns, int64_t context) {
  State& s = *state_;
  s.max_rows = std::max(s.max_rows, rows);
  s.max_columns = std::max(s.max_columns, columns);
  s.context = std::max(s.context, context);
  const int64_t n = s.max_rows, k = s.max_columns, chunks = (n + cuda::kMaxRows - 1) / cuda::kMaxRows;
  s.grow(s.acts, n * k * 4);
  if (s.gathers) s.grow(s.gathered_acts, n * k * 4);
  s.grow(s.blocks, chunks * State::chunk_bytes(k));
  s.grow(s.halves, n * k * 2);
  s.grow(s.half_factor, n * 4);
  s.grow(s.many, cuda::many_bytes(n, k));
  s.grow(s.many_factor, cuda::many_rows(n) * 4);
  const int64_t of_states = s.keeps_states ? 10 * n + 64 : 0;  // list_states() and list_kept(), for a slot or two a row
  s.grow(s.batch, (4 * n + of_states + n * cuts_for(s.context) * (cuda::kCut / kPageTokens)) * 4);
  ++s.version;
}

void Cuda::upload(std::span<const float> host, Matrix& matrix) {
  assert(static_cast<int64_t>(host.size()) <= matrix.rows * matrix.columns);
  cuda::to_device(state_->stream, matrix.data(), host.data(), host.size_bytes());
  cuda::wait_for(state_->stream);
}
void Cuda::download(const Matrix& matrix, int64_t first, int64_t count, std::span<float> host) {
  assert(first + count <= matrix.rows && static_cast<int64_t>(host.size()) >= count * matrix.columns);
  cuda::from_device(state_->stream, host.data(), matrix.data() + first * matrix.columns,
                    static_cast<size_t>(count * matrix.columns) * sizeof(float));
}
void Cuda::copy(const Matrix& from, Matrix& to, int64_t rows) {
  state_->flush();
  cuda::on_device(state_->stream, to.data(), from.data(), static_cast<size_t>(rows * from.columns) * sizeof(float));
}

Cuda::Linear Cuda::pack(const LinearWeight& weight, int) {
  State& s = *state_;
  Linear w = cuda::pack(s.stream, weight);
  if (State::way_of(w, Activations::a16, RowKind::prompt) == State::Way::dense && !w.values.half)
    s.grow(s.dequantised, w.out * w.in * 2);
  return w;
}

int64_t Cuda::bytes_read(const Linear& weight, Reading reading) const {
  return weight.bytes() - (weight.is_viewed(reading.high_bits) ? weight.view.lowbit.shape.unread_bytes() : 0);
}

std::string Cuda::kernel_name(const Linear& weight, Activations mode) const {
  switch (State::way_of(weight, mode, RowKind::output)) {
    case State::Way::single:
      return "f32 cuda";
    case State::Way::many:
    case State::Way::dense:
      return "f16 a16 cublaslt";
    case State::Way::vectors:
      return fmt::format("{} {} cuda", to_string(weight.spec), mode == Activations::f32 ? "a24" : "a16");
    case State::Way::codes:
      return weight.values.half ? "f16 a16 cuda" : fmt::format("{} {} cuda", to_string(weight.spec), name_of(mode));
  }
  return {};
}

// --- a step --------------------------------------------------------------------------------------------------------
void Cuda::State::forget_step() {
  fresh = {};
  joining = chaining = false;
  waiting.reset();
  chain.clear();
  narrow = {};
  routing.alone = false;
  next_count = 0;
  expected = {};
}

void Cuda::begin(const Batch& batch, Reading reading, const AttentionShape& shape) {
  State& s = *state_;
  const Activations mode = reading.activations;
  s.high_bits = reading.high_bits;
  s.kind = batch.segments.empty() ? RowKind::output : batch.segments[0].kind;
  for (const Segment& segment : batch.segments)
    check(segment.kind == s.kind, "the CUDA backend computes rows of prompts and rows of output in steps of their own");
  s.mode = mode;
  if (is_coarse(mode)) s.grow(s.rounded, s.max_rows * s.max_columns * 4);
  s.rows = batch.rows();
  s.logit_count = static_cast<int64_t>(batch.logit_rows.size());
  const auto sequences = static_cast<int64_t>(batch.segments.size());
  s.forget_step();
  s.turned.assign(shape.rotations.size(), 0);
  int64_t longest = 0;
  for (const Segment& segment : batch.segments)
    longest = std::max<int64_t>(longest, int64_t{segment.position} + segment.rows);
  s.cuts = cuts_for(longest);
  const auto widest = static_cast<size_t>(s.cuts * (cuda::kCut / kPageTokens));
  s.pages_per_sequence = static_cast<int>(widest);
  auto& b = s.host_batch;
  b = batch.ids;
  for (const Segment& segment : batch.segments)
    for (int32_t i = 0; i < segment.rows; ++i) b.push_back(segment.position + i);
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    const int32_t count = batch.segments[static_cast<size_t>(sequence)].rows;
    b.insert(b.end(), static_cast<size_t>(count), sequence);
  }
  b.insert(b.end(), batch.logit_rows.begin(), batch.logit_rows.end());
  s.cut_units(batch, shape, b);
  s.head_dim = shape.head_dim;
  s.list_states(batch, b);
  const auto table = static_cast<int64_t>(b.size());
  for (const Segment& segment : batch.segments) {
    const std::span<const int32_t> pages = batch.pages_of(segment);
    const size_t known = std::min(pages.size(), widest);
    b.insert(b.end(), pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(known));
    b.insert(b.end(), widest - known, 0);
  }
  s.list_kept(batch, b);
  const auto bytes = static_cast<int64_t>(b.size()) * 4;
  s.grow(s.batch, bytes);
  s.sending.send(s.stream, s.batch.data(), b.data(), static_cast<size_t>(bytes));
  s.ids = s.batch.as<int32_t>();
  s.positions = s.ids + s.rows;
  s.sequence = s.positions + s.rows;
  s.logit_rows = s.sequence + s.rows;
  s.page_of = s.ids + table;
  s.point_to_states();
  if (s.units.count > 0) s.units.table = s.logit_rows + s.logit_count;
  // This is scratch for rows that are attended to by several thread blocks, which are few. It has 32 MB, or more if a
  // unit needs it.
  const int64_t row_bytes = cuda::attention_parts(shape.heads, shape.head_dim) * 4;
  s.grow(s.attention, std::max(row_bytes * s.units.rows, std::min(row_bytes * s.rows, int64_t{32} << 20)));
  s.grow(s.arrived, s.rows * shape.heads * 4);
  s.grow(s.turns, static_cast<int64_t>(shape.rotations.size()) * s.rows * shape.head_dim * 4);
}

void Cuda::repeat(uint64_t what, const std::function<void()>& work) {
  State& s = *state_;
  if (s.kind != RowKind::output || s.rows > cuda::kRecordedRows || s.mode == Activations::f32) return work();
  const bool chains = State::may_chain();
  const auto joined = [&] {
    s.joining = s.rows <= cuda::kMostJoined && cuda::device_code().hopper;
    s.chaining = s.joining && s.rows == 1 && chains;
    work();
    s.flush();
    s.joining = s.chaining = false;
  };
  constexpr size_t kMostGraphs = 256;
  const std::array<int, 3> units{s.units.count, s.units.rows, s.units.of_sequence};
  const State::Shape shape{what, s.rows, s.logit_count, s.cuts, units, s.delta.count, s.mode, s.high_bits, chains};
  const auto found = s.graphs.find(shape);
  // The first time nothing is recorded, so what is done only once happens outside a graph.
  if (found == s.graphs.end()) {
    joined();
    if (s.graphs.size() >= kMostGraphs) s.graphs.clear();
    s.graphs.emplace(shape, cuda::Graph());
    return;
  }
  found->second.replay(s.stream, joined);
}

void Cuda::upcoming(std::span<const Linear* const> weights) {
  State& s = *state_;
  // The amounts were measured in a decode step on an H200. A larger amount delays the product before and reads that
  // are still needed in between. Products of integers already ask for many of their own bytes while they wait.
  const bool integers = s.joining && weights.size() > 0 && s.is_integers(**weights.begin());
  s.next_count = 0;
  if (weights.size() > 0) s.expected = s.rounding_for((*weights.begin())->spec, {});
  uint32_t room = uint32_t{integers ? 2u : 5u} << 20;
  for (const Linear* w : weights) {
    if (s.next_count == cuda::kMaxTogether || room == 0) break;
    if (w->is_viewed(s.high_bits)) {
      const cuda::LowbitShape& shape = w->view.lowbit.shape;
      constexpr uint32_t kPlane = cuda::kBlockRows * cuda::kBlockColumns / 2;
      const auto stride = static_cast<uint32_t>(shape.block_bytes());
      const auto pieces = static_cast<uint32_t>(std::min<int64_t>(shape.bytes() / stride, room / kPlane));
      s.next[s.next_count++] = {w->codes.data(), pieces * stride, kPlane, stride};
      room -= pieces * kPlane;
      continue;
    }
    const auto bytes = static_cast<uint32_t>(std::min<size_t>(w->codes.size(), room)) / 16 * 16;
    s.next[s.next_count++] = {w->codes.data(), bytes};
    room -= bytes;
  }
}

void Cuda::embed(const Linear& table, Matrix& x, float scale) {
  state_->flush();
  cuda::embed(state_->stream, table.values, state_->ids, state_->rows, x.data());
  if (scale != 1) cuda::scale_values(state_->stream, scale, state_->rows * x.columns, x.data());
}

Cuda::Acts Cuda::norm(const Matrix& x, const Matrix& weight, float eps) {
  State& s = *state_;
  check(x.columns <= cuda::kWidestNorm, "the CUDA backend normalises at most {} columns, not {}", cuda::kWidestNorm,
        x.columns);
  const Acts y = s.fresh_acts(s.rows, x.columns);
  s.make({x.data(), weight.data(), true, eps, y.rows, x.columns, y.kind});
  return y;
}

Cuda::Acts Cuda::norm_logit_rows(const Matrix& x, const Matrix& weight, float eps, int64_t first, int64_t count) {
  State& s = *state_;
  s.flush();
  Acts y = s.fresh_acts(count, x.columns, RowKind::output);
  y.whole = true;
  s.make({x.data(), weight.data(), true, eps, count, x.columns, y.kind, Gate::silu, s.logit_rows + first});
  return y;
}

void Cuda::normalise(Matrix& x, const Matrix& weight, float eps) {
  State& s = *state_;
  s.flush();
  const Acts y = s.fresh_acts(s.rows, x.columns);
  cuda::rms_norm(s.stream, x.data(), nullptr, weight.data(), eps, y.rows, x.columns, s.acts.as<float>(), {});
  cuda::on_device(s.stream, x.data(), s.acts.data(), static_cast<size_t>(y.rows * x.columns) * sizeof(float));
}

void Cuda::normalise(const Matrix& x, const Matrix& weight, float eps, Matrix& y) {
  State& s = *state_;
  s.flush();
  cuda::rms_norm(s.stream, x.data(), nullptr, weight.data(), eps, s.rows, x.columns, y.data(), {});
}

void Cuda::add_normed(const Matrix& y, const Matrix& weight, float eps, Matrix& x) {
  State& s = *state_;
  s.flush();
  const Acts normed = s.fresh_acts(s.rows, y.columns);
  cuda::rms_norm(s.stream, y.data(), nullptr, weight.data(), eps, normed.rows, y.columns, s.acts.as<float>(), {});
  cuda::add_values(s.stream, s.acts.as<float>(), normed.rows * y.columns, x.data());
}

void Cuda::linear(Acts input, std::span<const std::pair<const Linear*, Matrix*>> weights) {
  State& s = *state_;
  // Dense weights come before codes, whose product can wait for its reader, and those of few outputs go last.
  std::pair<const Linear*, Matrix*> sorted[8];
  State::Product narrow[cuda::kMostNarrow];
  assert(weights.size() <= std::size(sorted));
  const auto is_dense = [](const auto& output) { return output.first->values.half || output.first->values.single; };
  size_t dense = 0, count = 0, few = 0;
  for (const bool wanted : {true, false})
    for (const auto& output : weights) {
      if (is_dense(output) != wanted) continue;
      if (few < std::size(narrow) && s.is_narrow(input, *output.first))
        narrow[few++] = {output.first, output.second->data()};
      else
        sorted[count++] = output, dense += wanted;
    }
  const auto multiply = [&](std::span<const std::pair<const Linear*, Matrix*>> some) {
    if (some.empty() || s.defer(input, some, false)) return;
    State::Product products[8];
    for (size_t i = 0; i < some.size(); ++i) products[i] = {some[i].first, some[i].second->data()};
    s.multiply_together(input, {products, some.size()});
  };
  multiply({sorted, dense});
  multiply({sorted + dense, count - dense});
  s.multiply_narrow(input, {narrow, few});
}

void Cuda::linear_add(Acts input, const Linear& weight, Matrix& x) {
  const std::pair<const Linear*, Matrix*> output{&weight, &x};
  if (!state_->defer(input, {&output, 1}, true)) state_->multiply(input, weight, x.data(), true);
}

void Cuda::rope_append(Matrix& q, Matrix& k, const Matrix& v, const Matrix* q_norm, const Matrix* k_norm,
                       KvCache& cache, int layer) {
  State& s = *state_;
  s.flush();
  const AttentionShape& shape = cache.shape;
  const int which = shape.layers[static_cast<size_t>(layer)].rotation, e = shape.head_dim;
  const Rotation& rotation = shape.rotations[static_cast<size_t>(which)];
  const auto pairs = static_cast<int>(rotation.inverse_frequencies.size());
  const bool whole = turns_whole_head(shape, rotation);
  const float* frequencies = cache.frequencies.as<float>() + int64_t{which} * e;
  float* turns = s.turns.as<float>() + which * s.rows * e;
  if (!std::exchange(s.turned[static_cast<size_t>(which)], 1))
    cuda::rope_turns(s.stream, s.positions, s.rows, frequencies, e, whole ? rotation.scale : 1, turns);
  // Parts of heads are rotated here, after their norm; attention itself norms and rotates whole heads.
  const bool in_parts = !whole && pairs > 0;
  const auto norm_of = [](const Matrix* weight, bool here) { return weight && here ? weight->data() : nullptr; };
  if (in_parts || shape.query_scale != 1 || shape.query_growth != 0)
    cuda::prepare_heads(s.stream, s.positions, s.rows,
                        {frequencies + e / 2, in_parts ? pairs : 0, rotation.scale, shape.query_scale,
                         static_cast<float>(shape.query_growth), shape.query_growth_positions,
                         norm_of(q_norm, in_parts), norm_of(k_norm, in_parts), shape.norm_eps},
                        shape.heads, shape.kv_heads, e, q.data(), k.data());
  const cuda::FreshHeads fresh{
      q.data(), k.data(), v.data(), norm_of(q_norm, !in_parts), norm_of(k_norm, !in_parts), shape.norm_eps, turns};
  const bool in_units = s.units.count > 0 || s.units.of_sequence == 1;
  if (s.kind == RowKind::output && in_units &&
      cuda::attention_appends(State::kind_of(cache.format), shape.heads, shape.kv_heads, shape.head_dim,
                              s.units.of_sequence))
    s.fresh = fresh;
  else
    cuda::rope_append(s.stream, s.arguments(cache, layer), fresh);
}

Cuda::Acts Cuda::attend(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks) {
  State& s = *state_;
  s.flush();
  const AttentionShape& shape = cache.shape;
  const Acts y = s.fresh_acts(s.rows, int64_t{shape.heads} * shape.head_dim);
  cuda::AttentionArguments a = s.arguments(cache, layer);
  a.sinks = sinks ? sinks->data() : nullptr;
  if (y.kind == RowKind::prompt && s.mode != Activations::f32 && cuda::attends_rows(a)) {
    cuda::attend_rows(s.stream, a, q.data(), s.acts.as<float>());
    return y;
  }
  const int64_t row_floats = cuda::attention_parts(shape.heads, shape.head_dim);
  const cuda::AttentionScratch scratch{s.cuts, static_cast<int64_t>(s.attention.size()) / 4 / row_floats,
                                       s.attention.as<float>(), s.arrived.as<uint32_t>()};
  const bool prepares =
      cuda::attention_prepares(State::kind_of(cache.format), shape.heads, shape.kv_heads, shape.head_dim);
  cuda::attend(s.stream, a, std::exchange(s.fresh, {}), q.data(), scratch, s.acts.as<float>(),
               prepares ? s.blocks_for(y.kind, s.expected) : cuda::PreparedRows{});
  return y;
}

Cuda::Acts Cuda::gated(const Matrix& gate, const Matrix& up, const Gating& how, int64_t rows) {
  State& s = *state_;
  Acts y = s.fresh_acts(rows, gate.columns);
  const State::Source source{gate.data(), up.data(), false, 0, rows, gate.columns, y.kind, how};
  if (!s.routing.alone) {
    s.make(source);
    return y;
  }
  s.unwritten = source;  // multiply_alone() prepares them in its own form
  y.slots_per_input = 1;
  return y;
}

Cuda::Acts Cuda::turn(Acts acts, const Hadamard& how, const Matrix& signs) {
  State& s = *state_;
  assert(s.is_alive(acts) && acts.columns == how.columns && "the newest acts are turned");
  check(how.block() <= cuda::kWidestTurn, "the CUDA backend turns blocks of {} columns at most, not {}",
        cuda::kWidestTurn, how.block());
  s.flush();
  s.write_values();
  if (acts.values != s.acts.as<float>())
    cuda::on_device(s.stream, s.acts.data(), acts.values,
                    static_cast<size_t>(acts.rows * acts.columns) * sizeof(float));
  cuda::turn_rows(s.stream,
                  {how.columns, how.stride, how.doubled * how.stride, how.core, static_cast<float>(how.scale())},
                  signs.data(), acts.rows, s.acts.as<float>());
  // Preparations of the old values do not hold for the new ones.
  return s.fresh_acts(acts.rows, acts.columns, acts.kind);
}

Cuda::Order Cuda::make_order(std::span<const int32_t> columns, int64_t kept) {
  State& s = *state_;
  s.gathers = true;
  s.grow(s.gathered_acts, static_cast<int64_t>(s.acts.size()));
  Order order{cuda::DeviceBuffer(columns.size_bytes()), static_cast<int64_t>(columns.size()), kept};
  cuda::to_device(s.stream, order.columns.data(), columns.data(), columns.size_bytes());
  cuda::wait_for(s.stream);
  return order;
}

Cuda::Acts Cuda::gather(Acts acts, const Order& order) {
  State& s = *state_;
  assert(s.is_alive(acts) && "the newest acts are gathered");
  s.flush();
  s.write_values();
  cuda::gather_columns(s.stream, acts.values, acts.rows, acts.columns,
                       {order.columns.as<int32_t>(), order.count, order.kept}, clips_groups(s.mode) ? kGroupClip : 1.0f,
                       s.gathered_acts.as<float>());
  Acts out = s.fresh_acts(acts.rows, order.count, acts.kind);
  out.values = s.gathered_acts.as<float>();
  out.fine = 2 * order.kept;
  return out;
}

Cuda::Acts Cuda::input(const Matrix& x) {
  State& s = *state_;
  s.flush();
  Acts y = s.fresh_acts(s.rows, x.columns);
  y.values = x.data();
  return y;
}

void Cuda::read(Acts acts, std::span<float> host) {
  state_->flush();
  state_->write_values();
  cuda::from_device(state_->stream, host.data(), acts.values,
                    static_cast<size_t>(acts.rows * acts.columns) * sizeof(float));
}

}  // namespace fidelio
