// A Tape runs a whole model forward and back. It keeps the inputs of the layers, and runs one layer at a time again
// on the way back. Logits exist for only a few rows at a time, since head and loss take the stream in chunks.
#pragma once
#include <algorithm>
#include <functional>

#include "train/block.h"

namespace fidelio::train {

struct LossSums {
  int64_t rows = 0;
  double loss[kLosses] = {};  // sums over rows of the forward, reverse and label losses

  double mixed(const LossMix& mix) const { return mix.forward * loss[0] + mix.reverse * loss[1] + mix.label * loss[2]; }
  void add(const LossSums& other) {
    rows += other.rows;
    for (int i = 0; i < kLosses; ++i) loss[i] += other.loss[i];
  }
};

template <class D>
class Tape {
 public:
  using Real = typename D::Real;
  using Rows = typename D::Rows;
  using Array = std::shared_ptr<Real[]>;

  Tape(D& device, const ModelConfig& config, int64_t rows)
      : device_(device),
        config_(config),
        capacity_(rows),
        chunk_(chunk_of(config, rows)),
        block_(device, config, rows) {
    for (int l = 0; l <= config.L; ++l) streams_.push_back(device.allocate(rows * config.d));
    other_ = device.allocate(rows * config.d);
    gradient_ = device.allocate(rows * config.d);
    hidden_ = device.allocate(chunk_ * config.d), teacher_hidden_ = device.allocate(chunk_ * config.d);
    dhidden_ = device.allocate(chunk_ * config.d);
    logits_ = device.allocate(chunk_ * config.v), teacher_logits_ = device.allocate(chunk_ * config.v);
    losses_ = device.allocate(rows * kLosses);
  }

  // Returns the number of rows of logits at a time.
  static int64_t chunk_of(const ModelConfig& c, int64_t rows) {
    return std::min(rows, std::max<int64_t>(128, (int64_t{1} << 26) / c.v));
  }
  int64_t chunk() const { return chunk_; }

  // Returns the bytes of a tape for so many rows.
  static int64_t bytes(const ModelConfig& c, int64_t rows) {
    return static_cast<int64_t>(sizeof(Real)) *
           (rows * (Block<D>::row_values(c) + (c.L + 3) * int64_t{c.d}) +
            chunk_of(c, rows) * (3 * int64_t{c.d} + 2 * int64_t{c.v}) + rows * kLosses);
  }
  Block<D>& block() { return block_; }
  int64_t capacity() const { return capacity_; }

  // Returns the residual stream (n, d) after the last layer, valid until the next call. If `keep`, the streams stay
  // for backward(); otherwise kept streams are not touched.
  Real* forward(const NetworkView<Real>& net, const Rows& rows, bool keep) {
    Real* first = keep ? streams_[0].get() : other_.get();
    device_.gather(rows, net.embedding.weight, config_.d, first);
    for (int l = 0; l < config_.L; ++l)
      block_.forward(net.layers[l], rows, keep ? streams_[l].get() : other_.get(),
                     keep ? streams_[l + 1].get() : other_.get());
    fresh_ = keep;
    return keep ? streams_[config_.L].get() : other_.get();
  }

  // Computes the losses of the student's kept `stream` against the teacher's, which is not kept (if it is null, only
  // labels count). Rows count if their next token is in the sequence, or all rows without labels. If gradient_scale
  // is not 0, the gradient of the mix, times gradient_scale, is left for backward().
  LossSums losses(const NetworkView<Real>& student, const NetworkView<Real>* teacher, const Real* teacher_stream,
                  const Rows& rows, const Real* stream, const LossMix& mix, double gradient_scale) {
    for (int64_t first = 0; first < rows.rows(); first += chunk_) {
      const int64_t n = std::min(chunk_, rows.rows() - first);
      logits_of(student, stream + first * config_.d, n, hidden_.get(), logits_.get());
      if (teacher != nullptr)
        logits_of(*teacher, teacher_stream + first * config_.d, n, teacher_hidden_.get(), teacher_logits_.get());
      const int32_t* labels = labels_ == nullptr ? nullptr : labels_ + first;
      device_.divergence(teacher == nullptr ? nullptr : teacher_logits_.get(), logits_.get(), labels, n, config_.v, mix,
                         gradient_scale, losses_.get() + first * kLosses);
      if (gradient_scale == 0) continue;
      linear_backward(device_, student.head, n, hidden_.get(), logits_.get(), false, dhidden_.get());
      device_.norm_backward(stream + first * config_.d, student.final.weight, config_.rms_eps, n, config_.d,
                            dhidden_.get(), gradient_.get() + first * config_.d, false, student.final.gradient);
    }
    LossSums sums;
    std::vector<double> of_rows(static_cast<size_t>(rows.rows() * kLosses));
    device_.download(losses_.get(), of_rows);
    for (size_t i = 0; i < of_rows.size(); ++i) sums.loss[i % kLosses] += of_rows[i];
    sums.rows = rows.rows();
    return sums;
  }
  // Sets the next tokens of the rows (n), in the device's memory. Null means that there are none.
  void set_labels(const int32_t* labels) { labels_ = labels; }

  // Goes back through all layers of the kept forward pass, from the gradient that losses() left (or that the caller
  // wrote to gradient()).
  void backward(const NetworkView<Real>& net, const Rows& rows) {
    for (int l = config_.L; l-- > 0;)
      block_.backward(net.layers[static_cast<size_t>(l)], rows, streams_[static_cast<size_t>(l)].get(), gradient_.get(),
                      l + 1 == config_.L);
    fresh_ = false;
    if (net.embedding.weight_gradient != nullptr)
      device_.scatter(rows, gradient_.get(), config_.d, net.embedding.weight_gradient);
  }
  Real* gradient() { return gradient_.get(); }
  // These are rows (n, d) that tuning a single layer uses for its own purposes.
  Real* input() { return streams_[0].get(); }
  Real* target() { return other_.get(); }

  void logits_of(const NetworkView<Real>& net, const Real* stream, int64_t n, Real* hidden, Real* logits) {
    device_.norm(stream, net.final.weight, config_.rms_eps, n, config_.d, hidden);
    linear(device_, net.head, n, hidden, false, logits);
  }
  // These are scratch memory of chunk() rows, for callers that want logits without a loss.
  Real* hidden() { return hidden_.get(); }
  Real* logits() { return logits_.get(); }

 private:
  D& device_;
  ModelConfig config_;
  int64_t capacity_, chunk_;
  Block<D> block_;
  std::vector<Array> streams_;  // (L + 1) of (n, d): every layer's input, and the last layer's output
  Array other_, gradient_, hidden_, teacher_hidden_, dhidden_, logits_, teacher_logits_, losses_;
  const int32_t* labels_ = nullptr;
  bool fresh_ = false;  // whether the block's last forward pass was that of the last layer
};

}  // namespace fidelio::train
