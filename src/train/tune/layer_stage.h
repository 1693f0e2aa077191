// The LayerStage tunes a model layer by layer. Layer l reads what the tuned layers before it give, and is moved
// towards what the source's layer l makes of the source's own stream. Streams between layers wait in the device's
// memory.
#pragma once
#include "train/tune/team.h"
#include "train/tune/tuner.h"

namespace fidelio::train {

// The gradient of a mean over tokens, with respect to the position of a code, is of order 1e-7 or less. With the
// usual 1e-8, codes would move too slowly compared with scales.
inline constexpr double kAdamEps = 1e-12;

template <class D>
class LayerStage {
 public:
  using Real = typename D::Real;
  static constexpr size_t kWindows = 128;  // windows of the text, at most; more do not help a layer

  LayerStage(D& device, const ModelConfig& config, Tape<D>& tape, Team<D>& team, Student<D>& student,
             const NetworkView<Real>& teacher, const TuneData& data, const TuneOptions& options)
      : device_(device),
        config_(config),
        tape_(tape),
        team_(team),
        student_(student),
        teacher_(teacher),
        options_(options) {
    const size_t tuned = std::min(kWindows, data.windows.size()), held = std::min(kWindows, data.held.size());
    for (size_t i = 0; i < tuned; ++i) add(data.windows[i]);
    for (size_t i = 0; i < held; ++i) add(data.held[i]);
    tuned_ = tuned;
    for (auto* streams : {&ours_, &theirs_, &before_}) *streams = device.allocate(rows_ * config.d);
    for (const std::vector<size_t>& windows : slices(all(0, windows_.size()))) {
      const auto rows = device_.load(sequences_of(windows));
      for (auto [net, streams] : {std::pair{&student_.view(), ours_.get()}, {&teacher_, theirs_.get()}}) {
        device_.gather(rows, net->embedding.weight, config_.d, tape_.input());
        put(windows, tape_.input(), streams);
      }
    }
    device_.copy(ours_.get(), before_.get(), rows_ * config.d);
  }

  // Returns the bytes of the streams that wait between two layers.
  static int64_t bytes(const ModelConfig& c, int64_t context) {
    return static_cast<int64_t>(3 * 2 * kWindows * sizeof(Real)) * context * c.d;
  }

  // Tunes a layer. Returns the error of its output over the output's energy on the held windows, before and after. A
  // change that does not help is undone.
  std::pair<double, double> tune(int layer) {
    const auto at = static_cast<size_t>(layer);
    advance(teacher_.layers[at], theirs_.get());  // this is the target
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
  // Passes the streams of the untuned model through a layer that is still untuned.
  void pass_untuned(int layer) { advance(student_.view().layers[static_cast<size_t>(layer)], before_.get(), tuned_); }
  // Passes the streams through a layer that an earlier run has tuned.
  void skip(int layer) {
    const auto at = static_cast<size_t>(layer);
    advance(teacher_.layers[at], theirs_.get());
    advance(student_.view().layers[at], ours_.get());
  }

  // Returns KL(source || model) on the held windows, of the model as it was and as it is. It must follow the last
  // layer, and what is outside the layers must be loaded.
  std::pair<double, double> divergence() {
    const auto [before, after] = sums_over_held([&](const std::vector<size_t>& windows) {
      const auto rows = device_.load(sequences_of(windows));
      tape_.set_labels(rows.labels());
      take(windows, theirs_.get(), tape_.target());
      std::vector<double> kl;
      for (const Real* streams : {before_.get(), ours_.get()}) {
        take(windows, streams, tape_.input());
        kl.push_back(tape_.losses(student_.view(), &teacher_, tape_.target(), rows, tape_.input(), {}, 0).loss[0]);
      }
      return kl;
    });
    int64_t n = 0;
    for (const size_t i : all(tuned_, windows_.size())) n += windows_[i].rows();
    return {before / static_cast<double>(n), after / static_cast<double>(n)};
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

  // Returns the windows in slices of at most the tape's rows.
  std::vector<std::vector<size_t>> slices(const std::vector<size_t>& windows) const {
    std::vector<int64_t> rows;
    for (const size_t i : windows) rows.push_back(windows_[i].rows());
    std::vector<std::vector<size_t>> all;
    for (auto [first, last] : slices_of(rows, tape_.capacity()))
      all.emplace_back(windows.begin() + static_cast<int64_t>(first), windows.begin() + static_cast<int64_t>(last));
    return all;
  }
  Sequences sequences_of(const std::vector<size_t>& windows) const {
    Sequences sequences;
    for (const size_t i : windows) sequences.append(*windows_[i].ids);
    return sequences;
  }
  // Returns two sums over the held windows, of what f returns for slices of them.
  template <typename F>
  std::pair<double, double> sums_over_held(const F& f) {
    const auto held = slices(all(tuned_, windows_.size()));
    std::pair<double, double> sums = {0, 0};
    for (const std::vector<double>& two : team_.collect(held.size(), [&](size_t slice) { return f(held[slice]); }))
      sums.first += two[0], sums.second += two[1];
    return sums;
  }
  // These copy the windows' rows of a stream into rows that lie one after the other, and back.
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
  // Passes the streams of the windows from `first` on through a layer. The ranks divide them among each other, and in
  // the end all have all.
  void advance(const LayerView<Real>& layer, Real* streams, size_t first = 0) {
    const auto all_slices = slices(all(first, windows_.size()));
    std::vector<typename Team<D>::Values> made;
    for (size_t slice = 0; slice < all_slices.size(); ++slice) {
      const std::vector<size_t>& windows = all_slices[slice];
      const Sequences sequences = sequences_of(windows);
      made.push_back({streams + windows_[windows.front()].first * config_.d, sequences.rows() * config_.d});
      if (!team_.has(slice)) continue;
      take(windows, streams, tape_.input());
      tape_.block().forward(layer, device_.load(sequences), tape_.input(), tape_.gradient());
      put(windows, tape_.gradient(), streams);
    }
    team_.pass_on(made);
  }

  double error(size_t at) {
    const auto [error, energy] = sums_over_held([&](const std::vector<size_t>& windows) {
      const Sequences sequences = sequences_of(windows);
      const int64_t n = sequences.rows() * config_.d;
      take(windows, ours_.get(), tape_.input());
      tape_.block().forward(student_.view().layers[at], device_.load(sequences), tape_.input(), tape_.gradient());
      take(windows, theirs_.get(), tape_.target());
      const double difference = device_.difference(tape_.target(), 1, n, tape_.gradient());
      return std::vector<double>{difference, device_.sum_of_squares(tape_.target(), nullptr, n)};
    });
    return error / energy;
  }

  void gradients(int layer, int64_t step) {
    const LayerView<Real>& view = student_.view().layers[static_cast<size_t>(layer)];
    std::vector<size_t> windows;
    int64_t rows_of_step = 0;
    for (const int64_t i : windows_of_step(step, options_.windows, static_cast<int64_t>(tuned_),
                                           options_.seed + 1 + static_cast<uint64_t>(layer))) {
      windows.push_back(static_cast<size_t>(i));
      rows_of_step += windows_[windows.back()].rows();
    }
    std::vector<typename Team<D>::Values> tensors;
    student_.zero_gradients(layer);
    student_.pass_gradients(layer, [&](Real* values, int64_t n) { tensors.push_back({values, n}); });
    const auto of_step = slices(windows);
    team_.add_up(tensors, of_step.size(), [&](size_t slice) {
      const Sequences sequences = sequences_of(of_step[slice]);
      const auto rows = device_.load(sequences);
      take(of_step[slice], ours_.get(), tape_.input());
      tape_.block().forward(view, rows, tape_.input(), tape_.gradient());
      take(of_step[slice], theirs_.get(), tape_.target());
      device_.scale_difference(tape_.target(), 1 / static_cast<double>(rows_of_step * config_.d),
                               sequences.rows() * config_.d, tape_.gradient());
      tape_.block().backward(view, rows, tape_.input(), tape_.gradient(), true);
    });
  }

  void one_step(int layer, int64_t step) {
    gradients(layer, step);
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
    const auto keep = [&](const Real* values, int64_t n) {
      device_.download(values, all.emplace_back(static_cast<size_t>(n)));
    };
    student_.parameters(layer, [&](Parameter<D>& p) { keep(p.value.get(), p.n); });
    student_.choices(layer, [&](const std::string&, Real* values, int64_t n) { keep(values, n); });
    return all;
  }
  void restore(int layer, const std::vector<std::vector<float>>& all) {
    size_t i = 0;
    student_.parameters(layer, [&](Parameter<D>& p) { device_.upload(all[i++], p.value.get()); });
    student_.choices(layer, [&](const std::string&, Real* values, int64_t) { device_.upload(all[i++], values); });
    student_.decode(layer, false);
  }

  D& device_;
  ModelConfig config_;
  Tape<D>& tape_;
  Team<D>& team_;
  Student<D>& student_;
  const NetworkView<Real>& teacher_;
  TuneOptions options_;
  std::vector<Window> windows_;  // those to tune on first, then the held ones
  size_t tuned_ = 0;
  int64_t rows_ = 0;
  // Streams (rows, d): of the tuned model, of the source, and for the held windows of the model as it was.
  std::shared_ptr<Real[]> ours_, theirs_, before_;
};

}  // namespace fidelio::train
