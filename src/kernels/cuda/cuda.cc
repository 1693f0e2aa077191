#include "kernels/cuda/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <map>
#include <tuple>

#include "kernels/cuda/exact.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/lowbit_many.h"
#include "kernels/cuda/pack.h"

namespace fidelio {

using cuda::DeviceBuffer;

namespace {

// Cuts of a context, rounded up to one of few numbers, so that steps of a growing context look alike.
int cuts_for(int64_t context) {
  const int64_t cuts = (context + cuda::kCut - 1) / cuda::kCut;
  int64_t rounded = 1;
  while (rounded < cuts) rounded *= 2;
  return static_cast<int>(rounded >= 4 && rounded * 3 / 4 >= cuts ? rounded * 3 / 4 : rounded);
}

}  // namespace

struct Cuda::State {
  explicit State(const Options& options) : info(cuda::open_device(options.device)), stream(cuda::make_stream()) {}
  ~State() { cuda::destroy_stream(stream); }

  cuda::DeviceInfo info;
  cuda::Stream stream;
  cuda::Gemm gemm;
  cuda::ExactProduct exact;
  int64_t max_rows = 0, max_columns = 0, context = 0;

  // The step.
  Activations mode = Activations::a16;
  int64_t rows = 0;
  bool one_row_each = false;  // of every sequence
  bool long_rows = false;     // many rows, and many of every sequence: attention may take tiles of them
  int cuts = 0;               // of attention, at least those of the longest context
  std::vector<int32_t> host_batch;
  DeviceBuffer batch;  // ids, positions, sequence of each row, logit rows, then the page table
  const int32_t *ids = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr, *page_of = nullptr;
  int pages_per_sequence = 0;

  // Scratch.
  DeviceBuffer acts, rounded, blocks, halves, half_factor, many, many_factor, dequantised, attention, arrived, turns;
  uint64_t version = 0, rounded_version = 0, blocks_version = 0, halves_version = 0, many_version = 0;

  // What norm and swiglu make activations of, rows of `columns`.
  struct Source {
    const float *x = nullptr, *with = nullptr;  // the stream and the norm's weight; gate and up
    bool norm = false;
    float eps = 0;
    int64_t rows = 0, columns = 0;
  };
  Source unwritten;        // of the newest activations, if only `many` has them
  cuda::FreshHeads fresh;  // what rope_append was given, if attend is to do it
  bool turned = false;     // `turns` are of this step
  cuda::Upcoming next[cuda::kMaxTogether] = {};
  size_t next_count = 0;

  // Steps seen, by what they are and by their shape. Addresses of everything but matrices and weights are in them too,
  // so they go when scratch grows.
  using Shape = std::tuple<uint64_t, int64_t, int64_t, int, Activations>;
  std::map<Shape, cuda::Graph> graphs;
  int64_t logit_count = 0;

  Acts fresh_acts(int64_t n, int64_t columns) {
    assert(n <= max_rows && columns <= max_columns);
    unwritten = {};
    return {acts.as<float>(), n, columns, ++version};
  }
  void grow(DeviceBuffer& buffer, int64_t bytes) {
    if (static_cast<int64_t>(buffer.size()) >= bytes) return;
    cuda::wait_for(stream);
    graphs.clear();
    buffer = DeviceBuffer();
    buffer = DeviceBuffer(static_cast<size_t>(bytes));
  }

  // Activations for lowbit.h, kMaxRows rows at a time, one chunk after the other.
  static int64_t column_blocks(int64_t columns) { return (columns + cuda::kBlockColumns - 1) / cuda::kBlockColumns; }
  static int64_t chunk_bytes(int64_t columns) { return cuda::input_bytes(cuda::kMaxRows, column_blocks(columns)); }
  cuda::LowbitInput chunk(const Acts& input, int64_t first) {
    return {blocks.as<uint8_t>() + first / cuda::kMaxRows * chunk_bytes(input.columns),
            static_cast<int>(std::min<int64_t>(cuda::kMaxRows, input.rows - first))};
  }
  bool is_alive(const Acts& input) const { return input.version == version || input.version == rounded_version; }
  void prepare_blocks(const Acts& input) {
    assert(is_alive(input) && "an Acts dies at the next call that returns one");
    if (blocks_version == input.version) return;
    write_values();
    cuda::prepare_input(stream, input.values, input.rows, input.columns, blocks.as<uint8_t>());
    blocks_version = input.version;
  }
  // Where an operation that makes activations should also prepare them: null if nobody is going to read them so.
  uint8_t* blocks_for(int64_t rows) {
    if (mode != Activations::a16 || rows > cuda::kChunkedRows) return nullptr;
    blocks_version = version;
    return blocks.as<uint8_t>();
  }
  void write(const Source& of) {
    if (of.norm)
      cuda::rms_norm(stream, of.x, nullptr, of.with, of.eps, of.rows, of.columns, acts.as<float>(),
                     blocks_for(of.rows));
    else
      cuda::swiglu(stream, of.x, of.with, of.rows, of.columns, acts.as<float>(), blocks_for(of.rows));
  }
  void write_values() {
    if (unwritten.x) write(std::exchange(unwritten, {}));
  }
  // Activations for products of many rows alone, if the last such product read them so: whoever reads them otherwise
  // has them written then.
  void make(const Source& of) {
    if (mode != Activations::a16 || of.rows <= cuda::kChunkedRows || last_way != Way::many) return write(of);
    if (of.norm)
      cuda::rms_norm_many(stream, of.x, of.with, of.eps, of.rows, of.columns, many_rows());
    else
      cuda::swiglu_many(stream, of.x, of.with, of.rows, of.columns, many_rows());
    many_version = version;
    unwritten = of;
  }
  void prepare_halves(const Acts& input) {
    assert(is_alive(input) && "an Acts dies at the next call that returns one");
    if (halves_version == input.version) return;
    write_values();
    cuda::prepare_halves(stream, input.values, input.rows, input.columns, halves.as<uint16_t>(),
                         half_factor.as<float>());
    halves_version = input.version;
  }
  // What a weight sees of its input: in a coarse mode codes see integers, which go on as the numbers they stand for (a
  // rounding to FP16 changes them by 2^-12 at most). Rounded once for all weights of the same bits and group.
  Acts seen_by(const FormatSpec& weight, const Acts& input) {
    const bool codes = weight.kind == Kind::fp4 ||
                       ((weight.kind == Kind::integer || weight.kind == Kind::grid) && weight.group % 32 == 0);
    if (!is_coarse(mode) || !codes) return input;
    assert(input.version == version && "an Acts dies at the next call that returns one");
    const int bits = activation_bits(mode, weight);
    const int64_t group = activation_group(weight);
    const uint64_t wanted = uint64_t{1} << 63 | version << 16 | static_cast<uint64_t>(group << 4 | bits);
    if (rounded_version != wanted)
      cuda::round_to_integers(stream, input.values, input.rows, input.columns, group,
                              static_cast<float>((1 << (bits - 1)) - 1), rounded.as<float>());
    rounded_version = wanted;
    return {rounded.as<float>(), input.rows, input.columns, wanted};
  }

  cuda::ManyRows many_rows() const { return {many.as<uint8_t>(), many_factor.as<float>()}; }
  void prepare_many(const Acts& input) {
    assert(is_alive(input) && "an Acts dies at the next call that returns one");
    if (many_version == input.version) return;
    write_values();
    cuda::prepare_many(stream, input.values, input.rows, input.columns, many_rows());
    many_version = input.version;
  }

  enum class Way : uint8_t { codes, many, dense, single };
  Way last_way = Way::single;  // of a product of more than kChunkedRows rows
  static Way way_of(const cuda::Linear& w, Activations mode, int64_t rows) {
    if (mode == Activations::f32 || w.values.single) return Way::single;
    if (rows <= cuda::kChunkedRows) return Way::codes;
    if (cuda::takes_many(w.values.lowbit, w.factor)) return Way::many;
    return !cuda::Gemm::takes(w.in) || w.out > kLargestDequantised ? Way::codes : Way::dense;
  }
  static constexpr int64_t kLargestDequantised = 65536;  // outputs: vocabularies stay packed

  void multiply(const Acts& given, const cuda::Linear& w, float* y, bool add) {
    const Acts input = seen_by(w.spec, given);
    const Way way = way_of(w, mode, input.rows);
    if (input.rows > cuda::kChunkedRows) last_way = way;
    switch (way) {
      case Way::single:
        write_values();
        return exact.run(stream, gemm, w.values, w.bias.as<float>(), input.values, input.rows, y, add);
      case Way::codes:
        return multiply_codes(input, w, y, add);
      case Way::many:
        return multiply_many(input, std::array{cuda::LowbitOutput{&w.values.lowbit, y}}, add);
      case Way::dense:
        return multiply_dense(input, w, y, add);
    }
  }
  void multiply_many(const Acts& input, std::span<const cuda::LowbitOutput> outputs, bool add) {
    prepare_many(input);
    cuda::lowbit_many(stream, many_rows(), input.rows, outputs, add);
  }
  void multiply_codes(const Acts& input, const cuda::Linear& w, float* y, bool add) {
    prepare_blocks(input);
    for (int64_t first = 0; first < input.rows; first += cuda::kMaxRows) {
      const cuda::LowbitOutput output{&w.values.lowbit, y + first * w.out};
      cuda::lowbit_linear(stream, chunk(input, first), {&output, 1}, add, upcoming_after(input, first));
    }
  }
  // What the product of rows from `first` on is to ask for: the last one does.
  std::span<const cuda::Upcoming> upcoming_after(const Acts& input, int64_t first) {
    if (first + cuda::kMaxRows < input.rows) return {};
    return {next, std::exchange(next_count, 0)};
  }
  void multiply_dense(const Acts& input, const cuda::Linear& w, float* y, bool add) {
    prepare_halves(input);
    const uint16_t* weight = w.values.half;
    if (!weight) {
      grow(dequantised, w.out * w.in * 2);  // a weight may have been packed by another backend of the same device
      cuda::dequantise(stream, w.values.lowbit, w.factor, dequantised.as<uint16_t>());
      weight = dequantised.as<uint16_t>();
    }
    // Where rows have a factor, y counts in units of it while the product is added.
    const float *factor = half_factor.as<float>(), *bias = w.bias.as<float>();
    if (add) cuda::divide_rows(stream, factor, input.rows, w.out, y);
    gemm.run(stream, weight, halves.as<uint16_t>(), w.factor, input.rows, w.out, w.in, y, add);
    cuda::finish_rows(stream, factor, bias, input.rows, w.out, y);
  }

  cuda::AttentionArguments arguments(const KvCache& cache, int layer) const {
    const AttentionShape& s = cache.shape;
    cuda::AttentionArguments a{static_cast<int>(rows),
                               s.heads,
                               s.kv_heads,
                               s.head_dim,
                               s.window,
                               positions,
                               page_of,
                               sequence,
                               pages_per_sequence,
                               kind_of(cache.format),
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr};
    const int64_t slots = cache.pages * s.kv_heads * kPageTokens,
                  half = slots * s.head_dim * element_bytes(cache.format);
    const int64_t scales = cache.format == KvFormat::i8 ? slots * 8 : 0;
    std::byte* at = cache.storage.as<std::byte>() + layer * 2 * (half + scales);
    a.keys = at;
    a.values = at + half;
    a.key_scales = reinterpret_cast<float*>(at + 2 * half);
    a.value_scales = reinterpret_cast<float*>(at + 2 * half + scales);
    return a;
  }
  static int64_t element_bytes(KvFormat format) { return format == KvFormat::f32 ? 4 : format == KvFormat::i8 ? 1 : 2; }
  static cuda::KvKind kind_of(KvFormat format) {
    switch (format) {
      case KvFormat::f32:
        return cuda::KvKind::f32;
      case KvFormat::f16:
        return cuda::KvKind::f16;
      case KvFormat::bf16:
        return cuda::KvKind::bf16;
      default:
        return cuda::KvKind::i8;
    }
  }
};

Cuda::Cuda(const Options& options) : state_(std::make_unique<State>(options)) {}
Cuda::~Cuda() = default;
Cuda::Cuda(Cuda&&) noexcept = default;

// --- memory --------------------------------------------------------------------------------------------------------
Cuda::Matrix Cuda::allocate(int64_t rows, int64_t columns) {
  return {rows, columns, DeviceBuffer(static_cast<size_t>(rows * columns) * sizeof(float))};
}

Cuda::KvCache Cuda::allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format) {
  check(shape.heads % shape.kv_heads == 0, "{} heads cannot share {} kv heads evenly", shape.heads, shape.kv_heads);
  check(shape.head_dim % 8 == 0 && shape.head_dim <= 256,
        "the CUDA backend needs a head dim that 8 divides, 256 at most, not {}", shape.head_dim);
  check(format != KvFormat::i4x2, "the CUDA backend keeps keys and values as f32, f16, bf16 or i8, not {}",
        name_of(format));
  const int64_t slots = pages * shape.kv_heads * kPageTokens, scales = format == KvFormat::i8 ? 8 : 0;
  KvCache cache{format, pages, shape,
                DeviceBuffer(static_cast<size_t>(shape.layers * 2 * slots *
                                                 (shape.head_dim * State::element_bytes(format) + scales))),
                DeviceBuffer(shape.inverse_frequencies.size() * sizeof(float))};
  cuda::to_device(state_->stream, cache.frequencies.data(), shape.inverse_frequencies.data(), cache.frequencies.size());
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
  s.grow(s.blocks, chunks * State::chunk_bytes(k));
  s.grow(s.halves, n * k * 2);
  s.grow(s.half_factor, n * 4);
  if (n > cuda::kChunkedRows) {
    s.grow(s.many, cuda::many_bytes(n, k));
    s.grow(s.many_factor, cuda::many_rows(n) * 4);
  }
  s.grow(s.batch, (4 * n + n * cuts_for(s.context) * (cuda::kCut / kPageTokens)) * 4);
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
  cuda::on_device(state_->stream, to.data(), from.data(), static_cast<size_t>(rows * from.columns) * sizeof(float));
}

Cuda::Linear Cuda::pack(const LinearWeight& weight) {
  State& s = *state_;
  Linear w = cuda::pack(s.stream, weight);
  if (State::way_of(w, Activations::a16, cuda::kChunkedRows + 1) == State::Way::dense && !w.values.half)
    s.grow(s.dequantised, w.out * w.in * 2);
  return w;
}

std::string Cuda::kernel_name(const Linear& weight, Activations mode) const {
  switch (State::way_of(weight, mode, 1)) {
    case State::Way::single:
      return "f32 cuda";
    case State::Way::many:
    case State::Way::dense:
      return "f16 a16 cublaslt";
    case State::Way::codes:
      return weight.values.half ? "f16 a16 cuda" : fmt::format("{} {} cuda", to_string(weight.spec), name_of(mode));
  }
  return {};
}

// --- a step --------------------------------------------------------------------------------------------------------
void Cuda::begin(const Batch& batch, Activations mode, const AttentionShape& shape) {
  State& s = *state_;
  s.mode = mode;
  if (is_coarse(mode)) s.grow(s.rounded, s.max_rows * s.max_columns * 4);
  s.rows = batch.rows();
  s.logit_count = static_cast<int64_t>(batch.logit_rows.size());
  s.one_row_each = batch.sequences() == batch.rows();
  constexpr int64_t kLong = 16;
  s.long_rows = mode == Activations::a16 && s.rows > cuda::kChunkedRows && s.rows >= kLong * batch.sequences();
  s.fresh = {};
  s.turned = false;
  s.next_count = 0;
  int64_t longest = 0;
  for (int32_t position : batch.positions) longest = std::max<int64_t>(longest, position + 1);
  s.cuts = cuts_for(longest);
  const auto widest = static_cast<size_t>(s.cuts * (cuda::kCut / kPageTokens));
  s.pages_per_sequence = static_cast<int>(widest);
  auto& b = s.host_batch;
  b = batch.ids;
  b.insert(b.end(), batch.positions.begin(), batch.positions.end());
  for (int32_t sequence = 0; sequence < batch.sequences(); ++sequence) {
    const auto begin = batch.sequence_begin[static_cast<size_t>(sequence)],
               end = batch.sequence_begin[static_cast<size_t>(sequence) + 1];
    s.one_row_each = s.one_row_each && end - begin == 1;
    b.insert(b.end(), static_cast<size_t>(end - begin), sequence);
  }
  b.insert(b.end(), batch.logit_rows.begin(), batch.logit_rows.end());
  const auto table = static_cast<int64_t>(b.size());
  for (const auto& pages : batch.pages) {
    const size_t known = std::min(pages.size(), widest);
    b.insert(b.end(), pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(known));
    b.insert(b.end(), widest - known, 0);
  }
  const auto bytes = static_cast<int64_t>(b.size()) * 4;
  s.grow(s.batch, bytes);
  cuda::to_device(s.stream, s.batch.data(), b.data(), static_cast<size_t>(bytes));
  s.ids = s.batch.as<int32_t>();
  s.positions = s.ids + s.rows;
  s.sequence = s.positions + s.rows;
  s.logit_rows = s.sequence + s.rows;
  s.page_of = s.ids + table;
  // Scratch for attention, if it needs any: as many rows at a time as fit in 256 MB, one at least.
  const int64_t row_bytes = cuda::attention_parts(shape.heads, shape.head_dim) * 4;
  s.grow(s.attention, std::max(row_bytes, std::min(row_bytes * s.rows, int64_t{256} << 20)));
  s.grow(s.arrived, s.rows * shape.heads * 4);
  s.grow(s.turns, s.rows * shape.head_dim * 4);
}

void Cuda::repeat(uint64_t what, const std::function<void()>& work) {
  State& s = *state_;
  if (!s.one_row_each || s.rows > cuda::kChunkedRows || s.mode != Activations::a16) return work();
  constexpr size_t kMostGraphs = 64;
  const State::Shape shape{what, s.rows, s.logit_count, s.cuts, s.mode};
  const auto found = s.graphs.find(shape);
  if (found == s.graphs.end()) {  // once without: whatever is done only once happens outside a graph
    work();
    if (s.graphs.size() >= kMostGraphs) s.graphs.clear();
    s.graphs.emplace(shape, cuda::Graph());
    return;
  }
  found->second.replay(s.stream, work);
}

void Cuda::upcoming(std::initializer_list<const Linear*> weights) {
  State& s = *state_;
  // Measured in a decode step on an H200: more delays what the product before and the kernels between still need.
  constexpr uint32_t kMost = uint32_t{5} << 20;
  s.next_count = 0;
  uint32_t room = kMost;
  for (const Linear* w : weights) {
    if (s.next_count == cuda::kMaxTogether || room == 0) break;
    const auto bytes = static_cast<uint32_t>(std::min<size_t>(w->codes.size(), room)) / 16 * 16;
    s.next[s.next_count++] = {w->codes.data(), bytes};
    room -= bytes;
  }
}

void Cuda::embed(const Linear& table, Matrix& x) {
  cuda::embed(state_->stream, table.values, state_->ids, state_->rows, x.data());
}

Cuda::Acts Cuda::norm(const Matrix& x, const Matrix& weight, float eps) {
  State& s = *state_;
  check(x.columns <= cuda::kWidestNorm, "the CUDA backend normalises at most {} columns, not {}", cuda::kWidestNorm,
        x.columns);
  const Acts y = s.fresh_acts(s.rows, x.columns);
  s.make({x.data(), weight.data(), true, eps, y.rows, x.columns});
  return y;
}

Cuda::Acts Cuda::norm_logit_rows(const Matrix& x, const Matrix& weight, float eps, int64_t first, int64_t count) {
  State& s = *state_;
  const Acts y = s.fresh_acts(count, x.columns);
  cuda::rms_norm(s.stream, x.data(), s.logit_rows + first, weight.data(), eps, count, x.columns, s.acts.as<float>(),
                 s.blocks_for(count));
  return y;
}

// Low-bit weights of one shape but for their outputs go in one launch.
void Cuda::linear(Acts input, std::span<const std::pair<const Linear*, Matrix*>> weights) {
  State& s = *state_;
  const auto together = [](const cuda::LowbitShape& a, const cuda::LowbitShape& b) {
    return a.kind == b.kind && a.bits == b.bits && a.group == b.group && a.byte_scale == b.byte_scale && a.in == b.in;
  };
  const bool grid = weights[0].first->spec.kind == Kind::grid;  // each has its own table
  static_assert(cuda::kMaxRows <= cuda::kChunkedRows);
  const State::Way way = State::way_of(*weights[0].first, s.mode, input.rows);
  bool one_launch = weights.size() > 1 && weights.size() <= cuda::kMaxTogether && !grid &&
                    (way == State::Way::codes || way == State::Way::many);
  for (const auto& [w, y] : weights)
    one_launch = one_launch && State::way_of(*w, s.mode, input.rows) == way &&
                 together(w->values.lowbit.shape, weights[0].first->values.lowbit.shape);
  if (!one_launch) {
    for (const auto& [w, y] : weights) s.multiply(input, *w, y->data(), false);
    return;
  }
  const Acts seen = s.seen_by(weights[0].first->spec, input);
  if (way == State::Way::many) {
    cuda::LowbitOutput outputs[cuda::kMaxTogether];
    for (size_t i = 0; i < weights.size(); ++i)
      outputs[i] = {&weights[i].first->values.lowbit, weights[i].second->data()};
    s.last_way = way;
    return s.multiply_many(seen, {outputs, weights.size()}, false);
  }
  s.prepare_blocks(seen);
  for (int64_t first = 0; first < input.rows; first += cuda::kMaxRows) {
    cuda::LowbitOutput outputs[cuda::kMaxTogether];
    for (size_t i = 0; i < weights.size(); ++i)
      outputs[i] = {&weights[i].first->values.lowbit, weights[i].second->data() + first * weights[i].first->out};
    cuda::lowbit_linear(s.stream, s.chunk(seen, first), {outputs, weights.size()}, false,
                        s.upcoming_after(seen, first));
  }
}

void Cuda::linear_add(Acts input, const Linear& weight, Matrix& x) { state_->multiply(input, weight, x.data(), true); }

void Cuda::rope_append(Matrix& q, Matrix& k, const Matrix& v, const Matrix* q_norm, const Matrix* k_norm,
                       KvCache& cache, int layer) {
  State& s = *state_;
  const AttentionShape& shape = cache.shape;
  if (!std::exchange(s.turned, true))
    cuda::rope_turns(s.stream, s.positions, s.rows, cache.frequencies.as<float>(), shape.head_dim, shape.rope_scale,
                     s.turns.as<float>());
  const cuda::FreshHeads fresh{q.data(),
                               k.data(),
                               v.data(),
                               q_norm ? q_norm->data() : nullptr,
                               k_norm ? k_norm->data() : nullptr,
                               shape.norm_eps,
                               s.turns.as<float>()};
  if (s.one_row_each && cuda::attention_appends(State::kind_of(cache.format), shape.heads, shape.kv_heads))
    s.fresh = fresh;
  else
    cuda::rope_append(s.stream, s.arguments(cache, layer), fresh);
}

Cuda::Acts Cuda::attend(const Matrix& q, const KvCache& cache, int layer) {
  State& s = *state_;
  const AttentionShape& shape = cache.shape;
  const Acts y = s.fresh_acts(s.rows, int64_t{shape.heads} * shape.head_dim);
  const cuda::AttentionArguments a = s.arguments(cache, layer);
  if (s.long_rows && cuda::attends_rows(a)) {
    cuda::attend_rows(s.stream, a, q.data(), s.acts.as<float>());
    return y;
  }
  const int64_t row_floats = std::max<int64_t>(1, cuda::attention_parts(shape.heads, shape.head_dim));
  const cuda::AttentionScratch scratch{s.cuts, static_cast<int64_t>(s.attention.size()) / 4 / row_floats,
                                       s.attention.as<float>(), s.arrived.as<uint32_t>()};
  const bool prepares =
      cuda::attention_prepares(State::kind_of(cache.format), shape.heads, shape.kv_heads, shape.head_dim);
  cuda::attend(s.stream, a, std::exchange(s.fresh, {}), q.data(), scratch, s.acts.as<float>(),
               prepares ? s.blocks_for(y.rows) : nullptr);
  return y;
}

Cuda::Acts Cuda::swiglu(const Matrix& gate, const Matrix& up) {
  State& s = *state_;
  const Acts y = s.fresh_acts(s.rows, gate.columns);
  s.make({gate.data(), up.data(), false, 0, y.rows, gate.columns});
  return y;
}

Cuda::Acts Cuda::input(const Matrix& x) {
  State& s = *state_;
  const Acts y = s.fresh_acts(s.rows, x.columns);
  cuda::on_device(s.stream, s.acts.data(), x.data(), static_cast<size_t>(s.rows * x.columns) * sizeof(float));
  return y;
}

void Cuda::read(Acts acts, std::span<float> host) {
  state_->write_values();
  cuda::from_device(state_->stream, host.data(), acts.values,
                    static_cast<size_t>(acts.rows * acts.columns) * sizeof(float));
}

}  // namespace fidelio
