#include "train/tune/tuner.h"

#include <algorithm>
#include <numbers>
#include <numeric>

#include "core/rng.h"
#include "train/host/host.h"
#include "train/tune/layer_bench.h"
#include "train/tune/trainer.h"

namespace fidelio::train {

int64_t tune_bytes(const ModelConfig& config, const TuneOptions& options, int64_t context) {
  std::vector<int64_t> layers(static_cast<size_t>(config.L));
  int64_t outer = 0;
  for (LinearId id : linears_of(config))
    (id.layer < 0 ? outer : layers[static_cast<size_t>(id.layer)]) += shape_of(config, id).elements();
  const int64_t layer = *std::max_element(layers.begin(), layers.end());
  // This counts values, masters, gradients and two moments of the model, and the values of the source. The best model
  // so far is at most its codes and scales. Without steps of the whole model it is one layer at a time.
  const bool alone = options.steps == 0;
  const int64_t held = outer + (alone ? layer : std::accumulate(layers.begin(), layers.end(), int64_t{0}));
  const int64_t sums = options.windows * context <= options.rows ? 0 : alone ? layer : held;
  int64_t bytes = 4 * (6 * held + sums) + (alone ? 0 : 2 * held) + Tape<Host<float>>::bytes(config, options.rows);
  if (options.layer_steps > 0) bytes += LayerStage<Host<float>>::bytes(config, std::min<int64_t>(512, options.rows));
  return bytes;
}

nlohmann::json job_of(const Checkpoint& model, const Checkpoint& source, const TuneData& data, const TuneOptions& o) {
  return {{"model", model.weights_sha256()},
          {"source", source.weights_sha256()},
          {"text", data.sha256},
          {"loss", static_cast<int>(o.loss)},
          {"layer_steps", o.layer_steps},
          {"steps", o.steps},
          {"windows", o.windows},
          {"rows", o.rows},
          {"evaluate_every", o.evaluate_every},
          {"patience", o.patience},
          {"rates", o.rates},
          {"warmup", o.warmup},
          {"clip", o.clip},
          {"memory", o.memory},
          {"start", o.start},
          {"products", static_cast<int>(o.products)},
          {"outer", o.outer},
          {"dense", o.dense},
          {"seed", o.seed}};
}

int64_t rows_at_once(const TuneData& data, const TuneOptions& options) {
  int64_t rows = options.rows;
  for (const auto* windows : {&data.windows, &data.held})
    for (const auto& w : *windows) rows = std::max(rows, static_cast<int64_t>(w.size()));
  return rows;
}

nlohmann::json kept(const TuneReport& r) {
  nlohmann::json evaluations = nlohmann::json::array();
  for (const Evaluation& e : r.evaluations) evaluations.push_back({e.step, e.kl});
  return {{"best_step", r.best_step},     {"kl_before", r.kl_before},   {"evaluations", evaluations},
          {"diverged", r.diverged},       {"stopped", r.stopped_early}, {"layer_before", r.layer_before},
          {"layer_after", r.layer_after}, {"skipped", r.skipped},       {"skipped_at", r.skipped_at}};
}
TuneReport kept(const nlohmann::json& report) {
  TuneReport r;
  r.best_step = report.at("best_step"), r.kl_before = report.at("kl_before");
  for (const auto& e : report.at("evaluations")) r.evaluations.push_back({e.at(0), e.at(1)});
  r.diverged = report.at("diverged"), r.stopped_early = report.at("stopped");
  r.skipped = report.at("skipped"), r.skipped_at = report.at("skipped_at");
  r.layer_before = report.at("layer_before").get<std::vector<double>>();
  r.layer_after = report.at("layer_after").get<std::vector<double>>();
  return r;
}

double share_moved(const Checkpoint& model, const TunedWeights& weights) {
  int64_t moved = 0, all = 0;
  for (const auto& [id, weight] : weights.linears) {
    moved += different_codes(weight, model.linear(id));
    if (!weight.spec.is_dense() && weight.spec.kind != Kind::vq) all += weight.out * weight.in;
  }
  return all > 0 ? static_cast<double>(moved) / static_cast<double>(all) : 0;
}

Products parse_products(const std::string& name, bool gpu) {
  check(gpu || name.empty() || name == "f32", "--products {}: a CPU tunes in FP32; give it with --device cuda", name);
  if (name.empty()) return gpu ? Products::tf32 : Products::f32;
  if (name == "f32") return Products::f32;
  if (name == "tf32") return Products::tf32;
  if (name == "bf16") return Products::bf16;
  throw Error("--products {}: expected f32, tf32 or bf16", name);
}

void set_defaults(TuneOptions& o, bool gpu, int64_t context) {
  if (o.steps < 0) o.steps = gpu ? 1000 : 300;
  if (o.windows == 0) o.windows = gpu ? 32 : 8;
  if (o.rows == 0) o.rows = gpu ? 16384 : 2048;
  o.rows = std::max(o.rows, context);
  o.products = gpu ? o.products : Products::f32;
}
int64_t default_samples(bool gpu) { return gpu ? 4194304 : 262144; }

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

std::vector<std::pair<size_t, size_t>> slices_of(std::span<const int64_t> windows, int64_t rows) {
  const size_t n = windows.size();
  const int64_t all = std::accumulate(windows.begin(), windows.end(), int64_t{0});
  for (size_t count = std::max<size_t>(1, static_cast<size_t>((all + rows - 1) / rows));; ++count) {
    std::vector<std::pair<size_t, size_t>> slices;
    int64_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t first = n * i / count, last = n * (i + 1) / count;
      if (first == last) continue;
      slices.emplace_back(first, last);
      most = std::max(most, std::accumulate(windows.begin() + static_cast<int64_t>(first),
                                            windows.begin() + static_cast<int64_t>(last), int64_t{0}));
    }
    if (most <= rows || count >= n) return slices;
  }
}

TuneResult tune_on_host(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                        const TuneOptions& options, int threads,
                        const std::function<void(const TuneProgress&)>& progress, const Ranks& ranks) {
  Host<float> host(threads);
  return Trainer<Host<float>>(host, model, source, data, options, progress, ranks).run();
}

// For each weight and row there are two operations forward, two for the gradient of its input and two for its own.
// Attention has two products of L^2 / 2 by e forward, and five on the way back, with the scores again. A delta net is
// counted as host_delta.cc computes it: for each row and head 12 products with a state, and with a chunk of 64 rows 7
// by the columns of a key and 5.5 by those of a value.
double layer_operations(const ModelConfig& c, int64_t windows, int64_t context) {
  double weights = 0;
  for (LinearId id : linears_of(c))
    if (id.layer == 0) weights += static_cast<double>(shape_of(c, id).elements());
  const auto n = static_cast<double>(windows * context), length = static_cast<double>(context);
  const DeltaNet& net = c.delta;
  const double chunks = 64 * (14.0 * net.key_dim + 11.0 * net.value_dim);
  const double mixer =
      has_delta_net(c, 0) ? net.value_heads * (24.0 * net.key_dim * net.value_dim + chunks) : 7 * length * c.h * c.e;
  return n * (6 * weights + mixer);
}

int64_t layer_bytes(const ModelConfig& c, int64_t windows, int64_t context) {
  int64_t weights = 0;
  for (LinearId id : linears_of(c))
    if (id.layer == 0) weights += shape_of(c, id).elements();
  // These are values, latents, gradients and two moments, and three streams.
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
