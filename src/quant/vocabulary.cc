#include "quant/vocabulary.h"

#include <algorithm>
#include <cmath>

#include "step/build.h"

namespace fidelio {
namespace {

constexpr int64_t kTokensAColumn = 32;  // tokens of the calibration text per column
constexpr int64_t kRoleTokens = 1024;   // tokens for the two numbers of measure_roles
// The noise is this share of a row's size; KL is still quadratic there, and far above the errors of FP32.
constexpr double kNoise = 1.0 / 64;

// Softmax holds the probabilities of a row of logits and their logarithms.
struct Softmax {
  std::vector<double> p, log_p;
  void of(std::span<const float> logits) {
    p.resize(logits.size());
    log_p.resize(logits.size());
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (size_t k = 0; k < logits.size(); ++k) sum += p[k] = std::exp(double{logits[k]} - top);
    for (size_t k = 0; k < logits.size(); ++k) {
      p[k] /= sum;
      log_p[k] = double{logits[k]} - top - std::log(sum);
    }
  }
};

// Returns the residual stream after the last layer. `on_rows` is called with the number of rows after every layer.
std::vector<float> final_stream(Runner& runner, const Batch& batch, const std::function<void(int64_t)>& on_rows) {
  std::vector<float> x(static_cast<size_t>(batch.rows() * runner.config().d));
  runner.begin(batch, Activations::f32);
  runner.embed();
  for (int layer = 0; layer < runner.config().L; ++layer) {
    runner.layers(layer, layer + 1);
    on_rows(batch.rows());
  }
  runner.read_stream(x);
  return x;
}

// Applies RMSNorm to every row in place, which gives what the head sees of a stream.
void normalise(std::span<float> x, const std::vector<float>& weight, float eps) {
  const size_t d = weight.size();
  for (size_t row = 0; row < x.size(); row += d) {
    double square = 0;
    for (size_t i = 0; i < d; ++i) square += double{x[row + i]} * x[row + i];
    const auto scale = static_cast<float>(1 / std::sqrt(square / static_cast<double>(d) + eps));
    for (size_t i = 0; i < d; ++i) x[row + i] *= scale * weight[i];
  }
}

double mean_square(const LinearWeight& w) {
  std::vector<float> row(static_cast<size_t>(w.in));
  double sum = 0;
  for (int64_t r = 0; r < w.out; ++r) {
    decode_row(w, r, row);
    for (float x : row) sum += double{x} * x;
  }
  return sum / static_cast<double>(w.out * w.in);
}

}  // namespace

VocabularyRoles measure_roles(Runner& runner, const Checkpoint& source,
                              const std::vector<std::vector<int32_t>>& sequences,
                              const std::function<void(int64_t)>& on_rows) {
  const LinearId embedding{-1, Role::embedding}, head{-1, Role::head};
  const PackedLinear exact = runner.linear(embedding);
  const LinearWeight weight = source.linear(embedding);
  const PackedLinear noisy = runner.pack_noisy(weight, kNoise, 0, false);
  const int64_t v = runner.config().v, most = runner.options().max_logit_rows;
  double kl = 0, spread = 0;
  int64_t tokens = 0;
  Softmax p, q;
  for (PackedBatch& packed : pack_batches(sequences, runner.options().max_rows, runner.cache_pages())) {
    const int64_t rows = packed.batch.rows();
    for (int64_t i = 0; i < rows; ++i) packed.batch.logit_rows.push_back(static_cast<int32_t>(i));
    runner.set_linear(embedding, noisy);  // this changed the tied head too, which the next line restores
    runner.set_linear(head, exact);
    const std::vector<float> changed = final_stream(runner, packed.batch, on_rows);
    runner.set_linear(embedding, exact);
    const std::vector<float> original = final_stream(runner, packed.batch, on_rows);
    std::vector<float> logits(static_cast<size_t>(most * v)), moved(logits.size());
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t count = std::min(most, rows - first);
      const auto values = static_cast<size_t>(count * v);
      runner.write_stream(original);
      runner.read_logits(first, count, std::span(logits).first(values));
      runner.write_stream(changed);
      runner.read_logits(first, count, std::span(moved).first(values));
      for (size_t at = 0; at < values; at += static_cast<size_t>(v)) {
        p.of(std::span(logits).subspan(at, static_cast<size_t>(v)));
        q.of(std::span(moved).subspan(at, static_cast<size_t>(v)));
        spread += 1;
        for (size_t k = 0; k < p.p.size(); ++k) {
          kl += p.p[k] * (p.log_p[k] - q.log_p[k]);
          spread -= p.p[k] * p.p[k];
        }
      }
      tokens += count;
    }
  }
  source.drop(embedding);
  check(tokens > 0, "the calibration text has no tokens to measure the embedding's two roles on");
  const double error = kNoise * kNoise * mean_square(weight) * static_cast<double>(weight.in);
  const auto n = static_cast<double>(tokens);
  // A model that is certain of everything says nothing about either role.
  return {std::max(spread / n, 1e-6), error > 0 ? 2 * kl / n / error : 0};
}

int64_t vocabulary_tokens(const ModelConfig& config, int64_t calibration_tokens) {
  const int64_t roles = config.tie_embeddings ? 2 * kRoleTokens : 0;  // with noise and without
  return std::min(calibration_tokens, kTokensAColumn * config.d) + std::min(2 * calibration_tokens, roles);
}

void observe_vocabulary(Runner& runner, const Checkpoint& source, const Dataset& calibration, Workbench& bench,
                        const std::function<void(int64_t)>& on_rows) {
  const ModelConfig& config = source.config();
  const auto part = [&](int64_t tokens) {
    return calibration.tokens <= tokens ? calibration.sequences : spread_evenly(calibration.sequences, tokens);
  };
  const Scalars scalars = scalars_of(config);
  std::vector<float> norm = source.norm(-1, Norm::final);
  for (float& x : norm) x *= scalars.final_norm;
  const int64_t longest =
      std::max_element(calibration.sequences.begin(), calibration.sequences.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      })->size();
  bench.begin(config.d);
  int64_t tokens = 0;
  for (const PackedBatch& packed : pack_batches(part(std::max(kTokensAColumn * config.d, longest)),
                                                runner.options().max_rows, runner.cache_pages())) {
    std::vector<float> x = final_stream(runner, packed.batch, on_rows);
    normalise(x, norm, scalars.eps);
    bench.add(x);
    tokens += packed.batch.rows();
  }
  if (!config.tie_embeddings) return;
  const VocabularyRoles roles = measure_roles(runner, source, part(std::max(kRoleTokens, longest)), on_rows);
  // The term tokens g / s times the identity is added as d further rows.
  std::vector<float> identity(static_cast<size_t>(config.d * config.d), 0.0f);
  for (int64_t i = 0; i < config.d; ++i)
    identity[static_cast<size_t>(i * config.d + i)] =
        static_cast<float>(std::sqrt(static_cast<double>(tokens) * roles.lookup / roles.spread));
  bench.add(identity);
}

}  // namespace fidelio
