// Cuda: the Backend on an NVIDIA GPU (compute capability 8.0 and newer). See kernels/backend.h for what each operation
// means; this page says how it is held. No CUDA header is needed to include it.
//
// Linears see activations of 16 bits (a16): integers under a power of two for 128 of a row where weights are codes,
// else FP16, under a power of two where 128 of a row leave FP16's comfortable range; or FP32 (f32). In the coarse modes
// codes see the integers that the CPU's kernels see, multiplied as the numbers they stand for, and by prompt rows as
// integers where groups are 128 columns (lowbit_many_integers.cuh). All sums are FP32.
//   low-bit weights   output rows: lowbit.h, kMaxRows rows at a time, so one row decoded alone, beside others and in a
//                     verification agree bit for bit; prompt rows: lowbit_many.h on Hopper, else dequantised to FP16
//                     once a call, then cuBLASLt
//   dense weights     held in FP16: BF16 times a power of two a matrix (exact for values within 2^-32 of its largest);
//                     output rows lowbit.h, prompt rows cuBLASLt
//   FP32 weights, formats without a kernel here (logged), and all weights in f32: exact.h
// Integers of 5 to 8 bits can be read as their four high ones (Reading::high_bits), which lie first in a block: output rows
// at the bytes of 4 bits by a kernel of lowbit.h, prompt rows dequantised. What has 4 bits or fewer is read whole.
// Prompt rows attend by tiles of rows (attend_rows of ops.h) where the cache is FP16 and the mode not f32. Which kernels
// these are is decided by the kind of a step's rows and by the weight, never by how many rows there are, and either
// family gives a row the same bits in any batch: a prompt may be cut anywhere. A step has rows of one kind (kOneKindAStep);
// the rows whose logits are wanted are output rows from the last norm on.
//
// A step of at most kRecordedRows output rows is captured as a CUDA graph the second time that repeat() sees its shape
// (rows, logit rows, context rounded up, how rows attend together, reading) and replayed from then on; nothing waits for
// the host inside. Where sequences have few rows rope_append only takes note, and attend does both in one launch: one
// row, or with an FP16 cache on Hopper up to 16, which there attend together (AttentionUnits of ops.h).
// Where it is one row alone, on Hopper, products of codes wait for the next operation too: a norm or swiglu of their
// outputs, and the rounding that follows it, is made by the same launch (LowbitJoin of lowbit.h). Acts of norm and
// swiglu of such a row, and of prompt rows, are then for products only, not for read().
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/backend/weights.h"

namespace fidelio {
namespace cuda {

constexpr int64_t kRecordedRows = 96;  // of more rows kernels take longer than their launches

}  // namespace cuda

class Cuda {
 public:
  struct Options {
    int device = 0;
  };
  explicit Cuda(const Options& options);
  ~Cuda();
  Cuda(Cuda&&) noexcept;

  using Linear = cuda::Linear;
  using Experts = cuda::Experts;
  struct Matrix {
    int64_t rows = 0, columns = 0;
    cuda::DeviceBuffer buffer;
    float* data() const { return buffer.as<float>(); }
  };
  struct Acts {  // rows x columns of FP32 in this backend's scratch, prepared lazily per form
    const float* values = nullptr;
    int64_t rows = 0, columns = 0;
    uint64_t version = 0;
    RowKind kind = RowKind::output;  // which products they go to
    bool whole = false;              // for the head, which no reading cuts
    int64_t fine = 0;                // last columns that have 8 bits where a coarse mode gives the others fewer
    int slots_per_input = 0;  // of routed rows that need no host: k slots share a row of `values`, or each has one
  };
  struct Order {  // Backend::gather()
    cuda::DeviceBuffer columns;
    int64_t count = 0, kept = 0;
    bool empty() const { return count == 0; }
  };
  struct TokenSet {             // Backend::spread()
    cuda::DeviceBuffer places;  // int32 (v): a token's place in the set, or -1
  };
  struct KvCache {  // per layer what ops.h says under Attention
    KvFormat format = KvFormat::f16;
    int64_t pages = 0;
    AttentionShape shape;
    cuda::DeviceBuffer storage;
    // Of each rotation (e / 2) for the turn that goes with appending, zeros where it turns a part of the head or
    // nothing, and (e / 2) for the turn of that part, which is done before (ops.h, prepare_heads).
    cuda::DeviceBuffer frequencies;
    int64_t bytes() const { return static_cast<int64_t>(storage.size()); }
  };

  static constexpr size_t kMostLater = 8192;   // choices between two collect()s
  static constexpr bool kOneKindAStep = true;  // begin() takes batches of one kind of rows
  using HostFloats = std::vector<float, cuda::PinnedAllocator<float>>;

  Matrix allocate(int64_t rows, int64_t columns);
  Linear pack(const LinearWeight& weight, int high_bits = 0);  // it has its one view whatever readings ask for
  KvCache allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format);
  void reserve(int64_t rows, int64_t columns, int64_t context);

  void upload(std::span<const float> host, Matrix& matrix);
  void download(const Matrix& matrix, int64_t first, int64_t count, std::span<float> host);
  void copy(const Matrix& from, Matrix& to, int64_t rows);

  void begin(const Batch& batch, Reading reading, const AttentionShape& shape);
  void embed(const Linear& table, Matrix& x, float scale);
  Acts norm(const Matrix& x, const Matrix& weight, float eps);
  Acts norm_logit_rows(const Matrix& x, const Matrix& weight, float eps, int64_t first, int64_t count);
  void linear(Acts input, std::span<const std::pair<const Linear*, Matrix*>> weights);
  void linear_add(Acts input, const Linear& weight, Matrix& x);
  void normalise(Matrix& x, const Matrix& weight, float eps);
  void normalise(const Matrix& x, const Matrix& weight, float eps, Matrix& y);
  void add_normed(const Matrix& y, const Matrix& weight, float eps, Matrix& x);
  void upcoming(std::span<const Linear* const> weights);
  void repeat(uint64_t what, const std::function<void()>& work);
  void rope_append(Matrix& q, Matrix& k, const Matrix& v, const Matrix* q_norm, const Matrix* k_norm, KvCache& cache,
                   int layer);
  Acts attend(const Matrix& q, const KvCache& cache, int layer);
  Acts gated(const Matrix& gate, const Matrix& up, Gate how, int64_t rows);
  Experts experts(std::span<const Linear* const> weights);
  using Followers = std::span<const Experts* const>;  // experts that a choice's products are of
  void route(const Matrix& x, const Linear& router, const RoutingRule& rule, Followers next, Matrix& logits);
  bool routes_alone(const RoutingRule& rule, Followers next) const;
  void follow(const Routes& routes);
  const Routes& routes() const;
  Acts routed(const Matrix& x);
  void linear_routed(Acts input, std::span<const RoutedProduct<Experts, Matrix>> products);
  void add_routed(const Matrix& y, Matrix& x);
  Acts turn(Acts acts, const Hadamard& how, const Matrix& signs);
  Order make_order(std::span<const int32_t> columns, int64_t kept);
  Acts gather(Acts acts, const Order& order);
  Acts input(const Matrix& x);
  void read(Acts acts, std::span<float> host);
  TokenSet make_token_set(std::span<const int32_t> tokens, int64_t v);
  void spread(const Matrix& few, const TokenSet& tokens, int64_t rows, Matrix& logits);
  void choose(const Matrix& logits, std::span<const ChoiceRule> rules, std::span<Choice> choices);
  // Choices that stay on the device: of these rules at places [first, ...), to be fed to later steps, and to be collected
  // by one wait for all. After begin(): the token of row i is the choice at from[i], where that is >= 0.
  void choose_later(const Matrix& logits, std::span<const ChoiceRule> rules, int64_t first);
  void feed(std::span<const int32_t> from);
  void collect(int64_t first, std::span<Choice> choices);
  std::string kernel_name(const Linear& weight, Activations mode) const;
  int64_t bytes_read(const Linear& weight, Reading reading) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

static_assert(Backend<Cuda>);

}  // namespace fidelio
