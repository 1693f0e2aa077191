// What a Cuda holds between calls: the step under way, its scratch, recorded graphs. For cuda*.cc alone.
#pragma once
#include <array>
#include <atomic>
#include <cassert>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/backend/sending.h"
#include "kernels/cuda/device/graph.h"
#include "kernels/cuda/linear/dense/exact.h"
#include "kernels/cuda/linear/dense/gemm.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/choose.h"

namespace fidelio {

using cuda::DeviceBuffer;

namespace cuda {
// Of Cuda::choose: what comes back, written there by the device; changes of logits, and choices that stay.
struct ChoiceScratch {
  Pinned received;
  DeviceBuffer rules, saved, later;
};
}  // namespace cuda

struct Cuda::State {
  explicit State(const Options& options) : info(cuda::open_device(options.device)), stream(cuda::make_stream()) {
    ++open;
  }
  ~State() {
    cuda::destroy_stream(stream);
    --open;
  }
  static inline std::atomic<int> open = 0;

  cuda::DeviceInfo info;
  cuda::Stream stream;
  cuda::Gemm gemm;
  cuda::ExactProduct exact;
  int64_t max_rows = 0, max_columns = 0, context = 0;

  // The step.
  Activations mode = Activations::a16;
  int high_bits = 0;  // Reading's
  int64_t rows = 0;
  RowKind kind = RowKind::output;
  cuda::AttentionUnits units;  // of output rows
  int cuts = 0;                // of attention, at least those of the longest context
  std::vector<int32_t> host_batch;
  DeviceBuffer batch;  // ids, positions, sequence of each row, logit rows, then the page table
  const int32_t *ids = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr, *page_of = nullptr;
  int pages_per_sequence = 0;

  // Scratch.
  DeviceBuffer acts, rounded, blocks, halves, half_factor, many, many_factor, dequantised, attention, arrived, turns;
  DeviceBuffer gathered_acts;  // what the newest acts were gathered to
  bool gathers = false;        // there is an Order
  cuda::ManyRows many_rows;    // what `many` holds, of many_version
  uint64_t version = 0, rounded_version = 0, blocks_version = 0, halves_version = 0, many_version = 0;
  cuda::Rounding blocks_rounding, joined_rounding, expected;  // expected: of the product that comes next

  // Mixtures of experts (cuda_experts.cc).
  cuda::Routing routing;
  cuda::TiledSlots room_for(int64_t slots, int64_t tiles);
  void send_routes();
  void deal_out(const int32_t* experts, const float* shares, int64_t slots, const RoutingRule& rule);
  using Routed = std::span<const RoutedProduct<Experts, Matrix>>;
  bool take_many(const Experts& e) const { return e.many && !e.weights[0]->is_viewed(high_bits); }
  template <typename Launch>  // (RoutedOutputs): products of one shape at a time
  void launch_by_shape(Routed products, const Launch& launch) const;
  void multiply_alone(const Acts& input, Routed products);
  void multiply_tiles(const Acts& input, Routed products);

  // What norms and gates make activations of, rows of `columns`.
  struct Source {
    const float *x = nullptr, *with = nullptr;  // the stream and the norm's weight; gate and up
    bool norm = false;
    float eps = 0;
    int64_t rows = 0, columns = 0;
    RowKind kind = RowKind::output;
    Gate gate = Gate::silu;
    const int32_t* taken = nullptr;  // rows of x, for a norm; null: all
    // Products can make it themselves: norms and SwiGLU, of one row or of many.
    bool joins() const { return x && !taken && (norm || gate == Gate::silu); }
  };
  Source unwritten;  // of the newest activations, if `acts` does not hold them
  Source source;     // of those of source_version, written or not
  uint64_t source_version = 0;
  cuda::FreshHeads fresh;    // what rope_append was given, if attend is to do it
  std::vector<char> turned;  // of each rotation: its `turns` are of this step
  cuda::Upcoming next[cuda::kMaxTogether] = {};
  size_t next_count = 0;

  // Inside repeat(), a step of few rows on Hopper: norms and gates stay `unwritten` and the last product waits, until it
  // is clear whether it can make the next one's blocks as well (cuda_join.cc).
  struct Waiting {
    cuda::LowbitProduct product;
    cuda::Upcoming upcoming[cuda::kMaxTogether];
    size_t upcoming_count = 0;
  };
  bool joining = false;
  std::optional<Waiting> waiting;
  DeviceBuffer joined[2], squares;  // blocks that products made, the newest in joined[joined_in]
  int joined_in = 0;
  uint64_t joined_version = 0;
  cuda::LowbitNorm joined_norm;
  // Whether a product can wait; it does then.
  using Outputs = std::span<const std::pair<const cuda::Linear*, Matrix*>>;
  bool defer(const Acts& input, Outputs weights, bool add);
  bool join_waiting(const cuda::Rounding& rounding);
  // Products of vector codes make their rows themselves, and wait until something else needs the stream, if this is the
  // only one that can have such launches.
  bool chaining = false;
  static bool may_chain() { return open == 1 && cuda::may_chain_vectors(); }
  std::vector<cuda::VectorProduct> chain;  // or `waiting`, not both
  DeviceBuffer chain_arrived;
  bool defer_vectors(const Acts& input, Outputs weights, bool add);
  void flush();  // launches what waits: before all else that touches the stream
  static bool goes_with(const cuda::LowbitShape& a, const cuda::LowbitShape& b) {  // in one launch
    return a.kind == b.kind && a.bits == b.bits && a.group == b.group && a.byte_scale == b.byte_scale && a.in == b.in &&
           a.below == b.below;
  }

  // Steps seen, by what they are and by their shape. Addresses of everything but matrices and weights are in them too,
  // so they go when scratch grows.
  using Shape = std::tuple<uint64_t, int64_t, int64_t, int, std::array<int, 3>, Activations, int, bool>;
  std::map<Shape, cuda::Graph> graphs;
  int64_t logit_count = 0;

  Acts fresh_acts(int64_t n, int64_t columns) { return fresh_acts(n, columns, kind); }
  Acts fresh_acts(int64_t n, int64_t columns, RowKind of) {
    assert(n <= max_rows && columns <= max_columns);
    unwritten = {};
    return {acts.as<float>(), n, columns, ++version, of, false, 0, 0};
  }
  cuda::Sending sending;
  cuda::ChoiceScratch choice;
  void send_and_choose(const Matrix& logits, std::span<const ChoiceRule> rules, cuda::DeviceChoice* choices);
  void grow(DeviceBuffer& buffer, int64_t bytes);

  // Activations for lowbit.h, one chunk of kMaxRows rows after the other.
  static int64_t column_blocks(int64_t columns) { return (columns + cuda::kBlockColumns - 1) / cuda::kBlockColumns; }
  static int64_t chunk_bytes(int64_t columns) { return cuda::input_bytes(cuda::kMaxRows, column_blocks(columns)); }
  cuda::LowbitInput prepared(const Acts& input) { return {blocks.as<uint8_t>(), static_cast<int>(input.rows)}; }
  bool is_alive(const Acts& input) const { return input.version == version || input.version == rounded_version; }
  void prepare_blocks(const Acts& input, const cuda::Rounding& rounding);
  // Where an operation that makes activations should also prepare them: nowhere if nobody is going to read them so.
  cuda::PreparedRows blocks_for(RowKind of, const cuda::Rounding& rounding);
  void write(const Source& of, const cuda::Rounding& rounding);
  void write_values(const cuda::Rounding& rounding = {}) {
    if (unwritten.x) write(std::exchange(unwritten, {}), rounding);
  }
  // Activations now, or, of rows that products wait for, of prompt rows and in coarse modes, when a product asks: in
  // the form that it reads.
  void make(const Source& of);
  void prepare_halves(const Acts& input);
  // In a coarse mode codes see integers (FP16 changes them by 2^-12 at most), made as rows are prepared, or before.
  cuda::Rounding rounding_for(const FormatSpec& weight, const Acts& input) const;
  Acts seen_by(const FormatSpec& weight, const Acts& input);

  void prepare_many(const Acts& input, const cuda::Rounding& rounding, bool integers);

  enum class Way : uint8_t { codes, many, dense, single, vectors };
  static Way way_of(const cuda::Linear& w, Activations mode, RowKind kind) {
    if (w.values.vectors.codes && kind == RowKind::output) return Way::vectors;
    if (mode == Activations::f32 || w.values.single) return Way::single;
    if (kind == RowKind::output) return Way::codes;
    const bool fits = cuda::Gemm::takes(w.in) && w.out <= kLargestDequantised;
    if (w.values.vectors.codes) return fits ? Way::dense : Way::vectors;
    if (cuda::takes_many(w.values.lowbit, w.factor)) return Way::many;
    return fits ? Way::dense : Way::codes;
  }
  Way way_of(const cuda::Linear& w, const Acts& input) const {
    const Way way = way_of(w, mode, input.kind);
    if (way != Way::many || &seen_as(input, w) == &w.values) return way;
    return cuda::Gemm::takes(w.in) && w.out <= kLargestDequantised ? Way::dense : Way::codes;  // of a view
  }
  // What is read of a weight.
  const cuda::WeightValues& seen_as(const Acts& input, const cuda::Linear& w) const {
    return !input.whole && w.is_viewed(high_bits) ? w.view : w.values;
  }
  // Codes that rows are multiplied by as integers.
  bool is_integers(const cuda::Linear& w) const { return are_integers(w, mode); }
  static bool are_integers(const cuda::Linear& w, Activations at) {
    return way_of(w, at, RowKind::output) == Way::codes && w.values.lowbit.shape.kind != cuda::CodeKind::half;
  }
  static constexpr int64_t kLargestDequantised = 65536;  // outputs: vocabularies stay packed

  // y = W input of several weights: in one launch where their shapes go together.
  using Product = std::pair<const cuda::Linear*, float*>;
  void multiply_together(const Acts& input, std::span<const Product> products);
  void multiply(const Acts& given, const cuda::Linear& w, float* y, bool add);
  // Weights of one shape, as this input sees them.
  void multiply_many(const Acts& input, std::span<const cuda::LowbitOutput> outputs, const cuda::Rounding& rounding,
                     bool add);
  void multiply_blocks(const Acts& input, std::span<const cuda::LowbitOutput> outputs, const cuda::Rounding& rounding,
                       bool add);
  // What the next product is to ask for.
  std::span<const cuda::Upcoming> take_upcoming() { return {next, std::exchange(next_count, 0)}; }
  void multiply_dense(const Acts& input, const cuda::Linear& w, float* y, bool add);
  // Its input is in memory, or it makes it.
  cuda::VectorProduct vector_product(const Acts& input, std::span<const Product> products, bool add);
  void multiply_vectors(const Acts& input, std::span<const Product> products, bool add);

  void cut_units(const Batch& batch, const AttentionShape& shape, std::vector<int32_t>& table);
  cuda::AttentionArguments arguments(const KvCache& cache, int layer) const;
  static cuda::KvKind kind_of(KvFormat format) {
    static_assert(static_cast<int>(cuda::KvKind::i4x2) == static_cast<int>(KvFormat::i4x2));
    return static_cast<cuda::KvKind>(format);
  }
  static bool has_scales(KvFormat format) { return format == KvFormat::i8 || format == KvFormat::i4x2; }
  static int64_t element_bytes(KvFormat format) { return format == KvFormat::f32 ? 4 : has_scales(format) ? 1 : 2; }
  static int64_t scale_bytes(KvFormat format) { return has_scales(format) ? 8 : 0; }  // of a vector
};

}  // namespace fidelio
