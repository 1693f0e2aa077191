#include "sensitivity/meter.h"

#include <algorithm>

#include "runtime/taps.h"

namespace fidelio {
namespace {

// Returns the first layer at whose output a change of this linear shows: its own, 0 for the embedding, and L (only
// the logits change) for an untied head.
int first_layer_of(const ModelConfig& config, LinearId id) {
  if (id.role == Role::head) return config.L;
  return std::max(id.layer, 0);
}

}  // namespace

std::vector<LinearGroup> groups_of(const ModelConfig& config, Grouping grouping, bool with_embedding,
                                   bool experts_whole) {
  std::vector<LinearGroup> groups;
  if (with_embedding) {
    groups.push_back({"embedding", {{-1, Role::embedding}}});
    if (!config.tie_embeddings) groups.push_back({"head", {{-1, Role::head}}});
    if (config.per_layer > 0) groups.push_back({"per_layer_table", {{-1, Role::per_layer_table}}});
  }
  for (int i = 0; i < config.L; ++i) {
    for (const Stop& stop : stops_of(config, i)) {
      const std::vector<LinearId> ids = linears_of(config, i, stop);
      if (experts_whole && ids.front().expert >= 0) {
        const std::string name = fmt::format("layers.{}.experts", i);
        if (groups.back().name != name) groups.push_back({name, {}});
        groups.back().linears.insert(groups.back().linears.end(), ids.begin(), ids.end());
        continue;
      }
      if (grouping == Grouping::fused) groups.push_back({stop_name(i, stop), {}});
      for (Role role : stop.roles) {
        if (grouping == Grouping::single) groups.push_back({to_string(LinearId{i, role}), {}});
        for (LinearId id : ids)  // with the linears of all experts
          if (id.role == role) groups.back().linears.push_back(id);
      }
    }
  }
  return groups;
}

FidelityMeter::FidelityMeter(Runner& runner, const std::vector<std::vector<int32_t>>& sequences, ThreadPool& pool,
                             Activations mode)
    : runner_(runner), distances_(make_row_distances(runner.gpu(), pool)), mode_(mode) {
  exact_ = runner.allocate(runner.options().max_logit_rows * runner.config().v);
  changed_ = runner.allocate(runner.options().max_logit_rows * runner.config().v);
  sequences_ = static_cast<int64_t>(sequences.size());
  for (PackedBatch& packed : pack_batches(sequences, runner.options().max_rows, runner.cache_pages())) {
    State state;
    state.packed = std::move(packed);
    Batch& batch = state.packed.batch;
    for (size_t s = 0; s < batch.segments.size(); ++s)
      for (int32_t i = 0; i < batch.segments[s].rows; ++i) {
        state.sequence_of_row.push_back(static_cast<int32_t>(state.packed.sequences[s]));
        // The last position predicts nothing within the text; it is left out, as perplexity leaves it out.
        if (i + 1 < batch.segments[s].rows) batch.logit_rows.push_back(batch.segments[s].first_row + i);
      }
    states_.push_back(std::move(state));
  }
  for (LinearId id : linears_of(runner.config())) original_[id] = runner.linear(id);
  committed_ = current_ = original_;
  head_ = runner.linear(head_of(runner.config()));
  int64_t positions = 0;
  for (const State& s : states_) positions += static_cast<int64_t>(s.packed.batch.logit_rows.size());
  const bool keep_logits = kept_logit_bytes(positions, runner.config().v) > 0;
  for (State& s : states_) {
    first_pass(s, Activations::f32);
    s.reference = s.streams.back();
    const auto rows = static_cast<int64_t>(s.packed.batch.logit_rows.size()), most = runner.options().max_logit_rows;
    if (keep_logits) s.logits = runner.allocate(rows * runner.config().v);
    for (int64_t first = 0; keep_logits && first < rows; first += most)
      read_logits(s, s.reference, first, std::min(most, rows - first), s.logits.get() + first * runner.config().v);
    if (mode_ != Activations::f32) first_pass(s, mode_);
  }
}

// Runs the reference's weights through every layer.
void FidelityMeter::first_pass(State& s, Activations mode) {
  const int L = runner_.config().L;
  runner_.begin(s.packed.batch, mode);
  runner_.embed();
  s.streams.assign(static_cast<size_t>(L) + 1, {});
  for (int layer = 0; layer <= L; ++layer) {
    keep(s, s.streams[static_cast<size_t>(layer)]);
    if (layer < L) runner_.layers(layer, layer + 1);
  }
}

void FidelityMeter::keep(const State& s, Values& stream) {
  stream = runner_.allocate(s.packed.batch.rows() * runner_.config().d);
  runner_.read_stream(all(s, stream));
}

void FidelityMeter::assign(LinearId id, PackedLinear weight) {
  runner_.set_linear(id, weight);
  current_[id] = std::move(weight);
}

void FidelityMeter::restore(LinearId id) { assign(id, original_.at(id)); }

MeterResult FidelityMeter::measure() {
  const int L = runner_.config().L;
  first_ = L;
  for (const auto& [id, weight] : current_)
    if (weight != committed_.at(id)) first_ = std::min(first_, first_layer_of(runner_.config(), id));
  const bool embedding_changed = current_.at({-1, Role::embedding}) != committed_.at({-1, Role::embedding});

  MeterResult result;
  result.sequence_kl.assign(static_cast<size_t>(sequences_), 0);
  result.sequence_loss = result.sequence_kl;
  std::vector<int64_t> positions(static_cast<size_t>(sequences_), 0);
  for (State& s : states_) {
    runner_.begin(s.packed.batch, mode_);
    s.fresh.assign(static_cast<size_t>(L) + 1, {});
    if (embedding_changed) {
      runner_.embed();
      keep(s, s.fresh[0]);
    } else {
      prepare_layers(runner_, first_, L, [&](int layer) { return all(s, s.streams[static_cast<size_t>(layer)]); });
      runner_.write_stream(all(s, s.streams[static_cast<size_t>(first_)]));
    }
    for (int layer = first_; layer < L; ++layer) {
      runner_.layers(layer, layer + 1);
      keep(s, s.fresh[static_cast<size_t>(layer) + 1]);
    }
    compare(s, result, positions);
  }
  int64_t total = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    result.kl += result.sequence_kl[i];
    result.loss += result.sequence_loss[i];
    total += positions[i];
    if (positions[i] == 0) continue;
    result.sequence_kl[i] /= static_cast<double>(positions[i]);
    result.sequence_loss[i] /= static_cast<double>(positions[i]);
  }
  result.kl /= static_cast<double>(total);
  result.loss /= static_cast<double>(total);
  return result;
}

void FidelityMeter::read_logits(const State& s, const Values& stream, int64_t first, int64_t count, float* to) {
  runner_.write_stream(all(s, stream));
  runner_.read_logits(first, count, {to, static_cast<size_t>(count * runner_.config().v)});
}

// Returns rows [first, first + count) of the reference's logits, either kept ones or computed again from its stream.
// In the second case the runner is left with the reference's head and activations.
const float* FidelityMeter::reference_logits(const State& s, int64_t first, int64_t count) {
  if (s.logits) return s.logits.get() + first * runner_.config().v;
  if (mode_ != Activations::f32) runner_.begin(s.packed.batch, Activations::f32);
  runner_.set_linear(head_of(runner_.config()), head_);
  read_logits(s, s.reference, first, count, exact_.get());
  return exact_.get();
}

// Compares the logits of the reference with those of the current stream, a few rows at a time.
void FidelityMeter::compare(State& s, MeterResult& result, std::vector<int64_t>& positions) {
  const PackedLinear head_now = runner_.linear(head_of(runner_.config()));
  const Values& stream = s.fresh.back() ? s.fresh.back() : s.streams.back();
  const auto rows = static_cast<int64_t>(s.packed.batch.logit_rows.size());
  for (int64_t first = 0; first < rows; first += runner_.options().max_logit_rows) {
    const int64_t count = std::min(runner_.options().max_logit_rows, rows - first);
    const float* reference = reference_logits(s, first, count);
    if (mode_ != Activations::f32 && !s.logits) runner_.begin(s.packed.batch, mode_);
    runner_.set_linear(head_of(runner_.config()), head_now);
    read_logits(s, stream, first, count, changed_.get());
    std::vector<RowDistance> found(static_cast<size_t>(count));
    distances_->measure(reference, changed_.get(), runner_.config().v, found);
    for (int64_t row = 0; row < count; ++row) {
      const auto sequence = static_cast<size_t>(
          s.sequence_of_row[static_cast<size_t>(s.packed.batch.logit_rows[static_cast<size_t>(first + row)])]);
      result.sequence_kl[sequence] += found[static_cast<size_t>(row)].kl;
      result.sequence_loss[sequence] += 1 - found[static_cast<size_t>(row)].ear;
      ++positions[sequence];
    }
  }
}

void FidelityMeter::commit() {
  for (State& s : states_)
    for (size_t i = 0; i < s.fresh.size(); ++i)
      if (s.fresh[i]) s.streams[i] = std::move(s.fresh[i]);
  committed_ = current_;
}

}  // namespace fidelio
