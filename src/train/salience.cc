#include "train/salience.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "train/host/host.h"
#include "train/network.h"
#include "train/tape.h"

namespace fidelio::train {
namespace {

using Network = DenseNetwork<Host<float>>;

// Returns a token for every row but the last, drawn from its logits, and -1 for the last.
std::vector<int32_t> drawn_labels(Tape<Host<float>>& tape, const Network& net, const Host<float>::Rows& rows, int64_t v,
                                  int64_t d, uint64_t seed, uint64_t stream) {
  Rng rng(seed, stream);
  std::vector<int32_t> labels(static_cast<size_t>(rows.rows()), -1);
  std::vector<double> sums(static_cast<size_t>(v));
  const float* hidden = tape.forward(net.view(), rows, false);
  for (int64_t first = 0; first < rows.rows(); first += tape.chunk()) {
    const int64_t n = std::min(tape.chunk(), rows.rows() - first);
    tape.logits_of(net.view(), hidden + first * d, n, tape.hidden(), tape.logits());
    for (int64_t r = 0; r < n && first + r + 1 < rows.rows(); ++r) {
      const float* row = tape.logits() + r * v;
      const float top = *std::max_element(row, row + v);
      double sum = 0;
      for (int64_t k = 0; k < v; ++k) sums[static_cast<size_t>(k)] = sum += std::exp(static_cast<double>(row[k] - top));
      const auto at = std::upper_bound(sums.begin(), sums.end(), rng.uniform() * sum);
      labels[static_cast<size_t>(first + r)] = static_cast<int32_t>(std::min<int64_t>(at - sums.begin(), v - 1));
    }
  }
  return labels;
}

// Runs the mean loss of each sequence forward and backward, one sequence after the other, and calls `use`. `view` is
// the network's view, with whatever else the backward pass is to add up.
class Gradients {
 public:
  Gradients(const Checkpoint& checkpoint, std::span<const std::vector<int32_t>> sequences,
            const SalienceOptions& options, bool weights)
      : options_(options),
        config_(checkpoint.config()),
        sequences_(sequences),
        host_(options.threads),
        net_(host_, checkpoint, weights) {
    check(!sequences.empty(), "gradients need at least one sequence");
    for (size_t i = 0; i < sequences.size(); ++i)
      check(sequences[i].size() >= 2, "sequence {} has {} tokens; a gradient needs a next token", i,
            sequences[i].size());
  }

  Host<float>& host() { return host_; }
  NetworkView<float> view() const { return net_.view(); }

  void run(const NetworkView<float>& view, const std::function<void()>& use,
           const std::function<void(int64_t)>& progress) {
    int64_t longest = 0;
    for (const auto& s : sequences_) longest = std::max(longest, static_cast<int64_t>(s.size()));
    Tape<Host<float>> tape(host_, config_, longest);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequences one;
      one.append(sequences_[i]);
      auto rows = host_.load(one);
      if (!options_.labels) rows.next = drawn_labels(tape, net_, rows, config_.v, config_.d, options_.seed, i);
      net_.zero_gradients();
      tape.set_labels(rows.labels());
      const float* stream = tape.forward(view, rows, true);
      tape.losses(view, nullptr, nullptr, rows, stream, {0, 0, 1}, 1 / static_cast<double>(one.rows() - 1));
      tape.backward(view, rows);
      use();
      if (progress) progress(static_cast<int64_t>(i) + 1);
    }
  }

 private:
  const SalienceOptions options_;
  const ModelConfig& config_;
  std::span<const std::vector<int32_t>> sequences_;
  Host<float> host_;
  Network net_;
};

}  // namespace

std::map<LinearId, std::vector<float>> mean_absolute_gradient(const Checkpoint& checkpoint,
                                                              std::span<const std::vector<int32_t>> sequences,
                                                              const SalienceOptions& options,
                                                              const std::function<void(int64_t)>& progress) {
  std::map<LinearId, std::vector<float>> sums;
  for (LinearId id : linears_of(checkpoint.config()))
    sums[id].resize(static_cast<size_t>(shape_of(checkpoint.config(), id).elements()));
  Gradients gradients(checkpoint, sequences, options, true);
  NetworkView<float> view = gradients.view();
  gradients.run(
      view,
      [&] {
        for (auto& [id, sum] : sums)
          gradients.host().add_absolute(slot(view, id).weight_gradient, sum.data(), static_cast<int64_t>(sum.size()));
      },
      progress);
  for (auto& [id, sum] : sums)
    for (float& x : sum) x /= static_cast<float>(sequences.size());
  return sums;
}

int64_t output_moments_bytes(const ModelConfig& config) {
  int64_t values = 0;
  for (LinearId id : linears_of(config))
    if (id.layer >= 0) values += shape_of(config, id)[0] * shape_of(config, id)[0];
  return values * static_cast<int64_t>(sizeof(float));
}

std::map<LinearId, std::vector<float>> output_moments(const Checkpoint& checkpoint,
                                                      std::span<const std::vector<int32_t>> sequences,
                                                      const SalienceOptions& options,
                                                      const std::function<void(int64_t)>& progress) {
  SalienceOptions drawn = options;
  drawn.labels = false;
  Gradients gradients(checkpoint, sequences, drawn, false);
  NetworkView<float> view = gradients.view();
  std::map<LinearId, std::vector<float>> moments;
  for (LinearId id : linears_of(checkpoint.config())) {
    if (id.layer < 0) continue;
    const int64_t out = shape_of(checkpoint.config(), id)[0];
    moments[id].resize(static_cast<size_t>(out * out));
    slot(view, id).output_moment = moments[id].data();
  }
  gradients.run(
      view, [] {}, progress);
  return moments;
}

}  // namespace fidelio::train
