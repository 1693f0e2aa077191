// This file defines Cpu, the backend on the host. kernels/backend.h says what each operation does; this file only
// says what its types hold.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/thread_pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio {

class Cpu {
 public:
  struct Options {
    int threads = 0;                   // 0 means as many as there are
    std::optional<cpu::Isa> isa = {};  // if empty, the best that this machine has
  };
  explicit Cpu(const Options& options);
  ~Cpu();
  Cpu(Cpu&&) noexcept;

  using Linear = cpu::Linear;
  struct Matrix {
    int64_t rows = 0, columns = 0;
    Buffer buffer;
    float* data() const { return buffer.as<float>(); }
    float* row(int64_t i) const { return data() + i * columns; }
  };
  struct Acts {  // rows x columns of FP32 in this backend's scratch, prepared for a kernel when one reads them
    const float* values = nullptr;
    int64_t rows = 0, columns = 0;
    uint64_t version = 0;
    bool for_head = false;  // they are logit rows, and the weight that reads them is read whole
    int64_t fine = 0;       // this many of the last columns have 8 bits where a coarse mode gives the others fewer
  };
  struct Experts {
    std::vector<const Linear*> weights;
  };
  struct Order {  // made by make_order(), read by gather()
    std::vector<int32_t> columns;
    int64_t kept = 0;
    bool empty() const { return columns.empty(); }
  };
  struct TokenSet {  // made by make_token_set(), read by spread()
    std::vector<int32_t> tokens;
  };
  // A KvCache is records (L, pages, hk) of the keys, transposed, and values of 32 positions (kernel_set.h has a
  // drawing).
  struct KvCache {
    KvFormat format = KvFormat::f16;
    int64_t pages = 0;
    AttentionShape shape;
    std::vector<int64_t> layers;  // where the records of each layer begin in the storage
    Buffer storage;
    int64_t bytes() const { return static_cast<int64_t>(storage.size()); }
  };

  // States are slots of the layers' matrices and of the last inputs of their convolutions, as StateShape has them.
  struct States {
    StateShape shape;
    int64_t slots = 0;
    Buffer storage;  // (slots, matrices and then inputs by layer, and then what is carried)
    float* carried(int64_t slot) const { return storage.as<float>() + (slot + 1) * shape.floats() - shape.carried; }
    float* matrices(int64_t slot, int64_t layer) const {
      return storage.as<float>() + slot * shape.floats() + layer * (shape.matrices() + shape.inputs());
    }
    float* inputs(int64_t slot, int64_t layer) const { return matrices(slot, layer) + shape.matrices(); }
  };

  static constexpr bool kOneKindAStep = false;  // all rows are computed alike
  using HostFloats = std::vector<float>;

  Matrix allocate(int64_t rows, int64_t columns);
  // Readings will ask for this many high bits, so codes are laid out to be cut there. With 0 they can be cut where
  // planes end.
  Linear pack(const LinearWeight& weight, int high_bits = 0);
  Matrix pack_convolution(std::span<const float> weight, int64_t channels);  // (kernel, channels)
  KvCache allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format);
  States allocate_states(const StateShape& shape, int64_t slots);
  // Makes scratch for batches of up to `rows` rows, inputs of up to `columns` columns, and positions below `context`.
  // The part that depends on the heads is allocated when both this and allocate_cache() were called, or by the first
  // begin() of another shape.
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
  void normalise(Matrix& x, const Matrix& weight, float eps) { normalise(x, weight, eps, x); }
  void normalise(const Matrix& x, const Matrix& weight, float eps, Matrix& y);
  void add_normed(const Matrix& y, const Matrix& weight, float eps, Matrix& x);
  void upcoming(std::span<const Linear* const>) {}
  void repeat(uint64_t, const std::function<void()>& work) { work(); }
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
  void convolve(const Matrix& x, const Matrix& weight, Matrix& y, States& states, int layer);
  void delta_rule(const Matrix& x, const Matrix& b, const Matrix& a, const Matrix& decay, Matrix& y, States& states,
                  int layer);
  Acts gated_norm(const Matrix& x, const Matrix& gate, const Matrix& weight, float eps, Gate function);
  void before(const Matrix& x, Matrix& y, States& states);
  void carry(const Matrix& x, States& states);
  Acts join(const Matrix& x, const Matrix& y);
  void add_shared(const Matrix& y, const Matrix& gate, Matrix& x);
  Acts gated(const Matrix& gate, const Matrix& up, const Gating& how, int64_t rows);
  Experts experts(std::span<const Linear* const> weights) { return {{weights.begin(), weights.end()}}; }
  // Followers are the experts whose products read the rows that a choice deals out.
  using Followers = std::span<const Experts* const>;
  void route(const Matrix& x, const Linear& router, const Matrix& adjustments, const RoutingRule& rule, Followers next,
             Matrix& logits);
  bool routes_alone(const RoutingRule&, Followers) const { return true; }  // nothing is recorded on a CPU
  void follow(const Routes& routes);
  const Routes& routes() const;
  Acts routed(const Matrix& x);
  void linear_routed(Acts input, std::span<const RoutedProduct<Experts, Matrix>> products);
  void add_routed(const Matrix& y, Matrix& x);
  Acts turn(Acts acts, const Hadamard& how, const Matrix& signs);
  Order make_order(std::span<const int32_t> columns, int64_t kept);
  Acts gather(Acts acts, const Order& order);
  void read(Acts acts, std::span<float> host);
  Acts input(const Matrix& matrix);
  TokenSet make_token_set(std::span<const int32_t> tokens, int64_t v);
  void spread(const Matrix& few, const TokenSet& tokens, int64_t rows, Matrix& logits);
  void choose(const Matrix& logits, std::span<const ChoiceRule> rules, std::span<Choice> choices);
  std::string kernel_name(const Linear& weight, Activations mode) const;
  int64_t bytes_read(const Linear& weight, Reading reading) const;

  ThreadPool& pool();
  cpu::Isa isa() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

static_assert(Backend<Cpu>);

}  // namespace fidelio
