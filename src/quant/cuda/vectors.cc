#include "quant/cuda/vectors.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio::cuda {
namespace {

constexpr int kIterations = 16, kConjugateSteps = 4, kBookPasses = 3;  // the same as on the host

template <typename T>
void upload(Stream stream, DeviceBuffer& buffer, std::span<const T> values) {
  reserve(stream, buffer, static_cast<int64_t>(values.size_bytes()));
  to_device(stream, buffer.data(), values.data(), values.size_bytes());
  wait_for(stream);  // the host's values may be freed when this returns
}

std::vector<VectorTile> tiles_of_rows(const VectorShape& s) {
  std::vector<VectorTile> tiles;
  for (int64_t b = 0; b < s.blocks; ++b)
    for (int64_t r = s.first_row(b); r < s.first_row(b + 1); r += kVectorTile)
      tiles.push_back({static_cast<int32_t>(b), static_cast<int32_t>(r),
                       static_cast<int32_t>(std::min<int64_t>(kVectorTile, s.first_row(b + 1) - r)), 0});
  return tiles;
}

std::vector<VectorTile> tiles_of_samples(const Vectors::Samples& samples, int64_t vectors) {
  std::vector<VectorTile> tiles;
  int32_t at = 0;
  for (size_t b = 0; b < samples.size(); ++b)
    for (size_t i = 0; i < samples[b].size(); ++i, ++at) {
      const auto place = static_cast<int32_t>(std::max(0, samples[b][i]) % vectors);
      if (i == 0 || tiles.back().place != place || tiles.back().count == kVectorTile)
        tiles.push_back({static_cast<int32_t>(b), at, 0, place});
      ++tiles.back().count;
    }
  return tiles;
}

}  // namespace

bool Vectors::takes(const FormatSpec& spec) {
  return spec.kind == Kind::vq && vector_search_fits(1 << (spec.bits - spec.signs));
}

template <typename T>
std::vector<T> Vectors::host(const DeviceBuffer& buffer, int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  from_device(stream_, values.data(), buffer.data(), values.size() * sizeof(T));
  return values;
}

VectorState Vectors::state() const {
  VectorState s;
  s.out = shape_.out, s.padded = shape_.vectors * kVectorDim, s.vectors = shape_.vectors;
  s.blocks = static_cast<int>(shape_.blocks), s.entries = static_cast<int>(shape_.entries), s.signs = shape_.signs;
  s.block = block_.as<int32_t>();
  s.tiles = tiles_.as<VectorTile>(), s.tile_count = tile_count_;
  s.w = w_.as<float>();
  s.row = row_.as<float>(), s.column = column_.as<float>(), s.metrics = metrics_.as<float>();
  s.book = book_.as<float>();
  s.code = code_.as<uint32_t>();
  s.corrected = corrected_.as<uint8_t>();
  s.correction = correction_.as<int8_t>(), s.correction_scale = correction_scale_.as<uint16_t>();
  s.done = done_.as<float>(), s.error = error_.as<float>();
  s.level = level_.as<int8_t>();
  return s;
}

void Vectors::begin(const VectorShape& shape, SecondOrder& ordered, std::span<const int32_t> columns,
                    const float* values) {
  shape_ = shape;
  ordered_ = &ordered;
  shared_ = corrects_ = false;
  const int64_t out = shape.out, padded = shape.vectors * kVectorDim, all = out * padded;
  check(ordered.in() == padded && static_cast<int64_t>(columns.size()) == padded,
        "{} columns in working order for a Hessian of {} and vectors of {}", columns.size(), ordered.in(), padded);
  for (DeviceBuffer* matrix : {&w_, &done_, &error_, &gradient_, &spread_, &bent_}) reserve(stream_, *matrix, all * 4);
  for (DeviceBuffer* bytes : {&level_, &correction_}) reserve(stream_, *bytes, all);
  reserve(stream_, code_, out * shape.vectors * 4);
  reserve(stream_, corrected_, out * shape.vectors);
  reserve(stream_, correction_scale_, out * shape.vectors * 2);
  reserve(stream_, row_, out * 4);
  for (DeviceBuffer* column : {&column_, &metrics_, &price_}) reserve(stream_, *column, padded * 4);
  reserve(stream_, book_, shape.blocks * shape.entries * kVectorDim * 4);
  reserve(stream_, book_scale_, shape.blocks * 4);
  reserve(stream_, change_, out * kVectorBlock * 4);
  reserve(stream_, inverse_, padded * kVectorDim * 8);
  reserve(stream_, sums_, out * 8);
  zero_device(stream_, corrected_.data(), static_cast<size_t>(out * shape.vectors));
  std::vector<int32_t> block(static_cast<size_t>(out));
  for (int64_t b = 0; b < shape.blocks; ++b)
    std::fill(block.begin() + shape.first_row(b), block.begin() + shape.first_row(b + 1), static_cast<int32_t>(b));
  upload<int32_t>(stream_, block_, block);
  const std::vector<VectorTile> tiles = tiles_of_rows(shape);
  upload<VectorTile>(stream_, tiles_, tiles);
  tile_count_ = static_cast<int64_t>(tiles.size());
  upload(stream_, columns_, columns);
  gather_vectors(stream_, values, ordered.diagonal(), columns_.as<int32_t>(), shape.in, state());
}

std::vector<float> Vectors::normalise() {
  vector_prices(stream_, ordered_->upper(), ordered_->diagonal(), ordered_->in(), price_.as<float>());
  normalise_vectors(stream_, price_.as<float>(), shape_.in, state());
  return host<float>(row_, shape_.out);
}

std::vector<float> Vectors::metrics() { return host<float>(metrics_, shape_.vectors * kVectorDim); }

// Gathers the samples' values, multiplied by a codebook's scale if there is one. At first every codebook counts as
// moving.
VectorSampleSet Vectors::gather(const Samples& samples, const float* book_scale) {
  std::vector<int32_t> begin{0}, ids;
  for (const auto& of_block : samples) {
    ids.insert(ids.end(), of_block.begin(), of_block.end());
    begin.push_back(static_cast<int32_t>(ids.size()));
  }
  const std::vector<VectorTile> tiles = tiles_of_samples(samples, shape_.vectors);
  const auto n = static_cast<int64_t>(ids.size());
  const std::vector<uint8_t> active(samples.size(), 1);
  upload<int32_t>(stream_, begins_, begin);
  upload<int32_t>(stream_, ids_, ids);
  upload<VectorTile>(stream_, sample_tiles_, tiles);
  upload<uint8_t>(stream_, active_, active);
  reserve(stream_, x_, n * kVectorDim * 4);
  for (DeviceBuffer* four : {&weight_, &place_, &sample_code_, &key_}) reserve(stream_, *four, n * 4);
  reserve(stream_, distance_, n * 8);
  VectorSampleSet set;
  set.n = n;
  set.blocks = static_cast<int>(samples.size());
  set.entries = static_cast<int>(shape_.entries), set.signs = shape_.signs;
  set.begin = begins_.as<int32_t>(), set.id = ids_.as<int32_t>();
  set.x = x_.as<float>(), set.weight = weight_.as<float>(), set.place = place_.as<int32_t>();
  set.metrics = metrics_.as<float>();
  set.tiles = sample_tiles_.as<VectorTile>(), set.tile_count = static_cast<int64_t>(tiles.size());
  set.book = book_.as<float>();
  set.distance = distance_.as<double>();
  set.code = sample_code_.as<uint32_t>(), set.key = key_.as<uint32_t>();
  set.active = active_.as<uint8_t>();
  gather_samples(stream_, state(), book_scale, set);
  return set;
}

std::vector<float> Vectors::values_of(const std::vector<int32_t>& vectors) {
  const VectorSampleSet set = gather({vectors}, nullptr);
  return host<float>(x_, set.n * kVectorDim);
}

VectorMembers Vectors::sorted(int64_t n, const uint32_t* key) {
  reserve(stream_, member_, n * 4);
  reserve(stream_, sorted_key_, n * 4);
  reserve(stream_, sorted_member_, n * 4);
  count_up(stream_, n, member_.as<int32_t>());
  const auto bound = static_cast<uint32_t>(shape_.blocks * shape_.entries);
  size_t bytes = 0;
  const auto sort = [&](void* room) {
    sort_members(stream_, n, bound, key, member_.as<int32_t>(), sorted_key_.as<uint32_t>(),
                 sorted_member_.as<int32_t>(), room, bytes);
  };
  sort(nullptr);
  reserve(stream_, sort_room_, static_cast<int64_t>(bytes));
  sort(sort_room_.data());
  return {n, sorted_key_.as<uint32_t>(), sorted_member_.as<int32_t>()};
}

// Runs k-means++ with the host's random numbers. The first number of the stream chooses a codebook's first centroid;
// the others say where in the sum of distances each next centroid lies.
void Vectors::seed(const VectorSampleSet& set, const Samples& samples) {
  const auto stream = static_cast<uint64_t>(shape_.entries);
  std::vector<int32_t> chosen;
  size_t most = 0;
  for (const auto& of_block : samples) {
    chosen.push_back(static_cast<int32_t>(Rng(1, stream).below(of_block.size())));
    most = std::max(most, of_block.size());
  }
  Rng rng(1, stream);
  rng.next();
  std::vector<double> uniform(static_cast<size_t>(shape_.entries));
  for (double& u : uniform) u = rng.uniform();
  upload<double>(stream_, uniform_, uniform);
  upload<int32_t>(stream_, chosen_, chosen);
  VectorSeeding seeding;
  seeding.chunks = static_cast<int>((most + kSeedChunk - 1) / kSeedChunk);
  reserve(stream_, partial_, set.blocks * int64_t{seeding.chunks} * 8);
  reserve(stream_, arrived_, set.blocks * int64_t{4});
  zero_device(stream_, arrived_.data(), static_cast<size_t>(set.blocks) * 4);
  seeding.uniform = uniform_.as<double>(), seeding.chosen = chosen_.as<int32_t>();
  seeding.partial = partial_.as<double>(), seeding.arrived = arrived_.as<uint32_t>();
  for (int entry = 0; entry < set.entries; ++entry) seed_centroid(stream_, set, seeding, entry);
}

void Vectors::fit_books(const Samples& samples) {
  const VectorSampleSet set = gather(samples, nullptr);
  seed(set, samples);
  reserve(stream_, block_sums_, set.blocks * int64_t{8});
  std::vector<double> before(samples.size(), std::numeric_limits<double>::max());
  std::vector<uint8_t> active(samples.size(), 1);
  for (int i = 0; i < kIterations && std::count(active.begin(), active.end(), 1) > 0; ++i) {
    assign_samples(stream_, set);
    sum_distances(stream_, set, block_sums_.as<double>());
    move_centroids(stream_, set, sorted(set.n, set.key));
    const std::vector<double> loss = host<double>(block_sums_, set.blocks);
    for (size_t b = 0; b < active.size(); ++b) {
      if (loss[b] > before[b] * (1 - 1e-4)) active[b] = 0;
      before[b] = loss[b];
    }
    upload<uint8_t>(stream_, active_, active);
  }
  round_books(stream_, set, book_scale_.as<float>());
}

void Vectors::use_book(std::span<const int8_t> book, float scale) {
  shared_ = true;
  const std::vector<float> levels(book.begin(), book.end());
  upload<float>(stream_, book_, levels);
  upload<float>(stream_, book_scale_, {&scale, 1});
}

std::vector<float> Vectors::costs(const Samples& all) {
  const VectorSampleSet set = gather(all, book_scale_.as<float>());
  assign_samples(stream_, set);
  float* cost = bent_.as<float>();  // nothing else needs this buffer yet
  scatter_costs(stream_, set, cost);
  return host<float>(bent_, shape_.out * shape_.vectors);
}

void Vectors::correct(std::span<const uint8_t> corrected) {
  corrects_ = true;
  upload(stream_, corrected_, corrected);
}

void Vectors::choose() {
  const int64_t out = shape_.out, padded = ordered_->in();
  scale_rows(stream_, book_scale_.as<float>(), state());
  float* target = error_.as<float>();
  auto* upper = const_cast<float*>(ordered_->upper());
  on_device(stream_, target, w_.data(), static_cast<size_t>(out * padded) * 4);
  for (int64_t v = 0; v < shape_.vectors; v += kVectorsBetween) {
    const int64_t begin = v * kVectorDim, end = std::min(padded, begin + kVectorBlock);
    feed_back_vectors(stream_, state(), v, upper, target, change_.as<float>());
    if (end < padded)
      blas_.multiply(out, padded - end, end - begin, -1, {change_.as<float>(), kVectorBlock}, false,
                     {upper + begin * padded + end, padded}, 1, {target + end, padded});
  }
}

void Vectors::product(const float* a, float* c) {
  const int64_t n = ordered_->in();
  blas_.multiply(shape_.out, n, n, 1, {const_cast<float*>(a), n}, false, {const_cast<float*>(ordered_->matrix()), n}, 0,
                 {c, n});
}

double Vectors::dot(const float* a, const float* b) {
  vector_dots(stream_, state(), a, b, sums_.as<double>());
  const std::vector<double> rows = host<double>(sums_, shape_.out);
  return std::accumulate(rows.begin(), rows.end(), 0.0);
}

std::vector<double> Vectors::decode() {
  decode_vectors(stream_, state());
  product(error_.as<float>(), gradient_.as<float>());
  vector_dots(stream_, state(), error_.as<float>(), gradient_.as<float>(), sums_.as<double>());
  const std::vector<double> rows = host<double>(sums_, shape_.out);
  std::vector<double> loss;
  for (int64_t b = 0; b < shape_.blocks; ++b)
    loss.push_back(std::accumulate(rows.begin() + shape_.first_row(b), rows.begin() + shape_.first_row(b + 1), 0.0));
  return loss;
}

// Returns by how much the values change that the decoded weight is linear in. All sets are solved at once, each by
// its own iteration.
const double* Vectors::conjugate(int sets, int64_t values, const Sum& sum, const Spread& spread) {
  for (DeviceBuffer* buffer : {&curvature_, &left_, &direction_, &bent_values_, &moved_})
    reserve(stream_, *buffer, sets * values * 8);
  reserve(stream_, now_, sets * int64_t{8});
  reserve(stream_, flagged_, sets);
  Conjugate c;
  c.sets = sets, c.values = values;
  c.curvature = curvature_.as<double>(), c.left = left_.as<double>(), c.p = direction_.as<double>();
  c.bent = bent_values_.as<double>(), c.change = moved_.as<double>();
  c.now = now_.as<double>(), c.active = flagged_.as<uint8_t>();
  sum(nullptr, c.curvature);
  sum(gradient_.as<float>(), c.left);
  for (int step = 0; step < kConjugateSteps; ++step) {
    conjugate_direction(stream_, c, step == 0);
    spread(c.p, spread_.as<float>());
    product(spread_.as<float>(), bent_.as<float>());
    sum(bent_.as<float>(), c.bent);
    conjugate_step(stream_, c);
  }
  return c.change;
}

void Vectors::refit_columns(std::vector<double>& loss) {
  const VectorState s = state();
  const double* change = conjugate(
      1, s.padded, [&](const float* b, double* sum) { sum_by_column(stream_, s, b, ordered_->diagonal(), sum); },
      [&](const double* p, float* a) { spread_columns(stream_, s, p, a); });
  const auto bytes = static_cast<size_t>(s.padded) * 4;
  reserve(stream_, old_column_, s.padded * 4);
  on_device(stream_, old_column_.data(), column_.data(), bytes);
  change_columns(stream_, s, change);
  std::vector<double> made = decode();
  if (std::accumulate(made.begin(), made.end(), 0.0) < std::accumulate(loss.begin(), loss.end(), 0.0)) {
    loss = std::move(made);
  } else {
    on_device(stream_, column_.data(), old_column_.data(), bytes);
    decode();
  }
}

void Vectors::refit_books(std::vector<double>& loss) {
  const VectorState s = state();
  const int64_t values = s.entries * kVectorDim, all = s.blocks * values;
  reserve(stream_, key_, s.out * s.vectors * 4);
  code_keys(stream_, s, key_.as<uint32_t>());
  const VectorMembers members = sorted(s.out * s.vectors, key_.as<uint32_t>());
  const double* change = conjugate(
      s.blocks, values,
      [&](const float* b, double* sum) { sum_by_entry(stream_, s, members, b, ordered_->diagonal(), sum); },
      [&](const double* p, float* a) { spread_entries(stream_, s, p, a); });
  reserve(stream_, old_book_, all * 4);
  reserve(stream_, old_row_, s.out * 4);
  on_device(stream_, old_book_.data(), s.book, static_cast<size_t>(all) * 4);
  on_device(stream_, old_row_.data(), s.row, static_cast<size_t>(s.out) * 4);
  change_books(stream_, s, change);
  const std::vector<double> made = decode();
  std::vector<uint8_t> back(loss.size());
  for (size_t b = 0; b < loss.size(); ++b) {
    back[b] = !(made[b] < loss[b]);
    if (!back[b]) loss[b] = made[b];
  }
  if (std::count(back.begin(), back.end(), 1) == 0) return;
  upload<uint8_t>(stream_, flagged_, back);
  restore_books(stream_, s, flagged_.as<uint8_t>(), old_book_.as<float>(), old_row_.as<float>());
  decode();
}

void Vectors::descend_codes() {
  const int64_t padded = ordered_->in();
  auto* h = const_cast<float*>(ordered_->matrix());
  descent_metrics(stream_, ordered_->diagonal(), state());
  for (int64_t v = 0; v < shape_.vectors; v += kVectorsBetween) {
    const int64_t begin = v * kVectorDim, width = std::min<int64_t>(kVectorBlock, padded - begin);
    descend_vectors(stream_, state(), v, h, inverse_.as<double>(), gradient_.as<float>(), change_.as<float>());
    blas_.multiply(shape_.out, padded, width, -1, {change_.as<float>(), kVectorBlock}, false,
                   {h + begin * padded, padded}, 1, {gradient_.as<float>(), padded});
  }
}

void Vectors::refit_rows() {
  // Codes have moved since the levels were decoded, and the gradient was updated with them. So the levels are decoded
  // anew and the gradient is kept.
  decode_vectors(stream_, state());
  decoded_levels(stream_, state(), spread_.as<float>());
  product(spread_.as<float>(), bent_.as<float>());
  cuda::refit_rows(stream_, state(), spread_.as<float>(), bent_.as<float>(), gradient_.as<float>());
}

VectorDescentLosses Vectors::descend(int passes, bool codes, bool refit) {
  VectorDescentLosses losses;
  product(w_.as<float>(), gradient_.as<float>());
  losses.energy = dot(w_.as<float>(), gradient_.as<float>());
  std::vector<double> loss = decode();
  losses.before = std::accumulate(loss.begin(), loss.end(), 0.0);
  if (passes > 0) invert_squares(stream_, ordered_->matrix(), ordered_->in(), inverse_.as<double>());
  for (int pass = 0; pass < passes; ++pass) {
    if (refit && pass == 0) refit_columns(loss);
    if (refit && !shared_ && pass < kBookPasses) refit_books(loss);
    if (codes) descend_codes();
    if (refit) refit_rows();
    loss = decode();
  }
  losses.after = std::accumulate(loss.begin(), loss.end(), 0.0);
  return losses;
}

VectorCodes Vectors::collect() {
  const int64_t out = shape_.out, vectors = shape_.vectors, padded = vectors * kVectorDim;
  VectorCodes c;
  c.code = host<uint32_t>(code_, out * vectors);
  c.row = host<float>(row_, out);
  c.column = host<float>(column_, padded);
  c.book = host<float>(book_, shape_.blocks * shape_.entries * kVectorDim);
  if (!corrects_) return c;
  c.correction = host<int8_t>(correction_, out * padded);
  c.correction_scale = host<uint16_t>(correction_scale_, out * vectors);
  return c;
}

}  // namespace fidelio::cuda
