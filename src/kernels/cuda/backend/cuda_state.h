// This file defines what a Cuda holds between calls: the step under way, its scratch, and recorded graphs. Only
// cuda*.cc includes it. It also says how operations are fused.
//
// The operations are in cuda.cc, those of delta nets and of gates beside them in cuda_delta.cc, and those of experts
// and of choosing tokens in cuda_experts.cc and cuda_choose.cc. cuda_state.cc prepares activations and chooses kernels
// for products, and cuda_join.cc lets products wait and shows the launches of a layer. pack.cc brings weights into the
// layout of the kernels, which are in linear/, rows/, attention/ and delta/.
//
// The operations of a backend are called one by one, and none of them knows the next. A GPU is faster if the kernel of
// one operation also does a part of its neighbour. There are four ways to do that, and each has members in this class.
//
//   1. An operation also prepares its output for the next product. Norms, gates and attention write their values and,
//      if blocks_for() gives them room, also the blocks that lowbit.h reads (linear/layout/prepared.h). Attention
//      rounds these as `expected` says, which upcoming() set for the next product. The product finds that
//      blocks_version is the version of its input, and prepares nothing.
//   2. A product makes its own input. make() keeps a norm or gate as a Source in `unwritten` and launches nothing, for
//      rows whose products ask in some form of their own: prompt rows, coarse modes, and products that wait. The
//      product reads the Source (prepare_many() for prompt rows, vector_product() for vector codes, multiply_alone()
//      and multiply_tiles() for slots). Any other reader first calls write_values(), which launches the norm or gate.
//   3. Products wait. Inside repeat(), for at most kMostJoined rows on Hopper, defer() keeps a product in `waiting`,
//      or one of vector codes in `chain`, and launches nothing. If a norm or gate of its outputs follows, and then a
//      product that reads blocks, join_waiting() launches the waiting product so that it also makes these blocks, in
//      joined[joined_in]. Otherwise flush() launches it as it is.
//   4. An operation takes over the one before. rope_append() keeps its heads in `fresh`, and attend() does both.
//
// A new fused kernel is added in these steps.
//   a. Write the kernel in the folder of its kind (linear/, rows/, attention/ or delta/), whose .cu files
//      cmake/cuda.cmake compiles. Its header declares a function that launches it and one that says which shapes and
//      devices it takes, such as joins() or attention_appends(). The choice may depend on weights, shapes and the
//      number of rows, but a row must get the bits that it has without the fusion.
//   b. Choose one of the four ways. The first operation notes what it was asked for in a member of this class, and the
//      second one launches the fused kernel (in cuda.cc, or for products in cuda_join.cc).
//   c. Launch what was noted where another operation follows: in flush(), which every operation calls before it
//      launches a kernel or reads values, or in write_values() for activations. If the fused kernel stores less than
//      the separate ones, clear what says that the rest can be had, as join_waiting() clears `unwritten` after a gate.
//   d. Clear the member in begin(), because the step before may have been given up.
//   e. Get scratch by grow(), and do not wait for the device. The first step of a shape runs as it is, the second is
//      recorded as a graph, and later ones replay it without any call of these operations. A graph contains addresses,
//      so grow() forgets all graphs. If a launch depends on something that is not part of `Shape`, add it there.
//   f. Compare the bits with those of the separate kernels. runtime/rows_cuda_test.cc compares a sequence alone with
//      the same rows among many, which are not fused; runtime/decode_cuda_test.cc compares one row with two. Add the
//      shapes that the kernel takes there, and measure a step with runtime/decode_cuda_bench.cc.
#pragma once
#include <array>
#include <atomic>
#include <cassert>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/backend/sending.h"
#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/device/graph.h"
#include "kernels/cuda/linear/dense/exact.h"
#include "kernels/cuda/linear/dense/gemm.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/choose.h"

namespace fidelio {

using cuda::DeviceBuffer;

namespace cuda {
// ChoiceScratch is the memory of Cuda::choose: the choices that the device writes into the host's memory, the rules
// with their changes, the logits that changes replaced, and choices that stay on the device.
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
  static inline std::atomic<int> open = 0;  // how many there are in this process

  cuda::DeviceInfo info;
  cuda::Stream stream;
  cuda::Gemm gemm;
  cuda::ExactProduct exact;
  int64_t max_rows = 0, max_columns = 0, context = 0;

  // --- the step under way
  Activations mode = Activations::a16;
  int high_bits = 0;  // how many high bits of codes are read (Reading); 0 means all
  int64_t rows = 0;
  RowKind kind = RowKind::output;
  cuda::AttentionUnits units;  // output rows that attend together
  int cuts = 0;                // pieces of kCut positions that the longest context is cut into, rounded up
  std::vector<int32_t> host_batch;
  // `batch` has the ids, positions and sequence of each row, the logit rows, the units, the segments of `delta` with
  // their lists, the page table, and then the slots that states are kept in.
  DeviceBuffer batch;
  const int32_t *ids = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr, *page_of = nullptr;
  int pages_per_sequence = 0;

  // --- activations
  // `acts` has the newest activations in FP32. fresh_acts() gives them the next `version`, and an Acts is valid while
  // its version is the newest. Products read other forms of them, each with the version that it was made of: `rounded`
  // (FP32 after the rounding of a coarse mode), `blocks` (for lowbit.h, with blocks_rounding), `halves` (FP16 for
  // cuBLASLt, with a factor for each row) and `many` (for lowbit_many.h).
  // Of the other buffers, `dequantised` has a weight in FP16, `attention` and `arrived` are the scratch of attention,
  // and `turns` has cos and sin for each rotation and row.
  DeviceBuffer acts, rounded, blocks, halves, half_factor, many, many_factor, dequantised, attention, arrived, turns;
  DeviceBuffer gathered_acts;  // the newest activations after gather()
  bool gathers = false;        // an Order was made
  cuda::ManyRows many_rows;    // describes `many`
  uint64_t version = 0, rounded_version = 0, blocks_version = 0, halves_version = 0, many_version = 0;
  cuda::Rounding blocks_rounding, joined_rounding, expected;  // expected: what the next product asks for

  // --- delta nets (cuda_delta.cc)
  bool keeps_states = false;  // slots for states were made, so begin() sends what `delta` says
  cuda::DeltaRows delta;
  DeviceBuffer delta_products, delta_scores, delta_factors;  // scratch for chunks
  int head_dim = 0;                                          // of the step's attention
  // Append to the batch's table: list_states() what `delta` points to except the slots, and list_kept() the slots. Once
  // the table is on the device, point_to_states() sets the addresses in `delta`.
  void list_states(const Batch& batch, std::vector<int32_t>& table);
  void list_kept(const Batch& batch, std::vector<int32_t>& table) const;
  void point_to_states();
  size_t states_at = 0;  // where the list of segments begins in the table

  // --- mixtures of experts (cuda_experts.cc)
  cuda::Routing routing;
  // Makes room for slots and tiles on the device.
  cuda::TiledSlots room_for(int64_t slots, int64_t tiles);
  // Sends the host's routes to the device.
  void send_routes();
  // Sorts chosen slots into tiles, on the device.
  void deal_out(const int32_t* experts, const float* shares, int64_t slots, const RoutingRule& rule);
  using Routed = std::span<const RoutedProduct<Experts, Matrix>>;
  // Tells whether prompt rows can be multiplied by all of these experts in one launch, in the step's reading.
  bool take_many(const Experts& e) const { return e.many && !e.weights[0]->is_viewed(high_bits); }
  // Calls launch(RoutedOutputs) for the products of one shape at a time.
  template <typename Launch>
  void launch_by_shape(Routed products, const Launch& launch) const;
  // These multiply slots that need no host, or whose tiles are on the device: output rows, and prompt rows.
  void multiply_alone(const Acts& input, Routed products);
  void multiply_tiles(const Acts& input, Routed products);

  // --- norms and gates that are not launched yet (ways 2 and 3)
  // A Source says what activations (rows, columns) are made of: x and the norm's weight `with`, or gate and up.
  struct Source {
    const float *x = nullptr, *with = nullptr;
    bool norm = false;
    float eps = 0;
    int64_t rows = 0, columns = 0;
    RowKind kind = RowKind::output;
    Gating gate = Gate::silu;
    const int32_t* taken = nullptr;  // the rows of x that a norm takes; null means all
    // Tells whether a product can make these activations itself.
    bool joins() const { return x && !taken && (norm || gate == Gate::silu); }
  };
  // `unwritten` says what the newest activations are made of, while `acts` does not have them; otherwise its x is null.
  // Their Acts is a handle all the same.
  Source unwritten;
  Source source;  // of the activations of source_version, written or not
  uint64_t source_version = 0;
  cuda::FreshHeads fresh;    // the heads of rope_append(), if attend() is to append them (way 4)
  std::vector<char> turned;  // for each rotation, whether `turns` has its cos and sin of this step
  // These are the bytes that upcoming() announced. The next product brings them into L2.
  cuda::Upcoming next[cuda::kMaxTogether] = {};
  size_t next_count = 0;

  // --- products that wait (way 3, cuda_join.cc)
  // A Waiting is a product that was not launched yet, with the bytes that it is to bring into L2.
  struct Waiting {
    cuda::LowbitProduct product;
    cuda::Upcoming upcoming[cuda::kMaxTogether];
    size_t upcoming_count = 0;
  };
  bool joining = false;  // the step's products wait: it is inside repeat(), has few rows, and runs on Hopper
  std::optional<Waiting> waiting;
  // `joined` are blocks that products made, the newest in joined[joined_in], and `squares` are those of a norm's rows.
  DeviceBuffer joined[2], squares;
  int joined_in = 0;
  uint64_t joined_version = 0;   // the activations that the blocks are of
  cuda::LowbitNorm joined_norm;  // the factors of their rows, which the blocks do not include
  // Lets a product wait and returns true, if it can.
  using Outputs = std::span<const std::pair<const cuda::Linear*, Matrix*>>;
  bool defer(const Acts& input, Outputs weights, bool add);
  // Launches the waiting product so that it also makes the blocks of `unwritten`. Returns false if it cannot.
  bool join_waiting(const cuda::Rounding& rounding);
  // Products of vector codes wait in `chain` for one launch, in which thread blocks wait for each other. Two such
  // launches at once could block the device, so only the one Cuda of a process may have them.
  bool chaining = false;
  static bool may_chain() { return open == 1 && cuda::may_chain_vectors(); }
  std::vector<cuda::VectorProduct> chain;  // either this or `waiting` is empty
  DeviceBuffer chain_arrived;
  bool defer_vectors(const Acts& input, Outputs weights, bool add);
  // A product of few outputs waits in `narrow` until flush(), or until a convolution takes it along. is_narrow() tells
  // whether a weight is multiplied so, which does not depend on the number of rows.
  cuda::NarrowProduct narrow;
  bool is_narrow(const Acts& input, const cuda::Linear& w) const {
    return input.kind == RowKind::output && mode != Activations::f32 && !input.whole && w.out <= cuda::kNarrowColumns &&
           w.in % 4 == 0 && (w.values.half || w.values.single) && !w.bias.data();
  }
  // Launches what waits. Every operation that launches a kernel, or reads what one wrote, must call it first.
  void flush();
  // Tells whether products of two shapes can go in one launch.
  static bool goes_with(const cuda::LowbitShape& a, const cuda::LowbitShape& b) {
    return a.kind == b.kind && a.bits == b.bits && a.group == b.group && a.byte_scale == b.byte_scale && a.in == b.in &&
           a.below == b.below;
  }

  // --- recorded steps
  // A Shape is all that a recorded step depends on: repeat()'s number, rows, logit rows, cuts, three numbers of the
  // units, the number of segments with states, activations, high bits, and whether vector products may chain.
  using Shape = std::tuple<uint64_t, int64_t, int64_t, int, std::array<int, 3>, int, Activations, int, bool>;
  std::map<Shape, cuda::Graph> graphs;
  int64_t logit_count = 0;
  void forget_step();  // forgets what waits in the step before, which may have been given up

  // Returns a handle for new activations in `acts`, which makes all others invalid.
  Acts fresh_acts(int64_t n, int64_t columns) { return fresh_acts(n, columns, kind); }
  Acts fresh_acts(int64_t n, int64_t columns, RowKind of) {
    assert(n <= max_rows && columns <= max_columns);
    unwritten = {};
    return {acts.as<float>(), n, columns, ++version, of, false, 0, 0};
  }
  cuda::Sending sending;
  cuda::ChoiceScratch choice;
  void send_and_choose(const Matrix& logits, std::span<const ChoiceRule> rules, cuda::DeviceChoice* choices);
  // Makes a buffer at least this large. If it must grow, its contents are lost and recorded steps are forgotten.
  void grow(DeviceBuffer& buffer, int64_t bytes);

  // --- preparing activations (cuda_state.cc)
  // Blocks for lowbit.h are chunks of kMaxRows rows, one after the other.
  static int64_t column_blocks(int64_t columns) { return (columns + cuda::kBlockColumns - 1) / cuda::kBlockColumns; }
  static int64_t chunk_bytes(int64_t columns) { return cuda::input_bytes(cuda::kMaxRows, column_blocks(columns)); }
  cuda::LowbitInput prepared(const Acts& input) { return {blocks.as<uint8_t>(), static_cast<int>(input.rows)}; }
  // Tells whether a handle is still valid.
  bool is_alive(const Acts& input) const { return input.version == version || input.version == rounded_version; }
  // prepare_blocks(), prepare_halves() and prepare_many() each make one form of an input, unless it was made before.
  void prepare_blocks(const Acts& input, const cuda::Rounding& rounding);
  // Returns room where an operation that makes the newest activations should also prepare them as blocks, and none if
  // no product will read them so (way 1).
  cuda::PreparedRows blocks_for(RowKind of, const cuda::Rounding& rounding);
  // Launches a norm or gate. write_values() does so for `unwritten`, if there is one.
  void write(const Source& of, const cuda::Rounding& rounding);
  void write_values(const cuda::Rounding& rounding = {}) {
    if (unwritten.x) write(std::exchange(unwritten, {}), rounding);
  }
  // Makes activations of a source. They are launched now, or kept `unwritten` where products wait, for prompt rows,
  // and in coarse modes. A product then makes them in the form that it reads.
  void make(const Source& of);
  void prepare_halves(const Acts& input);
  // These are for coarse modes, in which codes see integers (FP16 changes them by at most 2^-12). rounding_for()
  // returns how they are rounded as they are prepared, and seen_by() returns activations that were rounded before.
  cuda::Rounding rounding_for(const FormatSpec& weight, const Acts& input) const;
  Acts seen_by(const FormatSpec& weight, const Acts& input);

  void prepare_many(const Acts& input, const cuda::Rounding& rounding, bool integers);

  // --- products
  // A Way is a family of kernels: lowbit.h, lowbit_many.h, cuBLASLt with FP16, exact.h, or vectors.h. way_of() chooses
  // it by the weight, the activations and the kind of the rows.
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
    return cuda::Gemm::takes(w.in) && w.out <= kLargestDequantised ? Way::dense : Way::codes;  // a view
  }
  // Returns the values that are read of a weight: all, or its high bits.
  const cuda::WeightValues& seen_as(const Acts& input, const cuda::Linear& w) const {
    return !input.whole && w.is_viewed(high_bits) ? w.view : w.values;
  }
  // Tells whether output rows are multiplied by a weight's codes as integers.
  bool is_integers(const cuda::Linear& w) const { return are_integers(w, mode); }
  static bool are_integers(const cuda::Linear& w, Activations at) {
    return way_of(w, at, RowKind::output) == Way::codes && w.values.lowbit.shape.kind != cuda::CodeKind::half;
  }
  static constexpr int64_t kLargestDequantised = 65536;  // the most outputs, so vocabularies stay packed

  // Computes y = W input for several weights, in as few launches as their shapes allow. multiply() takes one weight,
  // and with `add` y += W input.
  using Product = std::pair<const cuda::Linear*, float*>;
  void multiply_together(const Acts& input, std::span<const Product> products);
  void multiply(const Acts& given, const cuda::Linear& w, float* y, bool add);
  void multiply_narrow(const Acts& input, std::span<const Product> products);
  // These take weights of one shape, as this input reads them.
  void multiply_many(const Acts& input, std::span<const cuda::LowbitOutput> outputs, const cuda::Rounding& rounding,
                     bool add);
  void multiply_blocks(const Acts& input, std::span<const cuda::LowbitOutput> outputs, const cuda::Rounding& rounding,
                       bool add);
  // Returns the bytes that the next product is to bring into L2, and forgets them.
  std::span<const cuda::Upcoming> take_upcoming() { return {next, std::exchange(next_count, 0)}; }
  void multiply_dense(const Acts& input, const cuda::Linear& w, float* y, bool add);
  // Returns a product of vector codes. It makes its input itself if that is `unwritten` and the kernel can (way 2).
  cuda::VectorProduct vector_product(const Acts& input, std::span<const Product> products, bool add);
  void multiply_vectors(const Acts& input, std::span<const Product> products, bool add);

  // --- attention
  // Cuts output rows into units that attend together, and appends them to the batch's table.
  void cut_units(const Batch& batch, const AttentionShape& shape, std::vector<int32_t>& table);
  cuda::AttentionArguments arguments(const KvCache& cache, int layer) const;
  static cuda::KvKind kind_of(KvFormat format) {
    static_assert(static_cast<int>(cuda::KvKind::i4x2) == static_cast<int>(KvFormat::i4x2));
    return static_cast<cuda::KvKind>(format);
  }
  static bool has_scales(KvFormat format) { return format == KvFormat::i8 || format == KvFormat::i4x2; }
  static int64_t element_bytes(KvFormat format) { return format == KvFormat::f32 ? 4 : has_scales(format) ? 1 : 2; }
  static int64_t scale_bytes(KvFormat format) { return has_scales(format) ? 8 : 0; }  // for each vector
};

}  // namespace fidelio
