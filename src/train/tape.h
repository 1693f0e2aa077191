// A whole model forward and back: the inputs of its layers are kept, one layer at a time is run again on the way back.
// Logits exist for a few rows at a time: head and loss take the stream in chunks.
#pragma once
#include <algorithm>
#include <functional>

#include "train/block.h"

namespace fidelio::train {

struct LossSums {
  int64_t rows = 0;
  double loss[kLosses] = {};  // sums over rows: forward, reverse, label

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

  // Rows of logits at a time.
  static int64_t chunk_of(const ModelConfig& c, int64_t rows) {
    return std::min(rows, std::max<int64_t>(128, (int64_t{1} << 26) / c.v));
  }
  int64_t chunk() const { return chunk_; }

  // Bytes that a tape for so many rows holds.
  static int64_t bytes(const ModelConfig& c, int64_t rows) {
    return static_cast<int64_t>(sizeof(Real)) *
           (rows * (Block<D>::row_values(c) + (c.L + 3) * int64_t{c.d}) +
            chunk_of(c, rows) * (3 * int64_t{c.d} + 2 * int64_t{c.v}) + rows * kLosses);
  }
  Block<D>& block() { return block_; }
  int64_t capacity() const { return capacity_; }

  // The stream (n, d) after the last layer, valid until the next call; streams of a forward that is kept stay for
  // backward(), others leave them alone.
  Real* forward(const NetworkView<Real>& net, const Rows& rows, bool keep) {
    Real* first = keep ? streams_[0].get() : other_.get();
    device_.gather(rows, net.embedding.weight, config_.d, first);
    for (int l = 0; l < config_.L; ++l)
      block_.forward(net.layers[l], rows, keep ? streams_[l].get() : other_.get(),
                     keep ? streams_[l + 1].get() : other_.get());
    fresh_ = keep;
    return keep ? streams_[config_.L].get() : other_.get();
  }

  // The losses of `student`'s stream (kept) against `teacher`'s (not kept; null: labels alone) over all rows whose next
  // token is in the sequence, or over all rows without labels. With gradient_scale != 0 the gradient of the mix, times
  // it, is left for backward().
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
  // Next tokens of the rows (n), in the device's memory; null: none.
  void set_labels(const int32_t* labels) { labels_ = labels; }

  // Through all layers of the forward that was kept, from what losses() left (or gradient(), filled by the caller).
  void backward(const NetworkView<Real>& net, const Rows& rows) {
    for (int l = config_.L; l-- > 0;)
      block_.backward(net.layers[static_cast<size_t>(l)], rows, streams_[static_cast<size_t>(l)].get(), gradient_.get(),
                      l + 1 == config_.L);
    fresh_ = false;
    if (net.embedding.weight_gradient != nullptr)
      device_.scatter(rows, gradient_.get(), config_.d, net.embedding.weight_gradient);
  }
  Real* gradient() { return gradient_.get(); }
  // Rows (n, d) that tuning a single layer uses for its own.
  Real* input() { return streams_[0].get(); }
  Real* target() { return other_.get(); }

  void logits_of(const NetworkView<Real>& net, const Real* stream, int64_t n, Real* hidden, Real* logits) {
    device_.norm(stream, net.final.weight, config_.rms_eps, n, config_.d, hidden);
    linear(device_, net.head, n, hidden, false, logits);
  }
  // Scratch of chunk() rows, for who wants logits without a loss.
  Real* hidden() { return hidden_.get(); }
  Real* logits() { return logits_.get(); }

 private:
  D& device_;
  ModelConfig config_;
  int64_t capacity_, chunk_;
  Block<D> block_;
  std::vector<Array> streams_;  // (L + 1) of (n, d): every layer's input, and the last's output
  Array other_, gradient_, hidden_, teacher_hidden_, dhidden_, logits_, teacher_logits_, losses_;
  const int32_t* labels_ = nullptr;
  bool fresh_ = false;  // the last layer's forward is what the block did last
};

}  // namespace fidelio::train
