// This file has the operations of train/device.h on a GPU, in FP32: products by cuBLAS, everything else by the
// kernels of this folder. It is the twin of train/host/host.h. With Arithmetic::fp32 it makes the same sums in
// another order; otherwise the factors of products are rounded.
#pragma once
#include <memory>
#include <optional>

#include "arch/model_config.h"
#include "kernels/cuda/device/blas.h"
#include "kernels/cuda/device/device.h"
#include "train/cuda/kernels.h"
#include "train/cuda/nccl.h"
#include "train/device.h"

namespace fidelio::train {

class Gpu {
 public:
  using Real = float;
  using Array = std::shared_ptr<float[]>;

  class Rows {
   public:
    int64_t rows() const { return n_; }
    const int32_t* labels() const { return at(1); }

   private:
    friend class Gpu;
    const int32_t* at(int list) const { return lists_->as<int32_t>() + list * n_; }
    struct Alike {
      // Sequences of one length: where they begin in the list of first rows, and how many they are.
      int64_t length, first, count;
    };
    int64_t n_ = 0, longest_ = 0, distinct_ = 0;
    std::vector<Alike> alike_;
    // The lists are: ids, labels, positions and order (n each); the distinct ids and where each begins (one more);
    // and the first rows, by length.
    std::shared_ptr<cuda::DeviceBuffer> lists_, begins_, sequences_;
  };

  // A Held is a rounded copy of values, which products read in their place.
  class Held {
   public:
    Held() = default;  // without a copy, products read the values themselves
    Held(Gpu* gpu, size_t copy) : gpu_(gpu), copy_(copy) { ++gpu_->copies_[copy_].users; }
    ~Held() {
      if (gpu_ != nullptr) --gpu_->copies_[copy_].users;
    }
    Held(Held&& other) noexcept : gpu_(std::exchange(other.gpu_, nullptr)), copy_(other.copy_) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(gpu_, other.gpu_), std::swap(copy_, other.copy_);
      return *this;
    }

   private:
    Gpu* gpu_ = nullptr;
    size_t copy_ = 0;
  };

  explicit Gpu(int device, cuda::Arithmetic arithmetic = cuda::Arithmetic::fp32);
  // Returns the bytes of scratch memory that a step of so many rows, in sequences of `context` tokens, comes to use.
  static int64_t scratch_bytes(const ModelConfig& config, int64_t rows, int64_t context, cuda::Arithmetic arithmetic);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Array allocate(int64_t n);
  void upload(std::span<const float> from, float* to);
  void download(const float* from, std::span<float> to);
  void download(const float* from, std::span<double> to);
  void zero(float* x, int64_t n);
  void copy(const float* from, float* to, int64_t n);
  void add(const float* from, float* to, int64_t n);
  void add_absolute(const float* from, float* to, int64_t n);
  // Exchanges messages by NCCL; every rank must have a device of its own.
  void exchange(const Ranks& ranks, const std::vector<Message>& send, const std::vector<Message>& receive);
  Rows load(const Sequences& sequences);

  Held hold(const float* x, int64_t n);
  void multiply(const Product<float>& p);
  void add_bias(const float* bias, int64_t rows, int64_t columns, float* y);
  void sum_rows(const float* x, int64_t rows, int64_t columns, float* sums);
  void gather(const Rows& rows, const float* table, int64_t d, float* x);
  void scatter(const Rows& rows, const float* x, int64_t d, float* table);
  void norm(const float* x, const float* weight, double eps, int64_t rows, int64_t columns, float* y);
  void norm_backward(const float* x, const float* weight, double eps, int64_t rows, int64_t columns, const float* dy,
                     float* dx, bool add, float* dweight);
  Held norm_for_products(const float* x, const float* weight, double eps, int64_t rows, int64_t columns, float* y);
  void rope(const Rows& rows, const AttentionSizes& sizes, int64_t heads, bool back, float* x);
  void attend(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v, float* out,
              float* lse);
  void attend_backward(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v,
                       const float* out, const float* lse, const float* dout, float* dq, float* dk, float* dv);
  Held swiglu(const float* gate, const float* up, int64_t n, float* y);
  std::pair<Held, Held> swiglu_backward(float* gate, float* up, int64_t n, const float* dy, bool others);
  double difference(const float* target, double scale, int64_t n, float* x);
  void scale_difference(const float* target, double scale, int64_t n, float* x);
  void divergence(const float* teacher, float* student, const int32_t* labels, int64_t rows, int64_t v,
                  const LossMix& mix, double gradient_scale, float* losses);
  double sum_of_squares(const float* x, const float* unit, int64_t n);
  void add_squares(const float* x, const float* unit, int64_t n, double factor);
  double squares();
  void adam(const float* gradient, const float* unit, int64_t n, const AdamStep& how, float* value, float* m, float* v);

  void round(const float* x, int64_t n, Kind kind, float* rounded);
  void keep_ascending(const float* grid, int64_t levels, float* level);
  void resolve(const ScaleView<float>& view, const ScaleValues<float>& values);
  void resolve_backward(const ScaleView<float>& view, const ScaleGradient<float>& gradient);
  void decode(const CodeSizes& sizes, const CodeView<float>& view, float* values);
  void decode_backward(const CodeSizes& sizes, const CodeView<float>& view, const CodeGradient<float>& gradient);
  void decode(const VectorSizes& sizes, const VectorView<float>& view, float* values);
  void decode_backward(const VectorSizes& sizes, const VectorView<float>& view, const VectorGradient<float>& gradient);

 private:
  gpu::Heads heads(const AttentionSizes& sizes) const;
  void turn(const AttentionSizes& sizes, int64_t positions);
  float* scratch(int64_t values);
  double sum_of_parts();
  // Returns x as a product reads it: itself, or its BF16 copy, which is held or made in the scratch memory of this
  // number.
  void* factor(const float* x, int64_t n, int which);
  bool is_bf16() const { return arithmetic_ == cuda::Arithmetic::bf16; }
  // Calls f(pairs, units) for as many score matrices as there is room for at a time.
  template <typename F>
  void for_pairs(const Rows& rows, const gpu::Heads& a, int buffers, const F& f);
  struct OfHeads;  // a product of every head of some pairs
  void multiply(const gpu::Pairs& pairs, int64_t units, const std::vector<OfHeads>& products);

  struct Copy {
    const float* of = nullptr;
    int users = 0;
    cuda::DeviceBuffer values;  // in BF16
  };
  Copy* copy_of(const float* x);
  // Makes room for a BF16 copy of the n values at x.
  Held make_copy(const float* x, int64_t n);
  uint16_t* values_of(const float* x) { return copy_of(x)->values.as<uint16_t>(); }

  cuda::Arithmetic arithmetic_;
  std::vector<Copy> copies_;
  cuda::Stream stream_ = nullptr;
  std::optional<cuda::Blas> blas_;
  std::unique_ptr<Nccl> nccl_;  // made by the first exchange
  cuda::DeviceBuffer scratch_, sums_, cosine_, sine_, factors_[4], scores_, probabilities_, of_heads_, pointers_;
  std::vector<float> frequencies_;
  float rope_scale_ = 0;
  int64_t turned_ = 0;  // number of positions in the tables
};

}  // namespace fidelio::train
