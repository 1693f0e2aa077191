// This file has the operations of device.h on the CPU: dense products by OpenBLAS in tiles of fixed size, and the
// rest as plain loops. The bits are the same for any number of threads.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>

#include "core/thread_pool.h"
#include "train/device.h"

namespace fidelio::train {

template <typename T>
class Host {
 public:
  using Real = T;
  using Array = std::shared_ptr<T[]>;
  struct Rows {
    Sequences sequences;
    std::vector<int32_t> positions;  // (n)
    std::vector<int32_t> next;       // (n) the next token of the sequence; -1 behind its last one
    int64_t rows() const { return sequences.rows(); }
    const int32_t* ids() const { return sequences.ids.data(); }
    const int32_t* labels() const { return next.data(); }
  };

  explicit Host(int threads = 0);

  Array allocate(int64_t n);
  void upload(std::span<const float> from, T* to);
  void download(const T* from, std::span<float> to);
  void download(const T* from, std::span<double> to);
  void zero(T* x, int64_t n);
  void copy(const T* from, T* to, int64_t n);
  void add(const T* from, T* to, int64_t n);
  void add_absolute(const T* from, T* to, int64_t n);
  void exchange(const Ranks& ranks, const std::vector<Message>& send, const std::vector<Message>& receive) {
    ranks.exchange(send, receive);
  }
  Rows load(const Sequences& sequences);

  struct Held {};
  Held hold(const T*, int64_t) { return {}; }
  void multiply(const Product<T>& p);
  void add_bias(const T* bias, int64_t rows, int64_t columns, T* y);
  void sum_rows(const T* x, int64_t rows, int64_t columns, T* sums);
  void gather(const Rows& rows, const T* table, int64_t d, T* x);
  void scatter(const Rows& rows, const T* x, int64_t d, T* table);
  void norm(const T* x, const T* weight, double eps, int64_t rows, int64_t columns, T* y);
  void norm_backward(const T* x, const T* weight, double eps, int64_t rows, int64_t columns, const T* dy, T* dx,
                     bool add, T* dweight);
  Held norm_for_products(const T* x, const T* weight, double eps, int64_t rows, int64_t columns, T* y) {
    norm(x, weight, eps, rows, columns, y);
    return {};
  }
  void rope(const Rows& rows, const AttentionSizes& sizes, int64_t heads, bool back, T* x);
  void attend(const Rows& rows, const AttentionSizes& sizes, const T* q, const T* k, const T* v, T* out, T* lse);
  void attend_backward(const Rows& rows, const AttentionSizes& sizes, const T* q, const T* k, const T* v, const T* out,
                       const T* lse, const T* dout, T* dq, T* dk, T* dv);
  Held swiglu(const T* gate, const T* up, int64_t n, T* y);
  std::pair<Held, Held> swiglu_backward(T* gate, T* up, int64_t n, const T* dy, bool others);
  void convolve(const Rows& rows, const DeltaNet& net, const T* weight, const T* x, T* y);
  void convolve_backward(const Rows& rows, const DeltaNet& net, const T* weight, const T* x, T* dy);
  void delta_rule(const Rows& rows, const DeltaNet& net, const DeltaRates<T>& rates, const T* u, const T* b, const T* a,
                  T* y);
  void delta_rule_backward(const Rows& rows, const DeltaNet& net, const DeltaRates<T>& rates, const T* dy, T* u, T* b,
                           T* a);
  void gated(Gate function, const T* gate, const T* x, int64_t n, T* y);
  void gated_backward(Gate function, T* gate, const T* x, int64_t n, T* dy);
  void split_pairs(const T* from, int64_t rows, int64_t columns, T* a, T* b);
  void join_pairs(const T* a, const T* b, int64_t rows, int64_t columns, T* to);
  double difference(const T* target, double scale, int64_t n, T* x);
  void scale_difference(const T* target, double scale, int64_t n, T* x) { difference(target, scale, n, x); }
  void divergence(const T* teacher, T* student, const int32_t* labels, int64_t rows, int64_t v, const LossMix& mix,
                  double gradient_scale, T* losses);
  double sum_of_squares(const T* x, const T* unit, int64_t n);
  void add_squares(const T* x, const T* unit, int64_t n, double factor) {
    squares_ += factor * sum_of_squares(x, unit, n);
  }
  double squares() { return std::exchange(squares_, 0); }
  void adam(const T* gradient, const T* unit, int64_t n, const AdamStep& how, T* value, T* m, T* v);

  void round(const T* x, int64_t n, Kind kind, T* rounded);
  void keep_ascending(const T* grid, int64_t levels, T* level);
  void resolve(const ScaleView<T>& view, const ScaleValues<T>& values);
  void resolve_backward(const ScaleView<T>& view, const ScaleGradient<T>& gradient);
  void decode(const CodeSizes& sizes, const CodeView<T>& view, T* values);
  void decode_backward(const CodeSizes& sizes, const CodeView<T>& view, const CodeGradient<T>& gradient);
  void decode(const VectorSizes& sizes, const VectorView<T>& view, T* values);
  void decode_backward(const VectorSizes& sizes, const VectorView<T>& view, const VectorGradient<T>& gradient);

  ThreadPool& pool() { return *pool_; }

 private:
  // Calls f(first, last) over [0, n) in blocks of fixed size.
  template <typename F>
  void blocks(int64_t n, int64_t size, F&& f);
  // Returns the sum over [0, n) of f(first, last), added block by block in order.
  template <typename F>
  double sum_blocks(int64_t n, F&& f);
  void turn(const AttentionSizes& sizes, int64_t positions);  // fills the tables

  std::unique_ptr<ThreadPool> pool_;
  std::vector<float> frequencies_;
  double rope_scale_ = 0, squares_ = 0;
  std::vector<T> cosine_, sine_;  // (positions, frequencies)
};

template <typename T>
template <typename F>
void Host<T>::blocks(int64_t n, int64_t size, F&& f) {
  pool_->run((n + size - 1) / size, [&](int64_t block, int) { f(block * size, std::min(n, (block + 1) * size)); });
}

template <typename T>
template <typename F>
double Host<T>::sum_blocks(int64_t n, F&& f) {
  constexpr int64_t kBlock = 16384;
  std::vector<double> parts(static_cast<size_t>((n + kBlock - 1) / kBlock));
  blocks(n, kBlock, [&](int64_t first, int64_t last) { parts[static_cast<size_t>(first / kBlock)] = f(first, last); });
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

extern template class Host<float>;
extern template class Host<double>;

}  // namespace fidelio::train
