// This file defines Cuda, the backend on an NVIDIA GPU of compute capability 8.0 or newer. kernels/backend.h says
// what each operation does; this file says how a GPU does it and what its types hold. Including it needs no CUDA
// header. cuda_state.h says how operations are fused.
//
// Linears read activations of 16 bits (a16) or FP32 (f32). With a16, codes are multiplied by integers with a power of
// two for each 128 columns of a row. Other weights are multiplied by FP16, with a power of two for a row where its
// values leave FP16's comfortable range. In the coarse modes codes see the same integers as in the CPU's kernels.
// They are multiplied as the numbers that they stand for; prompt rows with groups of 128 columns are multiplied as
// integers (lowbit_many_integers.cuh). All sums are FP32.
//
//   weights           output rows                            prompt rows
//   low-bit codes     lowbit.h, kMaxRows rows at a time      lowbit_many.h on Hopper, else dequantised to FP16 once
//                                                            for each call, then cuBLASLt
//   vector codes      vectors.h                              dequantised to FP16, then cuBLASLt
//   dense             lowbit.h                               cuBLASLt
//   FP32              exact.h                                exact.h
//
// In mode f32 exact.h multiplies all weights, except vector codes of output rows. Prompt rows with weights that
// cuBLASLt cannot take, or that have more than kLargestDequantised outputs, are multiplied as output rows are.
//
// Dense weights are held in FP16. BF16 values are multiplied by a power of two for each matrix, which is exact for
// values within 2^-32 of its largest. Formats without a kernel here are decoded to FP32, which is logged. Integers of
// 5 to 8 bits can be read as their four high bits (Reading::high_bits), which lie first in a block. Output rows then
// read the bytes of 4 bits by a kernel of lowbit.h; for prompt rows they are dequantised. Weights of 4 bits or fewer
// are read whole.
//
// The kind of a step's rows and the weight decide which kernels are used, and the number of rows never does. Each
// family of kernels gives a row the same bits in any batch. A row decoded alone, beside others and in a verification
// therefore agrees bit for bit, and a prompt may be cut anywhere. A step has rows of one kind (kOneKindAStep); the
// rows whose logits are wanted are output rows from the last norm on.
//
// A step of at most kRecordedRows output rows is captured as a CUDA graph the second time that repeat() sees its
// shape, and replayed from then on. Nothing waits for the host inside. Prompt rows attend in tiles of rows
// (attend_rows of ops.h) where the cache is FP16 and the mode is not f32. A delta net takes output rows one after the
// other, and rows of prompts in whole chunks on the matrix units where the mode is not f32 (delta/delta_chunks.cuh).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/backend/weights.h"

namespace fidelio {
namespace cuda {

constexpr int64_t kRecordedRows = 96;  // with more rows, kernels take longer than their launches

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
  struct Acts {  // rows x columns of FP32 in this backend's scratch, prepared for a kernel when one reads them
    const float* values = nullptr;
    int64_t rows = 0, columns = 0;
    uint64_t version = 0;
    RowKind kind = RowKind::output;  // the kind of the rows, which decides by which kernels they are multiplied
    bool whole = false;              // they are for the head, which is read whole in every reading
    int64_t fine = 0;  // this many of the last columns have 8 bits where a coarse mode gives the others fewer
    // If this is not 0, the rows are slots that need no host (Routing::alone), and so many slots share a row of
    // `values`: k for the stream's rows, 1 if each slot has its own.
    int slots_per_input = 0;
  };
  struct Order {  // made by make_order(), read by gather()
    cuda::DeviceBuffer columns;
    int64_t count = 0, kept = 0;
    bool empty() const { return count == 0; }
  };
  struct TokenSet {             // made by make_token_set(), read by spread()
    cuda::DeviceBuffer places;  // (v) int32: a token's place in the set, or -1
  };
  struct KvCache {  // for each layer, the memory that ops.h describes under Attention
    KvFormat format = KvFormat::f16;
    int64_t pages = 0;
    AttentionShape shape;
    cuda::DeviceBuffer storage;
    // For each rotation this has e / 2 frequencies for the rotation that goes with appending, which are zeros if it
    // rotates only a part of the head or nothing. Then it has e / 2 for the rotation of that part, which is done
    // before (ops.h, prepare_heads).
    cuda::DeviceBuffer frequencies;
    int64_t bytes() const { return static_cast<int64_t>(storage.size()); }
  };

  static constexpr size_t kMostLater = 8192;  // the most choices between two calls of collect()
  struct States {                             // slots of what sequences keep besides keys and values (step/state.h)
    StateShape shape;
    int64_t slots = 0;
    cuda::DeviceBuffer matrices, inputs;  // (slots, layers, heads, key_dim, value_dim), (slots, layers, rows, channels)
    cuda::DeviceBuffer carried;           // (slots, carried)
    int64_t bytes() const { return static_cast<int64_t>(matrices.size() + inputs.size() + carried.size()); }
  };

  static constexpr bool kOneKindAStep = true;  // begin() takes batches of one kind of rows
  using HostFloats = std::vector<float, cuda::PinnedAllocator<float>>;

  Matrix allocate(int64_t rows, int64_t columns);
  Linear pack(const LinearWeight& weight, int high_bits = 0);  // the four high bits can be read whatever high_bits is
  KvCache allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format);
  States allocate_states(const StateShape& shape, int64_t slots);
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
  void turn_queries(Matrix& q, const Matrix* q_norm, const KvCache& cache, int layer);
  void norm_heads(const Matrix& x, const Matrix& weight, float eps, Matrix& y, bool adds);
  Acts attend(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks = nullptr);
  void columns(const Matrix& x, int64_t first, Matrix& y);
  void clear(Matrix& x);
  void scale(Matrix& x, const Matrix& factor);
  void softcap(Matrix& x, int64_t rows, float cap);
  void split_gate(const Matrix& x, Matrix& q, Matrix& gate);
  Acts gate_heads(Acts acts, const Matrix& gate);
  Matrix pack_convolution(std::span<const float> weight, int64_t channels);  // as it is: (channels, kernel)
  void convolve(const Matrix& x, const Matrix& weight, Matrix& y, States& states, int layer);
  void delta_rule(const Matrix& x, const Matrix& b, const Matrix& a, const Matrix& decay, Matrix& y, States& states,
                  int layer);
  Acts gated_norm(const Matrix& x, const Matrix& gate, const Matrix& weight, float eps, Gate function);
  void before(const Matrix& x, Matrix& y, States& states);
  void carry(const Matrix& x, States& states);
  Acts join(const Matrix& x, const Matrix& y);
  void add_shared(const Matrix& y, const Matrix& gate, Matrix& x);
  Acts gated(const Matrix& gate, const Matrix& up, const Gating& how, int64_t rows);
  Experts experts(std::span<const Linear* const> weights);
  // Followers are the experts whose products read the rows that a choice deals out.
  using Followers = std::span<const Experts* const>;
  void route(const Matrix& x, const Linear& router, const Matrix& adjustments, const RoutingRule& rule, Followers next,
             Matrix& logits);
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
  // These are for choices that stay on the device, so that the next step need not wait for the host. choose_later()
  // chooses by these rules and keeps the choices at places [first, ...). feed(), called after begin(), gives row i
  // the token of the choice at from[i], where that is >= 0. collect() waits once and copies the choices from `first`
  // on.
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
