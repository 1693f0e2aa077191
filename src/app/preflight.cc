#include "app/preflight.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "alloc/evolve.h"
#include "app/common.h"
#include "core/file.h"
#include "eval/fidelity.h"
#include "quant/workbench.h"

namespace fidelio::app {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// As stored and as packed: about the same, but for floating-point codes, which have no kernel here and are packed as
// FP32.
std::pair<int64_t, int64_t> candidate_bytes(const CompressSize& size) {
  std::pair<int64_t, int64_t> bytes{0, 0};
  for (const LinearGroup& g : size.groups)
    for (LinearId id : g.linears)
      for (const FormatSpec& f : size.formats) {
        const Shape shape = shape_of(size.source.config(), id);
        const int64_t stored = stored_bytes(f, shape[0], shape[1]);
        const bool decoded = f.kind == Kind::fp4 || f.kind == Kind::fp8;
        bytes.first += stored;
        bytes.second += decoded ? 4 * shape.elements() : stored;
      }
  return bytes;
}

// Embedding and head in every format, while the larger of them is there as numbers, rounded and compared.
int64_t vocabulary_bytes(const CompressSize& size) {
  int64_t bytes = 0, largest = 0;
  for (const LinearGroup& g : size.groups)
    for (LinearId id : g.linears) {
      if (id.layer >= 0) continue;
      const Shape shape = shape_of(size.source.config(), id);
      largest = std::max(largest, shape.elements());
      for (const FormatSpec& f : size.formats) bytes += stored_bytes(f, shape[0], shape[1]);
    }
  return bytes + 4 * 4 * largest;
}

// Forward passes over the search text, in units of a whole one: a change in layer l runs the L - l layers from there.
double sensitivity_passes(const CompressSize& size) {
  const ModelConfig& config = size.source.config();
  const auto formats = static_cast<double>(size.formats.size());
  double once = 0;  // every group changed once
  for (const LinearGroup& g : size.groups) {
    int first = g.linears.front().role == Role::head ? config.L : std::max(g.linears.front().layer, 0);
    once += static_cast<double>(config.L - first) / config.L;
  }
  if (size.method == "single") return once * formats;
  if (size.method == "linear") return once * EstimateOptions{}.noise_levels;
  return size.permutations * (once * (formats - 1) + (size.method == "shapley" ? formats - 1 : 1));
}
double sensitivity_measurements(const CompressSize& size) {
  const auto formats = static_cast<double>(size.formats.size()), groups = static_cast<double>(size.groups.size());
  if (size.method == "single") return groups * formats;
  if (size.method == "linear") return groups * EstimateOptions{}.noise_levels;
  return size.permutations * (groups * (formats - 1) + (size.method == "shapley" ? formats - 1 : 1));
}

// Of the whole search text: a generation's children by selection stage, and a curation after every so many stalls.
double evolution_passes(const CompressSize& size) {
  const EvolveOptions o;
  double each = static_cast<double>(o.offspring) / o.stall_limit, children = o.offspring;
  for (const auto& [survivors, share] : o.stages) {
    each += children * share;
    children = survivors;
  }
  return size.generations * each;
}

// The first rows and columns of a weight.
std::vector<float> corner(const LinearWeight& w, int64_t rows, int64_t columns) {
  std::vector<float> values, row(static_cast<size_t>(w.in));
  for (int64_t r = 0; r < rows; ++r) {
    decode_row(w, r, row);
    values.insert(values.end(), row.begin(), row.begin() + columns);
  }
  return values;
}

// Seconds of quantising per element of (out, in), as a + b in: rounding and range searches go by elements, error
// feedback and descent by elements times columns.
struct QuantiseRate {
  double a = 0, b = 0;
  double of(double out, double in) const { return out * in * (a + b * in); }
};

class Clock {
 public:
  Clock(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool)
      : size_(size), config_(size.source.config()), reference_(reference), pool_(pool) {
    packed_ = pack_batches(sample.sequences, size.rows, reference.cache_pages()).front();
    for (int64_t i = 0; i < std::min(packed_.batch.rows(), size.logit_rows); ++i)
      packed_.batch.logit_rows.push_back(static_cast<int32_t>(i));
    const auto rows = static_cast<double>(packed_.batch.rows());
    const auto forward = [&] {
      reference_.begin(packed_.batch, Activations::f32);
      reference_.embed();
      reference_.layers(0, config_.L);
    };
    forward();  // the first touches its memory
    forward_ = seconds_of(forward) / rows;
    const auto logit_rows = static_cast<int64_t>(packed_.batch.logit_rows.size());
    std::vector<float> logits;
    logit_ = seconds_of([&] {
               const std::span<const float> p = reference_.logits(0, logit_rows);
               logits.assign(p.begin(), p.end());
             }) /
             static_cast<double>(logit_rows);
    const auto v = static_cast<size_t>(config_.v);
    compare_ = seconds_of([&] {
                 std::vector<RowComparer> comparers(static_cast<size_t>(pool_.threads()));
                 pool_.run(logit_rows, [&](int64_t row, int thread) {
                   const std::span<const float> p = std::span(logits).subspan(static_cast<size_t>(row) * v, v);
                   comparers[static_cast<size_t>(thread)].compare(p, p);
                 });
               }) /
               static_cast<double>(logit_rows);
  }

  TimeNeed need() {
    TimeNeed t;
    t.candidates = candidates();
    const auto tokens = static_cast<double>(size_.search_tokens), formats = static_cast<double>(size_.formats.size());
    const double compared = 2 * logit_ + compare_;
    t.sensitivities = tokens * (forward_ + ((formats + sensitivity_passes(size_)) * forward_ +
                                            (formats + sensitivity_measurements(size_)) * compared) /
                                               size_.ranks);
    t.search = (size_.max_trials + 1) * static_cast<double>(size_.trial_tokens) * (2 * forward_ + compared);
    t.search += tokens * evolution_passes(size_) * (forward_ + compared);
    return t;
  }

 private:
  // Every rank takes the texts through the layers; the quantising is shared out.
  double candidates() {
    const auto tokens = static_cast<double>(size_.calibration_tokens);
    double seconds = 0;
    // Two linears as fit: the inputs of the first layer, the first columns of them; a GPU, which is slow at small ones,
    // sees them whole.
    const auto at_most = [&](int64_t in, int64_t most) { return reference_.gpu() ? in : std::min(in, most); };
    const QuantiseSample narrow = quantise({0, Role::q}, InputId::attn_in, at_most(config_.d, 768));
    const QuantiseSample wide = quantise({0, Role::down}, InputId::down_in, at_most(config_.f, 2048));
    for (LinearId id : linears_of(config_)) {
      if (std::none_of(size_.groups.begin(), size_.groups.end(), [&](const LinearGroup& g) {
            return std::find(g.linears.begin(), g.linears.end(), id) != g.linears.end();
          }))
        continue;
      const Shape shape = shape_of(config_, id);
      const auto out = static_cast<double>(shape[0]), in = static_cast<double>(shape[1]);
      if (id.layer < 0) {
        seconds += embedding(id);
        continue;
      }
      const double slope = std::max(0.0, (wide.quantise - narrow.quantise) / (wide.in - narrow.in));
      seconds += QuantiseRate{std::max(0.0, narrow.quantise - slope * narrow.in), slope}.of(out, in);
      // Sharers of an input share its Hessian.
      if (id.role == Role::k || id.role == Role::v || id.role == Role::up) continue;
      const QuantiseSample& near = in < wide.in ? narrow : wide;
      seconds += tokens * in * in * near.sum + in * in * in * near.factor;
    }
    return tokens * forward_ + seconds / size_.ranks;
  }

  struct QuantiseSample {
    double in = 0;
    double quantise = 0;  // seconds per element, all formats
    double sum = 0;       // per token and column squared
    double factor = 0;    // per column cubed
  };
  QuantiseSample quantise(LinearId id, InputId input, int64_t in) {
    QuantiseSample s{static_cast<double>(in), 0, 0, 0};
    reference_.begin(packed_.batch, Activations::f32);
    reference_.embed();
    const int64_t rows = packed_.batch.rows(), columns = shape_of(config_, id)[1];
    std::vector<float> x(static_cast<size_t>(rows * columns)), part;
    reference_.linear_input(0, input, x);
    for (int64_t r = 0; r < rows; ++r) part.insert(part.end(), x.begin() + r * columns, x.begin() + r * columns + in);
    const std::unique_ptr<Workbench> bench = make_workbench(reference_, pool_);
    bench->begin(in);
    s.sum = seconds_of([&] { bench->add(part); }) / static_cast<double>(rows * in * in);
    const GptqOptions options;
    s.factor = seconds_of([&] { bench->factorize(options.damping, options.act_order); }) / std::pow(s.in, 3);
    const LinearWeight weight = size_.source.linear(id);
    const int64_t out = reference_.gpu() ? weight.out : std::min<int64_t>(weight.out, 512);
    OwnedTensor w = OwnedTensor::allocate(DType::f32, {out, in});
    std::ranges::copy(corner(weight, out, in), w.as<float>().begin());
    const LinearWeight sample = make_dense(std::move(w));
    bench->load(sample);
    for (const FormatSpec& f : size_.formats)
      s.quantise += seconds_of([&] {
                      const GptqResult made = bench->quantize(f, options);
                      reference_.pack(made.weight);
                      decode(made.weight);
                    }) /
                    static_cast<double>(out * in);
    return s;
  }

  double embedding(LinearId id) {
    const LinearWeight weight = size_.source.linear(id);
    const int64_t out = std::min<int64_t>(weight.out, 1024);
    const std::vector<float> w = corner(weight, out, weight.in);
    double seconds = 0;
    for (const FormatSpec& f : size_.formats)
      seconds += seconds_of([&] {
        const LinearWeight made = quantize_rtn(f, w, out, weight.in, {}, pool_);
        reference_.pack(made);
        decode(made);
      });
    return seconds * static_cast<double>(weight.out) / static_cast<double>(out);
  }

  const CompressSize& size_;
  const ModelConfig& config_;
  Runner& reference_;
  ThreadPool& pool_;
  PackedBatch packed_;
  double forward_ = 0, logit_ = 0, compare_ = 0;  // seconds a token
};

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

std::vector<MemoryNeed> memory_needs(const CompressSize& size) {
  const ModelConfig& c = size.source.config();
  int64_t weights = 0;
  for (LinearId id : linears_of(c)) {
    const Shape shape = shape_of(c, id);
    weights += stored_bytes(size.source.format(id), shape[0], shape[1]);
  }
  const int64_t d = c.d, wide = std::max<int64_t>({c.f, int64_t{c.h} * c.e, d});
  const int64_t rows = size.rows;
  // A runner's own matrices: the stream, q k v or gate up, their scratch, the logits twice. Its cache has room for two
  // batches, of which texts touch one.
  const int64_t workspace =
      4 * (rows * (3 * d + int64_t{c.h + 2 * c.hk} * c.e + 4 * int64_t{c.f}) + 2 * size.logit_rows * c.v);
  const int64_t cached = int64_t{c.L} * 2 * rows * c.hk * c.e;  // values
  const MemoryNeed program{"the program, its libraries and texts", 24'000'000},
      reference{"weights of the reference", weights},
      runner{"the reference's own matrices and cache", workspace + 4 * cached};
  const auto [stored, packed] = candidate_bytes(size);
  if (size.on_gpu)  // holds everything that is packed and all that passes through the layers
    return {{"the program, its libraries, the driver's and texts", 700'000'000},
            {"candidates, as stored", stored},
            {"candidates of the vocabulary, or one weight decoded and its codes",
             std::max(vocabulary_bytes(size), 6 * wide * d)}};
  const MemoryNeed candidates{"candidates, as stored and as packed", stored + packed};
  const int64_t answering =
      size.answering_tokens > 0 ? weights + size.answering_tokens * 2 * 2 * int64_t{c.L} * c.hk * c.e : 0;

  // Four phases, each holding what the others do not: embedding and head are rounded; layers are quantised;
  // sensitivities are measured; plans are served.
  std::vector<std::vector<MemoryNeed>> phases = {
      {program, reference, runner, {"candidates of the vocabulary, and their weight decoded", vocabulary_bytes(size)}},
      {program,
       reference,
       runner,
       {"candidates, as stored", stored},
       {"calibration: streams, one Hessian and its factor",
        4 * size.calibration_tokens * (d + wide) + 4 * wide * wide + 3 * 8 * wide * wide},
       {"one weight decoded while it is quantised", 4 * 4 * wide * d}},
      {program,
       reference,
       runner,
       candidates,
       {"sensitivities: streams before every layer", 4 * size.search_tokens * d * (2 * (c.L + 1) + 1)}},
      {program,
       reference,
       runner,
       candidates,
       {"weights of the model served while searching", weights},
       {"its own matrices and cache", workspace + 2 * cached}}};
  if (answering > 0) phases.back().push_back({"the model that answers questions, and its cache", answering});
  return *std::max_element(phases.begin(), phases.end(),
                           [](const auto& x, const auto& y) { return total(x) < total(y); });
}

int64_t total(const std::vector<MemoryNeed>& needs) {
  int64_t bytes = 0;
  for (const MemoryNeed& need : needs) bytes += need.bytes;
  return bytes;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  int64_t available = -1;
  for (std::string word; file >> word;)
    if (word == "MemAvailable:" && file >> available) break;
  check(available >= 0, "/proc/meminfo does not say how much memory is available");
  available *= 1024;
  const auto limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - *used);
  return available;
}

void check_memory(const std::vector<MemoryNeed>& needs, int64_t available) {
  const MemoryNeed& most =
      *std::max_element(needs.begin(), needs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  check(total(needs) <= available,
        "this needs {} of memory and {} are available; the most is {} ({}). Offer fewer --formats, or fewer "
        "--calibration-tokens, --search-tokens",
        bytes_text(total(needs)), bytes_text(available), bytes_text(most.bytes), most.what);
}

TimeNeed time_need(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool) {
  return Clock(size, reference, sample, pool).need();
}

}  // namespace fidelio::app
