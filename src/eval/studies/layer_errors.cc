#include "eval/studies/layer_errors.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "runtime/dataset.h"

namespace fidelio {
namespace {

// Sums of squares: of what is wrong, and of what it is a share of.
struct Squares {
  double wrong = 0, whole = 0;
  double share() const { return whole > 0 ? std::sqrt(wrong / whole) : wrong > 0 ? 1 : 0; }
  void add(std::span<const float> x, std::span<const float> right, std::span<const float> before) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(x[i]) - right[i], added = static_cast<double>(right[i]) - before[i];
      wrong += error * error;
      whole += added * added;
    }
  }
};

std::vector<std::vector<float>> streams_of(Runner& source, const Batch& batch) {
  const int L = source.config().L;
  std::vector<std::vector<float>> streams(static_cast<size_t>(L) + 1);
  source.begin(batch, Activations::f32);
  source.embed();
  for (int layer = 0; layer <= L; ++layer) {
    auto& stream = streams[static_cast<size_t>(layer)];
    stream.resize(static_cast<size_t>(batch.rows() * source.config().d));
    source.read_stream(stream);
    if (layer < L) source.layers(layer, layer + 1);
  }
  return streams;
}

// Removes the mean of each row of logits.
void centre(std::span<float> logits, int64_t v) {
  for (size_t row = 0; row < logits.size(); row += static_cast<size_t>(v)) {
    const std::span<float> x = logits.subspan(row, static_cast<size_t>(v));
    double sum = 0;
    for (float l : x) sum += l;
    for (float& l : x) l -= static_cast<float>(sum / static_cast<double>(v));
  }
}

void add_head(Runner& source, Runner& candidate, const Batch& batch, std::span<const float> stream, Squares& head) {
  const int64_t v = source.config().v,
                most = std::min(source.options().max_logit_rows, candidate.options().max_logit_rows);
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  std::vector<float> right, x;
  source.write_stream(stream);
  candidate.write_stream(stream);
  for (int64_t first = 0; first < rows; first += most) {
    const auto values = static_cast<size_t>(std::min(most, rows - first) * v);
    right.resize(values), x.resize(values);
    source.read_logits(first, std::min(most, rows - first), right);
    candidate.read_logits(first, std::min(most, rows - first), x);
    centre(right, v), centre(x, v);
    head.add(x, right, std::vector<float>(values));
  }
}

bool stands_out(double error, double median) {
  return error > std::max(.1, 6 * median) || error > std::max(.7, 2 * median);
}

}  // namespace

LayerErrors measure_layer_errors(Runner& source, Runner& candidate, const std::vector<std::vector<int32_t>>& sequences,
                                 const Reading& reading) {
  const ModelConfig &a = source.config(), &b = candidate.config();
  check(a.L == b.L && a.d == b.d && a.v == b.v,
        "the models differ in shape: {} layers of {} with a vocabulary of {}, and {} layers of {} with {}", a.L, a.d,
        a.v, b.L, b.d, b.v);
  Squares embedding, head;
  std::vector<Squares> layers(static_cast<size_t>(a.L));
  const int64_t rows = std::min(source.options().max_rows, candidate.options().max_rows);
  for (PackedBatch& packed : pack_batches(sequences, rows, std::min(source.cache_pages(), candidate.cache_pages()))) {
    Batch& batch = packed.batch;
    for (int64_t row = 0; row < batch.rows(); ++row) batch.logit_rows.push_back(static_cast<int32_t>(row));
    const std::vector<std::vector<float>> streams = streams_of(source, batch);
    std::vector<float> x(streams[0].size());
    candidate.begin(batch, reading);
    candidate.embed();
    candidate.read_stream(x);
    embedding.add(x, streams[0], std::vector<float>(x.size()));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      candidate.write_stream(streams[layer]);
      candidate.layers(static_cast<int>(layer), static_cast<int>(layer) + 1);
      candidate.read_stream(x);
      layers[layer].add(x, streams[layer + 1], streams[layer]);
    }
    add_head(source, candidate, batch, streams.back(), head);
  }
  LayerErrors errors{embedding.share(), {}, head.share()};
  for (const Squares& layer : layers) errors.layers.push_back(layer.share());
  return errors;
}

double median_of_layers(const LayerErrors& errors) {
  std::vector<double> sorted = errors.layers;
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

std::vector<int> layers_that_stand_out(const LayerErrors& errors) {
  std::vector<int> found;
  const double median = median_of_layers(errors);
  for (size_t i = 0; i < errors.layers.size(); ++i)
    if (stands_out(errors.layers[i], median)) found.push_back(static_cast<int>(i));
  return found;
}

bool embedding_stands_out(const LayerErrors& errors) { return stands_out(errors.embedding, median_of_layers(errors)); }
bool head_stands_out(const LayerErrors& errors) { return stands_out(errors.head, median_of_layers(errors)); }

nlohmann::json to_json(const LayerErrors& errors) {
  return {{"embedding", errors.embedding},
          {"layers", errors.layers},
          {"head", errors.head},
          {"median", median_of_layers(errors)},
          {"stand_out", layers_that_stand_out(errors)}};
}

}  // namespace fidelio
