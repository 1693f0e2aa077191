// This program is a probe. It runs trellis codes with a computed codebook (the class of QTIP, Tseng et al. 2024) on
// the matrices of a model, beside grids and vector codes. Weights of 16 x 16 tiles are coded one after the other. A
// state of L bits takes in k new bits for each weight and is hashed to a nearly normal value ("1MAD": a product and a
// sum of four bytes), so nothing is looked up. Viterbi's algorithm finds the cheapest states of a tile, and errors
// are fed back into later columns as in vectors.cc.
//
//   trellis_bench MODEL CALIBRATION TOKENS OUT      writes OUT/NAME, checkpoints of decoded weights, to be evaluated
//
// The bits that it reports include everything: k, each tile's first state, and the FP16 scales of rows and columns.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "io/checkpoint.h"
#include "quant/quantize.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"
#include "runtime/taps.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

constexpr int kBits = 12, kStates = 1 << kBits, kTile = 16;

// Returns the values of all states by 1MAD. The four bytes of a product are nearly independent and uniform, so their
// sum is nearly normal.
std::vector<float> values_of_states() {
  std::vector<float> value(kStates);
  double square = 0;
  for (int s = 0; s < kStates; ++s) {
    const uint32_t x = static_cast<uint32_t>(s) * 34038481u + 76625530u;
    value[static_cast<size_t>(s)] =
        static_cast<float>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510.0f;
    square += double{value[static_cast<size_t>(s)]} * value[static_cast<size_t>(s)];
  }
  const auto unit = static_cast<float>(1 / std::sqrt(square / kStates));
  for (float& v : value) v *= unit;
  return value;
}

struct Viterbi {
  int bits;
  const std::vector<float>& value;
  std::vector<float> cost = std::vector<float>(kStates), best = {};
  std::vector<uint8_t> from = {};  // (steps, states >> bits): which predecessor was best
  std::vector<float> next = std::vector<float>(kStates);

  // Finds the values nearest to x (n), with squared errors weighted by `weight`.
  void run(const float* x, const float* weight, int n, float* y) {
    const int groups = kStates >> bits, many = 1 << bits;
    from.resize(static_cast<size_t>(n * groups));
    best.resize(static_cast<size_t>(groups));
    std::fill(cost.begin(), cost.end(), 0.0f);  // the first state may be any
    for (int t = 0; t < n; ++t) {
      uint8_t* choice = from.data() + t * groups;
      for (int q = 0; q < groups; ++q) best[static_cast<size_t>(q)] = cost[static_cast<size_t>(q)], choice[q] = 0;
      for (int j = 1; j < many; ++j) {
        const float* other = cost.data() + j * groups;
        for (int q = 0; q < groups; ++q) {
          const bool better = other[q] < best[static_cast<size_t>(q)];
          best[static_cast<size_t>(q)] = better ? other[q] : best[static_cast<size_t>(q)];
          choice[q] = better ? static_cast<uint8_t>(j) : choice[q];
        }
      }
      for (int s = 0; s < kStates; ++s) {
        const float e = x[t] - value[static_cast<size_t>(s)];
        next[static_cast<size_t>(s)] = best[static_cast<size_t>(s >> bits)] + weight[t] * e * e;
      }
      std::swap(cost, next);
    }
    int s = static_cast<int>(std::min_element(cost.begin(), cost.end()) - cost.begin());
    for (int t = n - 1; t >= 0; --t) {
      y[t] = value[static_cast<size_t>(s)];
      const int q = s >> bits;
      s = q + from[static_cast<size_t>(t * groups + q)] * groups;
    }
  }
};

struct Scales {
  std::vector<float> row, column;
};
Scales normalised(std::span<const float> w, int64_t out, int64_t in) {
  Scales s{std::vector<float>(static_cast<size_t>(out)), std::vector<float>(static_cast<size_t>(in))};
  for (int64_t r = 0; r < out; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < in; ++c) sum += double{w[r * in + c]} * w[r * in + c];
    s.row[r] = to_float(to_f16(static_cast<float>(std::sqrt(sum / static_cast<double>(in)))));
  }
  for (int64_t c = 0; c < in; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < out; ++r) sum += s.row[r] > 0 ? std::pow(double{w[r * in + c]} / s.row[r], 2) : 0;
    s.column[c] = to_float(to_f16(static_cast<float>(std::sqrt(std::max(1e-3, sum / static_cast<double>(out))))));
  }
  return s;
}

// Computes e U_bb^-1 for the columns [first, first + n) of a row.
void divide(const HessianFactor& f, int64_t first, int64_t n, float* e) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < j; ++i) e[j] -= e[i] * f.u(first + i, first + j);
    e[j] /= f.u(first + j, first + j);
  }
}

std::vector<float> quantize_trellis(int bits, std::span<const float> w, int64_t out, int64_t in, const HessianFactor& f,
                                    ThreadPool& pool) {
  static const std::vector<float> values = values_of_states();
  const Scales scales = normalised(w, out, in);
  std::vector<float> done(w.size()), target(w.size());
  for (int64_t r = 0; r < out; ++r)
    for (int64_t i = 0; i < in; ++i) target[r * in + i] = w[r * in + f.order[i]];
  pool.run((out + kTile - 1) / kTile, [&](int64_t job, int) {
    const int64_t first = job * kTile, rows = std::min<int64_t>(kTile, out - first);
    Viterbi viterbi{bits, values};
    for (int64_t c = 0; c < in; c += kTile) {
      const int64_t n = std::min<int64_t>(kTile, in - c);
      float x[kTile * kTile], weight[kTile * kTile], y[kTile * kTile];
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) {
          const float s = scales.row[first + r] * scales.column[f.order[c + i]];
          x[r * n + i] = s > 0 ? target[(first + r) * in + c + i] / s : 0;
          weight[r * n + i] = s * s * f.weight[f.order[c + i]];
        }
      viterbi.run(x, weight, static_cast<int>(rows * n), y);
      for (int64_t r = 0; r < rows; ++r) {
        float e[kTile];
        for (int64_t i = 0; i < n; ++i) {
          const float q = y[r * n + i] * scales.row[first + r] * scales.column[f.order[c + i]];
          done[(first + r) * in + f.order[c + i]] = q;
          e[i] = target[(first + r) * in + c + i] - q;
        }
        divide(f, c, n, e);
        for (int64_t k = c + n; k < in; ++k) {
          float by = 0;
          for (int64_t i = 0; i < n; ++i) by += e[i] * f.u(c + i, k);
          target[(first + r) * in + k] -= by;
        }
      }
    }
  });
  return done;
}

struct Method {
  std::string name;
  FormatSpec spec = {};
  int trellis = 0;  // bits of the trellis code
  int passes = 4;
  double bits = 0, weights = 0, loss = 0, energy = 0;
  std::map<LinearId, LinearWeight> made = {};
};

double bits_of(const Method& m, int64_t out, int64_t in) {
  const double weights = static_cast<double>(out) * static_cast<double>(in);
  if (m.trellis == 0) return 8.0 * static_cast<double>(stored_bytes(m.spec, out, in)) / weights;
  return m.trellis + static_cast<double>(kBits - m.trellis) / (kTile * kTile) +
         16.0 * static_cast<double>(out + in) / weights;
}

LinearWeight dense(const std::vector<float>& values, int64_t out, int64_t in) {
  OwnedTensor t = OwnedTensor::allocate(DType::f32, {out, in});
  std::copy(values.begin(), values.end(), t.as<float>().begin());
  return make_dense(t);
}

void quantise(Method& m, LinearId id, const LinearWeight& original, const std::vector<float>& w, const Hessian& h,
              const HessianFactor& f, ThreadPool& pool) {
  const int64_t out = original.out, in = original.in;
  std::vector<float> q;
  if (m.trellis > 0)
    q = quantize_trellis(m.trellis, w, out, in, f, pool);
  else
    q = decode(quantize_gptq(m.spec, w, out, in, h, f, {.descent_passes = m.passes}, pool).weight);
  const auto weights = static_cast<double>(out * in), loss = proxy_loss(w, q, out, in, h),
             energy = proxy_loss(w, std::vector<float>(w.size()), out, in, h);
  m.bits += weights * bits_of(m, out, in), m.weights += weights;
  m.loss += weights * loss / energy;
  m.made.emplace(id, dense(q, out, in));
}

// A Walk provides the inputs of linears on the calibration text, through the source's own weights.
struct Walk {
  Runner& runner;
  std::vector<PackedBatch> batches;
  std::vector<std::vector<float>> streams, firsts;  // now, and where the block begins
  int32_t block = -1;

  Walk(Runner& r, const Dataset& data)
      : runner(r), batches(pack_batches(data.sequences, r.options().max_rows, r.cache_pages())) {
    for (const PackedBatch& b : batches) {
      runner.begin(b.batch, Activations::f32);
      runner.embed();
      streams.emplace_back(static_cast<size_t>(b.batch.rows() * runner.config().d));
      runner.read_stream(streams.back());
    }
  }
  Hessian inputs(int layer, const Stop& stop, int64_t columns, ThreadPool& pool) {
    Hessian h(columns);
    if (const int32_t now = tap_of(runner.program(), layer, stop.name).block; now != block)
      firsts = streams, block = now;
    for (size_t i = 0; i < batches.size(); ++i) {
      std::vector<float> x(static_cast<size_t>(batches[i].batch.rows() * columns));
      runner.begin(batches[i].batch, Activations::f32);
      runner.write_stream(firsts[i]);
      read_input(runner, layer, stop.name, x);
      h.add(x, pool);
      if (!stop.adds) continue;
      add_output(runner, layer, stop.name, x, streams[i]);
      runner.read_stream(streams[i]);
    }
    return h;
  }
};

void probe(const std::string& model, const std::string& text, int64_t tokens, const std::string& folder) {
  const Checkpoint source = Checkpoint::open(model);
  const ModelConfig& config = source.config();
  const Tokenizer tokenizer = Tokenizer::load(source.texts());
  const Dataset data = read_dataset({text}, tokenizer, nullptr, {.context = 512, .max_tokens = tokens});
  const auto runner = make_cpu_runner(
      source,
      {.threads = 2, .isa = {}, .kv = KvFormat::f32, .max_rows = 2048, .cache_tokens = 4096, .mode = Activations::f32});
  ThreadPool pool(2);
  std::vector<Method> methods;
  for (const char* name : {"lut2g64", "vq8k16s8", "lut3g64", "lut4g64"}) {
    methods.push_back({.name = name, .spec = parse_format(name)});
    methods.push_back({.name = std::string(name) + "-fed-back", .spec = parse_format(name), .passes = 0});
  }
  for (int k = 2; k <= 4; ++k) methods.push_back({.name = fmt::format("trellis{}", k), .trellis = k});
  Walk walk(*runner, data);
  for (int layer = 0; layer < config.L; ++layer)
    for (const Stop& stop : stops_of(config, layer)) {
      const int64_t columns = shape_of(config, {layer, stop.roles[0]})[1];
      const Hessian h = walk.inputs(layer, stop, columns, pool);
      const HessianFactor f = factorize(h, 0.01, true, pool);
      for (const Role role : stop.roles) {
        const LinearWeight original = source.linear({layer, role});
        const std::vector<float> w = decode(original);
        for (Method& m : methods) quantise(m, {layer, role}, original, w, h, f, pool);
      }
      fmt::print(stderr, "layer {} {}\n", layer, to_string(LinearId{layer, stop.roles[0]}));
    }
  for (Method& m : methods) {
    fmt::print("{:18} {:.3f} bits, mean relative loss {:.5f}\n", m.name, m.bits / m.weights, m.loss / m.weights);
    std::map<LinearId, FormatSpec> formats;
    for (const auto& [id, w] : m.made) formats[id] = w.spec;
    write_checkpoint(
        folder + "/" + m.name, source, formats, [&](LinearId id) { return m.made.at(id); },
        nlohmann::json{{"method", "trellis_bench"}});
  }
}

}  // namespace
}  // namespace fidelio

int main(int count, char** arguments) {
  if (count != 5) return std::fprintf(stderr, "usage: trellis_bench MODEL CALIBRATION TOKENS OUT\n"), 2;
  try {
    fidelio::probe(arguments[1], arguments[2], std::stoll(arguments[3]), arguments[4]);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
  return 0;
}
