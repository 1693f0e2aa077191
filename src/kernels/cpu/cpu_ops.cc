// This file has the operations of the Cpu backend between the linears.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_state.h"
#include "step/routing.h"

namespace fidelio {
namespace {

constexpr int64_t kTileRows = 256;  // the most query rows (positions x heads of a kv head) of an attention tile
// attend_split has at most this many partial results, one for each (query row, head, chunk).
constexpr int64_t kMaxPartials = 4096;

}  // namespace

// --- a step --------------------------------------------------------------------------------------------------------
void Cpu::State::reserve_heads(const AttentionShape& wanted) {
  const bool same =
      shape.heads == wanted.heads && shape.kv_heads == wanted.kv_heads && shape.head_dim == wanted.head_dim;
  if (!same || shape.layers != wanted.layers || shape.rotations != wanted.rotations) shape = wanted;
  shape.norm_eps = wanted.norm_eps;
  shape.query_scale = wanted.query_scale;
  shape.query_growth = wanted.query_growth;
  shape.query_growth_positions = wanted.query_growth_positions;
  const int64_t bytes = max_rows * pairs_before(static_cast<int>(shape.rotations.size())) * int64_t{sizeof(float)};
  if (static_cast<int64_t>(cosine.size()) < bytes) {
    cosine = Buffer(static_cast<size_t>(bytes));
    sine = Buffer(static_cast<size_t>(bytes));
  }
  query_factor.reserve(static_cast<size_t>(max_rows));
  int64_t group = 1, head = shape.head_dim;
  for (int layer = 0; layer < shape.depth(); ++layer) {
    group = std::max<int64_t>(group, shape.heads / shape.kv_heads_of(layer));
    head = std::max<int64_t>(head, shape.head_dim_of(layer));
  }
  if (group == scratch_group && head == scratch_head) return;
  scratch_group = group, scratch_head = head;
  tile_positions = std::clamp<int64_t>(kTileRows / group, 1, kPageTokens);
  attend_scratch_floats = (cpu::attend_scratch_floats(tile_positions * group, head) + 15) / 16 * 16;
  attend_scratch = Buffer(static_cast<size_t>(attend_scratch_floats * pool.threads()) * sizeof(float));
  partial = Buffer(static_cast<size_t>(kMaxPartials * (cpu::padded_head(head) + 2)) * sizeof(float));
}

void Cpu::State::cut_tiles(const Batch& batch) {
  tiles.clear();
  pages.assign(batch.pages.begin(), batch.pages.end());
  for (const Segment& segment : batch.segments) {
    const int32_t end = segment.first_row + segment.rows;
    for (int32_t row = segment.first_row; row < end;) {
      const int64_t position = segment.position + row - segment.first_row;
      assert(position / kPageTokens < segment.pages && "a position without a page");
      const int32_t rows = static_cast<int32_t>(std::min<int64_t>(end - row, kPageTokens - position % kPageTokens));
      tiles.push_back({row, rows, position, segment.first_page});
      row += rows;
    }
  }
}

int64_t Cpu::State::pairs_before(int rotation) const {
  int64_t pairs = 0;
  for (int i = 0; i < rotation; ++i)
    pairs += static_cast<int64_t>(shape.rotations[static_cast<size_t>(i)].inverse_frequencies.size());
  return pairs;
}

// Computes cos and sin for every row's position, in double, and rounds them. There is no table, so positions have no
// bound.
void Cpu::State::compute_rotations() {
  const auto rows = static_cast<int64_t>(positions.size());
  int64_t before = 0;
  for (const Rotation& rotation : shape.rotations) {
    const auto pairs = static_cast<int64_t>(rotation.inverse_frequencies.size());
    float *cosines = cosine.as<float>() + max_rows * before, *sines = sine.as<float>() + max_rows * before;
    for_rows(pool, rows, 32 * pairs, [&](int64_t row) {
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(positions[static_cast<size_t>(row)]) *
                             static_cast<double>(rotation.inverse_frequencies[static_cast<size_t>(i)]);
        cosines[row * pairs + i] = static_cast<float>(std::cos(angle) * static_cast<double>(rotation.scale));
        sines[row * pairs + i] = static_cast<float>(std::sin(angle) * static_cast<double>(rotation.scale));
      }
    });
    before += pairs;
  }
  query_factor.clear();
  for (int32_t position : positions) query_factor.push_back(shape.query_factor(position));
}

void Cpu::begin(const Batch& batch, Reading reading, const AttentionShape& shape) {
  State& s = *state_;
  assert(batch.rows() <= s.max_rows && "more rows than reserved");
  s.reading = reading;
  s.reserve_heads(shape);
  s.ids.assign(batch.ids.begin(), batch.ids.end());
  s.positions.clear();
  for (const Segment& segment : batch.segments)
    for (int32_t i = 0; i < segment.rows; ++i) s.positions.push_back(segment.position + i);
  s.logit_rows.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  s.segments.assign(batch.segments.begin(), batch.segments.end());
  s.kept.assign(batch.kept.begin(), batch.kept.end());
  s.cut_tiles(batch);
  s.compute_rotations();
}

void Cpu::embed(const Linear& table, Matrix& x, float scale) {
  State& s = *state_;
  assert(table.in == x.columns);
  // Single rows cost little, so they are read whole.
  const cpu::LinearKernel& kernel = table.kernel(s.reading.activations);
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns, [&](int64_t row) {
    kernel.decode_row(table, s.ids[static_cast<size_t>(row)], x.row(row));
    if (scale != 1)
      for (float& value : std::span(x.row(row), static_cast<size_t>(x.columns))) value *= scale;
  });
}

Cpu::Acts Cpu::State::publish(int64_t rows, int64_t columns) {
  assert(rows * columns <= max_rows * max_columns && "more rows or columns than reserved");
  return {acts.as<float>(), rows, columns, ++version};
}

Cpu::Acts Cpu::norm(const Matrix& x, const Matrix& weight, float eps) {
  State& s = *state_;
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), x.columns);
  float* y = s.acts.as<float>();
  for_rows(s.pool, out.rows, out.columns,
           [&](int64_t row) { s.kernels.norm(x.row(row), weight.data(), eps, y + row * out.columns, out.columns); });
  return out;
}

Cpu::Acts Cpu::norm_logit_rows(const Matrix& x, const Matrix& weight, float eps, int64_t first, int64_t count) {
  State& s = *state_;
  Acts out = s.publish(count, x.columns);
  out.for_head = true;
  float* y = s.acts.as<float>();
  for_rows(s.pool, out.rows, out.columns, [&](int64_t row) {
    const int64_t from = s.logit_rows[static_cast<size_t>(first + row)];
    s.kernels.norm(x.row(from), weight.data(), eps, y + row * out.columns, out.columns);
  });
  return out;
}

void Cpu::normalise(const Matrix& x, const Matrix& weight, float eps, Matrix& y) {
  State& s = *state_;
  assert(weight.columns == x.columns);
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns,
           [&](int64_t row) { s.kernels.norm(x.row(row), weight.data(), eps, y.row(row), x.columns); });
}

void Cpu::add_normed(const Matrix& y, const Matrix& weight, float eps, Matrix& x) {
  State& s = *state_;
  assert(weight.columns == x.columns && y.columns == x.columns);
  const Acts scratch = s.publish(static_cast<int64_t>(s.ids.size()), x.columns);
  for_rows(s.pool, scratch.rows, x.columns, [&](int64_t row) {
    float* normed = s.acts.as<float>() + row * x.columns;
    s.kernels.norm(y.row(row), weight.data(), eps, normed, x.columns);
    for (int64_t i = 0; i < x.columns; ++i) x.row(row)[i] += normed[i];
  });
}

Cpu::Acts Cpu::gated(const Matrix& gate, const Matrix& up, const Gating& how, int64_t rows) {
  State& s = *state_;
  const auto function = s.gate_function(how.function);
  const Acts out = s.publish(rows, gate.columns);
  float* y = s.acts.as<float>();
  for_rows(s.pool, out.rows, out.columns, [&](int64_t row) {
    if (how.function == Gate::clamped)
      s.kernels.clamped(gate.row(row), up.row(row), how.alpha, how.limit, y + row * out.columns, out.columns);
    else
      function(gate.row(row), up.row(row), y + row * out.columns, out.columns);
  });
  return out;
}

void Cpu::route(const Matrix& x, const Linear& router, const Matrix& adjustments, const RoutingRule& rule, Followers,
                Matrix& logits) {
  const std::pair<const Linear*, Matrix*> product[] = {{&router, &logits}};
  const Acts acts = input(x);
  linear(acts, product);
  fidelio::route({logits.data(), static_cast<size_t>(acts.rows * rule.experts)}, rule,
                 {adjustments.data(), static_cast<size_t>(adjustments.rows * adjustments.columns)}, state_->routes);
}
void Cpu::follow(const Routes& routes) { state_->routes = routes; }
const Routes& Cpu::routes() const { return state_->routes; }

Cpu::Acts Cpu::routed(const Matrix& x) {
  State& s = *state_;
  const Acts out = s.publish(s.routes.count(), x.columns);
  float* y = s.acts.as<float>();
  for_rows(s.pool, out.rows, out.columns, [&](int64_t slot) {
    const float* row = x.row(s.routes.rows[static_cast<size_t>(slot)]);
    std::copy(row, row + x.columns, y + slot * x.columns);
  });
  return out;
}

void Cpu::add_routed(const Matrix& y, Matrix& x) {
  State& s = *state_;
  const Routes& routes = s.routes;
  assert(y.columns == x.columns && y.rows >= routes.count());
  for_rows(s.pool, static_cast<int64_t>(s.ids.size()), x.columns * routes.per_row, [&](int64_t row) {
    float* sum = x.row(row);
    for (int i = 0; i < routes.per_row; ++i) {
      const auto slot = static_cast<size_t>(routes.slots[static_cast<size_t>(row * routes.per_row + i)]);
      const float share = routes.shares[slot], *part = y.row(static_cast<int64_t>(slot));
      for (int64_t c = 0; c < x.columns; ++c) sum[c] += share * part[c];
    }
  });
}

Cpu::Acts Cpu::turn(Acts acts, const Hadamard& how, const Matrix& signs) {
  State& s = *state_;
  assert(acts.version == s.version && acts.columns == how.columns && "the newest acts are turned");
  acts.version = ++s.version;  // preparations of the old values do not hold for the new ones
  const cpu::TurnArgs args{how.columns, how.stride,   how.doubled * how.stride,
                           how.core,    signs.data(), static_cast<float>(how.scale())};
  float *rows = s.acts.as<float>(), *scratch = s.turn_scratch.as<float>();
  for_rows(s.pool, acts.rows, 16 * acts.columns, [&](int64_t row, int thread) {
    s.kernels.turn(args, rows + row * acts.columns, scratch + thread * s.max_columns);
  });
  return acts;
}

Cpu::TokenSet Cpu::make_token_set(std::span<const int32_t> tokens, int64_t) { return {{tokens.begin(), tokens.end()}}; }

void Cpu::spread(const Matrix& few, const TokenSet& tokens, int64_t rows, Matrix& logits) {
  for_rows(state_->pool, rows, logits.columns, [&](int64_t row) {
    const float* from = few.data() + row * few.columns;
    float* to = logits.data() + row * logits.columns;
    std::fill_n(to, logits.columns, -std::numeric_limits<float>::infinity());
    for (int32_t token : tokens.tokens) to[token] = *from++;
  });
}

Cpu::Order Cpu::make_order(std::span<const int32_t> columns, int64_t kept) {
  State& s = *state_;
  s.gathers = true;
  if (s.gathered_acts.size() < s.acts.size()) s.gathered_acts = Buffer(s.acts.size());
  return {{columns.begin(), columns.end()}, kept};
}

Cpu::Acts Cpu::gather(Acts acts, const Order& order) {
  State& s = *state_;
  assert(acts.version == s.version && "the newest acts are gathered");
  const auto columns = static_cast<int64_t>(order.columns.size()), coarse = columns - 2 * order.kept;
  const bool clips = clips_groups(s.reading.activations);
  Acts out = s.publish(acts.rows, columns);
  out.values = s.gathered_acts.as<float>();
  out.fine = 2 * order.kept;
  const float* from = acts.values;
  float* to = s.gathered_acts.as<float>();
  for_rows(s.pool, acts.rows, 2 * columns, [&](int64_t row) {
    const float* x = from + row * acts.columns;
    float* y = to + row * columns;
    for (int64_t i = 0; i < columns; ++i) y[i] = x[order.columns[static_cast<size_t>(i)]];
    for (int64_t first = 0; clips && first < coarse; first += order.kept) {
      const std::span group(y + first, static_cast<size_t>(order.kept));
      float largest = 0;
      for (const float value : group) largest = std::max(largest, std::fabs(value));
      const float most = kGroupClip * largest;
      for (float& value : group) value = std::min(std::max(value, -most), most);
    }
  });
  return out;
}

Cpu::Acts Cpu::input(const Matrix& matrix) {
  State& s = *state_;
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), matrix.columns);
  std::memcpy(s.acts.data(), matrix.data(), static_cast<size_t>(out.rows * out.columns) * sizeof(float));
  return out;
}

void Cpu::read(Acts acts, std::span<float> host) {
  assert(acts.version == state_->version && static_cast<int64_t>(host.size()) >= acts.rows * acts.columns);
  std::memcpy(host.data(), acts.values, static_cast<size_t>(acts.rows * acts.columns) * sizeof(float));
}

// --- attention -----------------------------------------------------------------------------------------------------
void Cpu::rope_append(Matrix& q, Matrix& k, const Matrix& v, const Matrix* q_norm, const Matrix* k_norm, KvCache& cache,
                      int layer) {
  State& s = *state_;
  const int64_t e = s.shape.head_dim_of(layer), hk = s.shape.kv_heads_of(layer);
  const cpu::KvRecord record{static_cast<cpu::KvKind>(cache.format), e};
  std::byte* base = cache.storage.data() + cache.layers[static_cast<size_t>(layer)];
  s.pool.run(static_cast<int64_t>(s.tiles.size()), [&](int64_t job, int) {
    const State::Tile& tile = s.tiles[static_cast<size_t>(job)];
    for (int64_t row = tile.first_row; row < tile.first_row + tile.rows; ++row) {
      s.turn_query(q, row, layer, q_norm);
      const int64_t position = tile.first_position + row - tile.first_row;
      const int64_t page = s.pages[static_cast<size_t>(tile.pages + position / kPageTokens)];
      for (int64_t head = 0; head < hk; ++head) {
        s.turn(k.row(row) + head * e, row, layer, k_norm);
        s.kernels.append(record, base + (page * hk + head) * record.bytes(), static_cast<int>(position % kPageTokens),
                         k.row(row) + head * e, v.row(row) + head * e);
      }
    }
  });
}

cpu::AttendArgs Cpu::State::attend_args(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks,
                                        const Tile& tile, int64_t head) {
  const int e = shape.head_dim_of(layer);
  const cpu::KvRecord record{static_cast<cpu::KvKind>(cache.format), e};
  const int64_t row_floats = int64_t{shape.heads} * e;
  cpu::AttendArgs a{};
  a.record = record;
  a.layer = cache.storage.data() + cache.layers[static_cast<size_t>(layer)];
  a.pages = pages.data() + tile.pages;
  a.kv_heads = shape.kv_heads_of(layer);
  a.heads = shape.heads;
  a.window = shape.layers[static_cast<size_t>(layer)].window;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(e)));
  a.sinks = sinks ? sinks->data() : nullptr;
  a.q = q.row(tile.first_row);
  a.out = acts.as<float>() + tile.first_row * row_floats;
  a.rows = tile.rows;
  a.first_position = tile.first_position;
  a.kv_head = static_cast<int>(head);
  constexpr int64_t kChunk = int64_t{cpu::kChunkPages} * kPageTokens;
  a.first_chunk = a.window > 0 ? std::max<int64_t>(0, tile.first_position - a.window + 1) / kChunk : 0;
  a.last_chunk = (tile.first_position + tile.rows - 1) / kChunk + 1;
  return a;
}

// Spreads the chunks of long histories of few rows over the threads and merges them afterwards. The order is that in
// which a single thread merges them, so the bits are the same. Returns false if this is not worth it, or if there is
// no room for so many partial results.
bool Cpu::State::attend_split(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks) {
  const int64_t hk = shape.kv_heads_of(layer), group = shape.heads / hk, count = static_cast<int64_t>(tiles.size());
  int64_t chunks = 0, rows = 0;
  for (const Tile& tile : tiles) {
    const cpu::AttendArgs a = attend_args(q, cache, layer, sinks, tile, 0);
    chunks = std::max(chunks, a.last_chunk - a.first_chunk);
    rows = std::max<int64_t>(rows, tile.rows);
  }
  if (pool.threads() == 1 || chunks < 2 || count * hk >= 4 * pool.threads() || rows > tile_positions) return false;
  if (count * hk * chunks * rows * group > kMaxPartials) return false;
  const int64_t width = cpu::padded_head(shape.head_dim_of(layer)) + 2,
                share = chunks * rows * group * width;  // the floats of one (tile, kv head)
  const auto args = [&](int64_t item, int thread) {
    cpu::AttendArgs a = attend_args(q, cache, layer, sinks, tiles[static_cast<size_t>(item / hk)], item % hk);
    a.scratch = thread_scratch(thread);
    a.partial = partial.as<float>() + item * share;
    return a;
  };
  pool.run(count * hk * chunks, [&](int64_t job, int thread) {
    cpu::AttendArgs a = args(job / chunks, thread);
    const int64_t chunk = job % chunks;
    if (a.first_chunk + chunk >= a.last_chunk) return;
    a.partial += chunk * a.rows * group * width;
    a.first_chunk += chunk;
    a.last_chunk = a.first_chunk + 1;
    kernels.attend(a);
  });
  pool.run(count * hk, [&](int64_t item, int thread) {
    const cpu::AttendArgs a = args(item, thread);
    kernels.merge(a, a.partial);
  });
  return true;
}

Cpu::Acts Cpu::attend(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks) {
  State& s = *state_;
  const int64_t hk = s.shape.kv_heads_of(layer);
  const Acts out = s.publish(static_cast<int64_t>(s.ids.size()), int64_t{s.shape.heads} * s.shape.head_dim_of(layer));
  if (s.attend_split(q, cache, layer, sinks)) return out;
  // A tile has several parts if its kv head has many heads.
  const int64_t parts = (kPageTokens + s.tile_positions - 1) / s.tile_positions;
  const int64_t tiles = static_cast<int64_t>(s.tiles.size());
  s.pool.run(tiles * parts * hk, [&](int64_t job, int thread) {
    // The longest histories come first.
    State::Tile tile = s.tiles[static_cast<size_t>(tiles - 1 - job / (parts * hk))];
    const int64_t skip = job / hk % parts * s.tile_positions;
    if (skip >= tile.rows) return;
    tile.first_row += static_cast<int32_t>(skip);
    tile.first_position += skip;
    tile.rows = static_cast<int32_t>(std::min<int64_t>(tile.rows - skip, s.tile_positions));
    cpu::AttendArgs a = s.attend_args(q, cache, layer, sinks, tile, job % hk);
    a.scratch = s.thread_scratch(thread);
    s.kernels.attend(a);
  });
  return out;
}

}  // namespace fidelio
