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

// A token of every row but the last, drawn from its logits; -1 for the last.
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

// Leaves the gradients of each sequence's mean loss in the network, one sequence after the other, and calls `use`.
void for_each_gradient(const Checkpoint& checkpoint, std::span<const std::vector<int32_t>> sequences,
                       const SalienceOptions& options, const std::function<void(Host<float>&, const Network&)>& use,
                       const std::function<void(int64_t)>& progress) {
  check(!sequences.empty(), "gradients need at least one sequence");
  const ModelConfig& config = checkpoint.config();
  Host<float> host(options.threads);
  Network net(host, checkpoint, true);
  int64_t longest = 0;
  for (const auto& s : sequences) longest = std::max(longest, static_cast<int64_t>(s.size()));
  Tape<Host<float>> tape(host, config, longest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    check(sequences[i].size() >= 2, "sequence {} has {} tokens; a gradient needs a next token", i, sequences[i].size());
    Sequences one;
    one.append(sequences[i]);
    auto rows = host.load(one);
    if (!options.labels) rows.next = drawn_labels(tape, net, rows, config.v, config.d, options.seed, i);
    net.zero_gradients();
    tape.set_labels(rows.labels());
    const float* stream = tape.forward(net.view(), rows, true);
    tape.losses(net.view(), nullptr, nullptr, rows, stream, {0, 0, 1}, 1 / static_cast<double>(one.rows() - 1));
    tape.backward(net.view(), rows);
    use(host, net);
    if (progress) progress(static_cast<int64_t>(i) + 1);
  }
}

// (n, n) scaled by what makes its trace this.
void scale_to_trace(std::vector<float>& matrix, int64_t n, double trace) {
  double now = 0;
  for (int64_t i = 0; i < n; ++i) now += double{matrix[static_cast<size_t>(i * n + i)]};
  if (now <= 0) return;
  for (float& x : matrix) x = static_cast<float>(x * (trace / now));
}

}  // namespace

std::map<LinearId, std::vector<float>> mean_absolute_gradient(const Checkpoint& checkpoint,
                                                              std::span<const std::vector<int32_t>> sequences,
                                                              const SalienceOptions& options,
                                                              const std::function<void(int64_t)>& progress) {
  std::map<LinearId, std::vector<float>> sums;
  for (LinearId id : linears_of(checkpoint.config()))
    sums[id].resize(static_cast<size_t>(shape_of(checkpoint.config(), id).elements()));
  for_each_gradient(
      checkpoint, sequences, options,
      [&](Host<float>& host, const Network& net) {
        NetworkView<float> view = net.view();
        for (auto& [id, sum] : sums)
          host.add_absolute(slot(view, id).weight_gradient, sum.data(), static_cast<int64_t>(sum.size()));
      },
      progress);
  for (auto& [id, sum] : sums)
    for (float& x : sum) x /= static_cast<float>(sequences.size());
  return sums;
}

std::map<LinearId, KroneckerFactors> kronecker_factors(const Checkpoint& checkpoint,
                                                       std::span<const std::vector<int32_t>> sequences,
                                                       const SalienceOptions& options,
                                                       const std::function<void(int64_t)>& progress) {
  SalienceOptions drawn = options;
  drawn.labels = false;
  const ModelConfig& config = checkpoint.config();
  std::map<LinearId, KroneckerFactors> factors;
  for (LinearId id : linears_of(config)) {
    if (id.layer < 0) continue;
    const Shape s = shape_of(config, id);
    factors[id].output.resize(static_cast<size_t>(s[0] * s[0]));
    factors[id].input.resize(static_cast<size_t>(s[1] * s[1]));
  }
  for_each_gradient(
      checkpoint, sequences, drawn,
      [&](Host<float>& host, const Network& net) {
        NetworkView<float> view = net.view();
        for (auto& [id, f] : factors) {
          const LinearView<float>& w = slot(view, id);
          const float* g = w.weight_gradient;
          host.multiply({w.out, w.out, w.in, g, false, g, true, 1.0f, f.output.data()});
          host.multiply({w.in, w.in, w.out, g, true, g, false, 1.0f, f.input.data()});
        }
      },
      progress);
  for (auto& [id, f] : factors) {
    const Shape s = shape_of(config, id);
    double energy = 0;  // E[|G|^2]: the trace of the whole
    for (int64_t i = 0; i < s[0]; ++i) energy += double{f.output[static_cast<size_t>(i * s[0] + i)]};
    energy /= static_cast<double>(sequences.size());
    scale_to_trace(f.output, s[0], std::sqrt(energy));
    scale_to_trace(f.input, s[1], std::sqrt(energy));
  }
  return factors;
}

}  // namespace fidelio::train
