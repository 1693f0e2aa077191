// Tuning layer by layer: layer l, reading what the tuned layers before it give, is moved towards what the source's layer
// l makes of the source's own stream. Streams between layers wait in the host's memory.
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
    for (size_t i = 0; i < tuned; ++i) windows_.push_back({data.windows[i], {}, {}});
    for (size_t i = 0; i < held; ++i) windows_.push_back({data.held[i], {}, {}});
    tuned_ = tuned;
    for (Window& w : windows_) {
      const auto rows = rows_of(w);
      embed(student_.view(), rows, w.ours), embed(teacher_, rows, w.theirs);
    }
  }

  // Error over energy of the layer's output on the held windows, before and after; what does not help is taken back.
  std::pair<double, double> tune(int layer) {
    const auto at = static_cast<size_t>(layer);
    for (Window& w : windows_) advance(teacher_.layers[at], w, w.theirs);  // what is aimed at
    const double before = error(at);
    const std::vector<std::vector<float>> start = masters(layer);
    for (int64_t step = 0; step < options_.layer_steps; ++step) one_step(layer, step);
    double after = error(at);
    if (!(after < before)) {
      restore(layer, start);
      after = before;
    }
    for (Window& w : windows_) advance(student_.view().layers[at], w, w.ours);
    return {before, after};
  }
  // A layer that an earlier run has tuned: only the streams go on.
  void skip(int layer) {
    const auto at = static_cast<size_t>(layer);
    for (Window& w : windows_) {
      advance(teacher_.layers[at], w, w.theirs);
      advance(student_.view().layers[at], w, w.ours);
    }
  }

 private:
  struct Window {
    std::vector<int32_t> ids;
    std::vector<float> ours, theirs;  // (n, d) streams: the tuned model's, the source's
  };
  typename D::Rows rows_of(const Window& w) {
    Sequences s;
    s.append(w.ids);
    return device_.load(s);
  }
  void embed(const NetworkView<Real>& net, const typename D::Rows& rows, std::vector<float>& stream) {
    device_.gather(rows, net.embedding.weight, config_.d, tape_.gradient());
    stream.resize(static_cast<size_t>(rows.rows() * config_.d));
    device_.download(tape_.gradient(), stream);
  }
  void advance(const LayerView<Real>& layer, const Window& w, std::vector<float>& stream) {
    const auto rows = rows_of(w);
    device_.upload(stream, tape_.gradient());
    tape_.block().forward(layer, rows, tape_.gradient(), tape_.gradient());
    device_.download(tape_.gradient(), stream);
  }

  double error(size_t at) {
    double error = 0, energy = 0;
    for (size_t i = tuned_; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      const int64_t n = static_cast<int64_t>(w.ours.size());
      device_.upload(w.ours, tape_.input());
      tape_.block().forward(student_.view().layers[at], rows_of(w), tape_.input(), tape_.gradient());
      device_.upload(w.theirs, tape_.input());
      error += device_.difference(tape_.input(), 1, n, tape_.gradient());
      energy += device_.sum_of_squares(tape_.input(), nullptr, n);
    }
    return error / energy;
  }

  void one_step(int layer, int64_t step) {
    student_.zero_gradients(layer);
    const LayerView<Real>& view = student_.view().layers[static_cast<size_t>(layer)];
    for (const int64_t i : windows_of_step(step, options_.windows, static_cast<int64_t>(tuned_),
                                           options_.seed + 1 + static_cast<uint64_t>(layer))) {
      const Window& w = windows_[static_cast<size_t>(i)];
      const auto rows = rows_of(w);
      const int64_t n = static_cast<int64_t>(w.ours.size());
      device_.upload(w.ours, tape_.input());
      tape_.block().forward(view, rows, tape_.input(), tape_.gradient());
      device_.upload(w.theirs, tape_.target());
      device_.difference(tape_.target(), 1 / static_cast<double>(n), n, tape_.gradient());
      tape_.block().backward(view, rows, tape_.input(), tape_.gradient());
    }
    student_.backward(layer);
    const double rise = schedule(step, options_.layer_steps, options_.warmup);
    student_.parameters(layer, [&](Parameter<D>& p) {
      p.step(device_, {.rate = rise * options_.rates[static_cast<size_t>(p.share)], .eps = kAdamEps, .step = step + 1},
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
};

}  // namespace fidelio::train
