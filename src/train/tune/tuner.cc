#include "train/tune/tuner.h"

#include <algorithm>
#include <numbers>
#include <numeric>

#include "core/rng.h"
#include "train/host/host.h"
#include "train/tune/layer_bench.h"
#include "train/tune/trainer.h"

namespace fidelio::train {

int64_t tune_bytes(const ModelConfig& config, const TuneOptions& options) {
  int64_t weights = 0, outer = 0;
  for (LinearId id : linears_of(config)) (id.layer < 0 ? outer : weights) += shape_of(config, id).elements();
  // Values, masters, gradients and two moments of the model, values of the source; of tensors that stay as they are the
  // moments are never touched. The best model so far is at most its codes and scales.
  const int64_t all = weights + outer;
  return 4 * (6 * all) + 2 * all + Tape<Host<float>>::bytes(config, options.rows);
}

double schedule(int64_t step, int64_t steps, double warmup) {
  const double at = static_cast<double>(step), rise = std::max(1.0, warmup * static_cast<double>(steps));
  if (at < rise) return (at + 1) / (rise + 1);
  const double share = (at - rise) / std::max(1.0, static_cast<double>(steps) - rise);
  return 0.5 * (1 + std::cos(std::numbers::pi * share));
}

std::vector<int64_t> windows_of_step(int64_t step, int64_t windows, int64_t count, uint64_t seed) {
  std::vector<int64_t> chosen, order(static_cast<size_t>(count));
  int64_t shuffled = -1;
  for (int64_t i = step * windows; i < (step + 1) * windows; ++i) {
    if (i / count != shuffled) {
      shuffled = i / count;
      std::iota(order.begin(), order.end(), 0);
      Rng rng(seed, static_cast<uint64_t>(shuffled));
      for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[rng.below(k)]);
    }
    chosen.push_back(order[static_cast<size_t>(i % count)]);
  }
  return chosen;
}

TuneResult tune_on_host(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                        const TuneOptions& options, int threads,
                        const std::function<void(const TuneProgress&)>& progress) {
  Host<float> host(threads);
  return Trainer<Host<float>>(host, model, source, data, options, progress).run();
}

// Of a weight and a row: two operations forward, two to its input's gradient, two to its own. Attention: two products of
// L^2 / 2 by e forward, five with the scores again on the way back.
double layer_operations(const ModelConfig& c, int64_t windows, int64_t context) {
  double weights = 0;
  for (LinearId id : linears_of(c))
    if (id.layer == 0) weights += static_cast<double>(shape_of(c, id).elements());
  const auto n = static_cast<double>(windows * context), length = static_cast<double>(context);
  return n * (6 * weights + 7 * length * c.h * c.e);
}

int64_t layer_bytes(const ModelConfig& c, int64_t windows, int64_t context) {
  int64_t weights = 0;
  for (LinearId id : linears_of(c))
    if (id.layer == 0) weights += shape_of(c, id).elements();
  // Values, latents, gradients, two moments; three streams.
  return 4 * (5 * weights + windows * context * (Block<Host<float>>::row_values(c) + 3 * int64_t{c.d}));
}

LayerTiming time_layer_on_host(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                               int steps, int threads) {
  Host<float> host(threads);
  LayerBench<Host<float>> bench(host, config, spec, windows, context);
  LayerTiming t;
  t.seconds = bench.time(steps);
  t.operations = layer_operations(config, windows, context);
  t.product_rate = bench.product_rate(1024);
  t.bytes_foreseen = layer_bytes(config, windows, context);
  return t;
}

}  // namespace fidelio::train
