// Tuning layer by layer: layer l, reading what the tuned layers before it give, is moved towards what the source's layer
// l makes of the source's own stream. Streams between layers wait in the device's memory.
#pragma once
#include "train/tune/tuner.h"

namespace fidelio::train {

// Gradients of a mean over tokens by the position of a code are of order 1e-7 and less; the usual 1e-8 would slow codes
// down beside scales.
inline constexpr double kAdamEps = 1e-12;

template <class D>
class LayerStage {
 public:
  using Real = typename D::Real;
  static constexpr size_t kWindows = 128;  // of the text, at most: what a layer can tell apart

  LayerStage(D& device, const ModelConfig& config, Tape<D>& tape, Student<D>& student, const NetworkView<Real>& teacher,
             const TuneData& data, const TuneOptions& options)
      : device_(device), config_(config), tape_(tape), student_(student), teacher_(teacher), options_(options) {
    const size_t tuned = std::min(kWindows, data.windows.size()), held = std::min(kWindows, data.held.size());
    for (size_t i = 0; i < tuned; ++i) add(data.windows[i]);
    for (size_t i = 0; i < held; ++i) add(data.held[i]);
    tuned_ = tuned;
    for (auto* streams : {&ours_, &theirs_, &before_}) *streams = device.allocate(rows_ * config.d);
    for_parts(all(0, windows_.size()), [&](const Sequences& part, const std::vector<size_t>& windows) {
      const auto rows = device_.load(part);
      for (auto [net, streams] : {std::pair{&student_.view(), ours_.get()}, {&teacher_, theirs_.get()}}) {
        device_.gather(rows, net->embedding.weight, config_.d, tape_.input());
        put(windows, tape_.input(), streams);
      }
    });
    device_.copy(ours_.get(), before_.get(), rows_ * config.d);
  }

  // Bytes of the streams that wait between two layers.
  static int64_t bytes(const ModelConfig& c, int64_t context) {
    return static_cast<int64_t>(3 * 2 * kWindows * sizeof(Real)) * context * c.d;
  }

  // Error over energy of the layer's output on the held windows, before and after; what does not help is taken back.
  std::pair<double, double> tune(int layer) {
    const auto at = static_cast<size_t>(layer);
    advance(teacher_.layers[at], theirs_.get());  // what is aimed at
    advance(student_.view().layers[at], before_.get(), tuned_);
    const double before = error(at);
    const std::vector<std::vector<float>> start = masters(layer);
    for (int64_t step = 0; step < options_.layer_steps; ++step) one_step(layer, step);
    double after = error(at);
    if (!(after < before)) {
      restore(layer, start);
      after = before;
    }
    advance(student_.view().layers[at], ours_.get());
    return {before, after};
  }
  // Streams of the model as it was, of a layer that holds what it was.
  void pass_untuned(int layer) { advance(student_.view().layers[static_cast<size_t>(layer)], before_.get(), tuned_); }
  // A layer that an earlier run has tuned: only the streams go on.
  void skip(int layer) {
    const auto at = static_cast<size_t>(layer);
    advance(teacher_.layers[at], theirs_.get());
    advance(student_.view().layers[at], ours_.get());
  }

  // After the last layer, with what is outside the layers at hand: KL(source || model) on the held windows, as the model
  // was and as it is.
  std::pair<double, double> divergence() {
    double kl[2] = {0, 0};
    int64_t n = 0;
    for_parts(all(tuned_, windows_.size()), [&](const Sequences& part, const std::vector<size_t>& windows) {
      const auto rows = device_.load(part);
      tape_.set_labels(rows.labels());
      take(windows, theirs_.get(), tape_.target());
      for (int i = 0; i < 2; ++i) {
        take(windows, i == 0 ? before_.get() : ours_.get(), tape_.input());
        kl[i] += tape_.losses(student_.view(), &teacher_, tape_.target(), rows, tape_.input(), {}, 0).loss[0];
      }
      n += part.rows();
    });
    return {kl[0] / static_cast<double>(n), kl[1] / static_cast<double>(n)};
  }

 private:
  struct Window {
    const std::vector<int32_t>* ids;
    int64_t first;  // its first row in the streams
    int64_t rows() const { return static_cast<int64_t>(ids->size()); }
  };
  void add(const std::vector<int32_t>& ids) {
    windows_.push_back({&ids, rows_});
    rows_ += windows_.back().rows();
  }
  static std::vector<size_t> all(size_t first, size_t last) {
    std::vector<size_t> list;
    for (size_t i = first; i < last; ++i) list.push_back(i);
    return list;
  }

  // f(sequences, windows) over parts of at most the tape's rows.
  template <typename F>
  void for_parts(const std::vector<size_t>& windows, const F& f) {
    Sequences part;
    std::vector<size_t> of_part;
    for (const size_t i : windows) {
      if (part.rows() > 0 && part.rows() + windows_[i].rows() > tape_.capacity()) {
        f(part, of_part);
        part = {}, of_part.clear();
      }
      part.append(*windows_[i].ids);
      of_part.push_back(i);
    }
    if (part.rows() > 0) f(part, of_part);
  }
  // The windows' rows of a stream, one behind the other, and back.
  void take(const std::vector<size_t>& windows, const Real* streams, Real* rows) {
    for (const size_t i : windows) {
      const int64_t n = windows_[i].rows() * config_.d;
      device_.copy(streams + windows_[i].first * config_.d, rows, n);
      rows += n;
    }
  }
  void put(const std::vector<size_t>& windows, const Real* rows, Real* streams) {
    for (const size_t i : windows) {
      const int64_t n = windows_[i].rows() * config_.d;
      device_.copy(rows, streams + windows_[i].first * config_.d, n);
      rows += n;
    }
  }
  void advance(const LayerView<Real>& layer, Real* streams, size_t first = 0) {
    for_parts(all(first, windows_.size()), [&](const Sequences& part, const std::vector<size_t>& windows) {
      take(windows, streams, tape_.input());
      tape_.block().forward(layer, device_.load(part), tape_.input(), tape_.gradient());
      put(windows, tape_.gradient(), streams);
    });
  }

  double error(size_t at) {
    double error = 0, energy = 0;
    for_parts(all(tuned_, windows_.size()), [&](const Sequences& part, const std::vector<size_t>& windows) {
      const int64_t n = part.rows() * config_.d;
      take(windows, ours_.get(), tape_.input());
      tape_.block().forward(student_.view().layers[at], device_.load(part), tape_.input(), tape_.gradient());
      take(windows, theirs_.get(), tape_.target());
      error += device_.difference(tape_.target(), 1, n, tape_.gradient());
      energy += device_.sum_of_squares(tape_.target(), nullptr, n);
    });
    return error / energy;
  }

  void one_step(int layer, int64_t step) {
    student_.zero_gradients(layer);
    const LayerView<Real>& view = student_.view().layers[static_cast<size_t>(layer)];
    std::vector<size_t> windows;
    int64_t rows_of_step = 0;
    for (const int64_t i : windows_of_step(step, options_.windows, static_cast<int64_t>(tuned_),
                                           options_.seed + 1 + static_cast<uint64_t>(layer))) {
      windows.push_back(static_cast<size_t>(i));
      rows_of_step += windows_[windows.back()].rows();
    }
    for_parts(windows, [&](const Sequences& part, const std::vector<size_t>& of_part) {
      const auto rows = device_.load(part);
      take(of_part, ours_.get(), tape_.input());
      tape_.block().forward(view, rows, tape_.input(), tape_.gradient());
      take(of_part, theirs_.get(), tape_.target());
      device_.scale_difference(tape_.target(), 1 / static_cast<double>(rows_of_step * config_.d),
                               part.rows() * config_.d, tape_.gradient());
      tape_.block().backward(view, rows, tape_.input(), tape_.gradient(), true);
    });
    student_.backward(layer);
    const double rise = schedule(step, options_.layer_steps, options_.warmup);
    student_.parameters(layer, [&](Parameter<D>& p) {
      p.step(device_,
             {.rate = rise * options_.rates[static_cast<size_t>(p.share)],
              .beta2 = options_.memory,
              .eps = kAdamEps,
              .step = step + 1},
             1);
    });
    student_.decode(layer);
  }

  std::vector<std::vector<float>> masters(int layer) {
    std::vector<std::vector<float>> all;
    student_.parameters(
        layer, [&](Parameter<D>& p) { device_.download(p.value.get(), all.emplace_back(static_cast<size_t>(p.n))); });
    return all;
  }
  void restore(int layer, const std::vector<std::vector<float>>& all) {
    size_t i = 0;
    student_.parameters(layer, [&](Parameter<D>& p) { device_.upload(all[i++], p.value.get()); });
    student_.decode(layer);
  }

  D& device_;
  ModelConfig config_;
  Tape<D>& tape_;
  Student<D>& student_;
  const NetworkView<Real>& teacher_;
  TuneOptions options_;
  std::vector<Window> windows_;  // tuned ones first, then held ones
  size_t tuned_ = 0;
  int64_t rows_ = 0;
  // (rows, d) streams: the tuned model's, the source's; of the held windows the model's as it was.
  std::shared_ptr<Real[]> ours_, theirs_, before_;
};

}  // namespace fidelio::train
