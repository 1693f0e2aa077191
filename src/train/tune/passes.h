// Passes runs a whole model against its teacher, in slices that fit the tape.
#pragma once
#include <algorithm>
#include <cmath>

#include "train/tape.h"
#include "train/tune/team.h"
#include "train/tune/tuner.h"

namespace fidelio::train {

template <class D>
class Passes {
 public:
  using Real = typename D::Real;

  Passes(D& device, const ModelConfig& config, Tape<D>& tape, Team<D>& team, const NetworkView<Real>& teacher,
         const NetworkView<Real>& student)
      : device_(device), config_(config), tape_(tape), team_(team), teacher_(teacher), student_(student) {}

  const LossMix& mix() const { return mix_; }
  // Chooses the loss that gradients are taken of. For cakld it measures how sure the teacher is on the held-out
  // windows.
  void choose(Loss loss, const std::vector<std::vector<int32_t>>& held) {
    const double beta = loss == Loss::cakld ? confidence(held) : loss == Loss::reverse_kl ? 1 : 0;
    mix_ = loss == Loss::label ? LossMix{0, 0, 1} : LossMix{1 - beta, beta, 0};
  }

  // Returns these windows in slices of at most the tape's rows.
  std::vector<Sequences> slices(const std::vector<const std::vector<int32_t>*>& windows) const {
    std::vector<int64_t> rows;
    for (const auto* w : windows) rows.push_back(static_cast<int64_t>(w->size()));
    std::vector<Sequences> all;
    for (auto [first, last] : slices_of(rows, tape_.capacity())) {
      Sequences& slice = all.emplace_back();
      for (size_t i = first; i < last; ++i) slice.append(*windows[i]);
    }
    return all;
  }

  // Returns the losses of a slice. If gradient_scale is not 0, gradients through the whole model are computed too.
  LossSums pass(const Sequences& slice, double gradient_scale) {
    const auto rows = device_.load(slice);
    tape_.set_labels(rows.labels());
    const Real* theirs = tape_.forward(teacher_, rows, false);
    const Real* ours = tape_.forward(student_, rows, true);
    const LossSums sums = tape_.losses(student_, &teacher_, theirs, rows, ours, mix_, gradient_scale);
    if (gradient_scale != 0) tape_.backward(student_, rows);
    return sums;
  }

  // Returns the sum over the slices of all ranks, added up in order.
  template <typename F>
  LossSums sum(size_t slices, const F& losses_of) {
    LossSums sums;
    for (const std::vector<double>& n : team_.collect(slices, [&](size_t slice) {
           const LossSums one = losses_of(slice);
           return std::vector<double>{static_cast<double>(one.rows), one.loss[0], one.loss[1], one.loss[2]};
         }))
      sums.add({static_cast<int64_t>(n[0]), {n[1], n[2], n[3]}});
    return sums;
  }

  double evaluate(const std::vector<std::vector<int32_t>>& held) {
    const std::vector<Sequences> all = slices(pointers(held));
    const LossSums sums = sum(all.size(), [&](size_t slice) { return pass(all[slice], 0); });
    return sums.loss[0] / static_cast<double>(sums.rows);
  }

 private:
  static std::vector<const std::vector<int32_t>*> pointers(const std::vector<std::vector<int32_t>>& windows) {
    std::vector<const std::vector<int32_t>*> all;
    for (const auto& w : windows) all.push_back(&w);
    return all;
  }
  // Returns the mean over tokens of the teacher's largest probability, which is CAKLD's coefficient. Every rank
  // computes it for itself.
  double confidence(const std::vector<std::vector<int32_t>>& held) {
    double sum = 0;
    int64_t count = 0;
    std::vector<float> logits(static_cast<size_t>(tape_.chunk() * config_.v));
    for (const Sequences& slice : slices(pointers(held))) {
      const auto rows = device_.load(slice);
      const Real* stream = tape_.forward(teacher_, rows, false);
      for (int64_t first = 0; first < rows.rows(); first += tape_.chunk()) {
        const int64_t n = std::min(tape_.chunk(), rows.rows() - first);
        tape_.logits_of(teacher_, stream + first * config_.d, n, tape_.hidden(), tape_.logits());
        device_.download(tape_.logits(), std::span(logits).first(static_cast<size_t>(n * config_.v)));
        for (int64_t r = 0; r < n; ++r, ++count) {
          const auto row =
              std::span(logits).subspan(static_cast<size_t>(r * config_.v), static_cast<size_t>(config_.v));
          const float top = *std::max_element(row.begin(), row.end());
          double mass = 0;
          for (const float x : row) mass += std::exp(static_cast<double>(x - top));
          sum += 1 / mass;
        }
      }
    }
    return sum / static_cast<double>(count);
  }

  D& device_;
  ModelConfig config_;
  Tape<D>& tape_;
  Team<D>& team_;
  const NetworkView<Real>&teacher_, &student_;
  LossMix mix_;
};

}  // namespace fidelio::train
