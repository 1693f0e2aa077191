// This file estimates how long each phase of a compression takes (compress/preflight.h), from samples that are timed on
// the device where it will run.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "alloc/evolve.h"
#include "compress/preflight.h"
#include "eval/fidelity/row_distances.h"
#include "quant/device/workbench.h"
#include "runtime/taps.h"

namespace fidelio {
namespace {

// Returns the number of forward passes over the search text. A change in layer l counts only the L - l layers from
// there.
double sensitivity_passes(const CompressSize& size) {
  const ModelConfig& config = size.source.config();
  const auto formats = static_cast<double>(size.formats.size());
  double once = 0;  // passes if every group is changed once
  for (const LinearGroup& g : size.groups) {
    int first = g.linears.front().role == Role::head ? config.L : std::max(g.linears.front().layer, 0);
    once += static_cast<double>(config.L - first) / config.L;
  }
  if (size.method == "none") return 0;
  if (size.method == "single") return once;
  if (size.method == "every") return once * formats;
  if (size.method == "linear") return once * EstimateOptions{}.noise_levels;
  return size.permutations * (once * (formats - 1) + (size.method == "shapley" ? formats - 1 : 1));
}
double sensitivity_measurements(const CompressSize& size) {
  const auto formats = static_cast<double>(size.formats.size()), groups = static_cast<double>(size.groups.size());
  if (size.method == "none") return 0;
  if (size.method == "single") return groups;
  if (size.method == "every") return groups * formats;
  if (size.method == "linear") return groups * EstimateOptions{}.noise_levels;
  return size.permutations * (groups * (formats - 1) + (size.method == "shapley" ? formats - 1 : 1));
}

// Estimates how often the evolution reads the whole search text: for a generation's children by selection stage, and
// for a curation after every so many stalls.
double evolution_passes(const CompressSize& size) {
  const EvolveOptions o;
  double each = static_cast<double>(o.offspring) / o.stall_limit, children = o.offspring;
  for (const auto& [survivors, share] : o.stages) {
    each += children * share;
    children = survivors;
  }
  return size.generations * each;
}

// Returns the first rows and columns of a weight, dense in FP32.
LinearWeight corner(const LinearWeight& w, int64_t rows, int64_t columns) {
  OwnedTensor values = OwnedTensor::allocate(DType::f32, {rows, columns});
  std::vector<float> row(static_cast<size_t>(w.in));
  for (int64_t r = 0; r < rows; ++r) {
    decode_row(w, r, row);
    std::copy_n(row.begin(), columns, values.as<float>().begin() + r * columns);
  }
  return make_dense(std::move(values));
}

// QuantiseRate gives the seconds of quantising as a + b in for each element of (out, in). Rounding and range searches
// go by elements, error feedback and descent by elements times columns.
struct QuantiseRate {
  Seconds a, b;
  Seconds of(double out, double in) const { return out * in * (a + in * b); }
};

class Clock {
 public:
  Clock(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool)
      : size_(size), config_(size.source.config()), reference_(reference), pool_(pool) {
    for (int layer = 0; layer < config_.L; ++layer) {
      const auto like = std::ranges::find_if(samples_, [&](const SampleLayer& s) {
        return has_delta_net(config_, s.layer) == has_delta_net(config_, layer) &&
               has_experts(config_, s.layer) == has_experts(config_, layer);
      });
      if (like == samples_.end())
        samples_.push_back({layer, 1});
      else
        ++like->count;
    }
    packed_ = pack_batches(sample.sequences, size.rows, reference.cache_pages()).front();
    for (int64_t i = 0; i < std::min(packed_.batch.rows(), size.logit_rows); ++i)
      packed_.batch.logit_rows.push_back(static_cast<int32_t>(i));
    dense_ = rates(Activations::f32);
    std::map<LinearId, PackedLinear> original;
    for (const LinearGroup& g : size.groups)
      for (LinearId id : g.linears)
        if (is_sample(id.layer) || (id.layer < 0 && !size.building_alone)) {
          original[id] = reference.linear(id);
          reference.set_linear(id, coded(id));
        }
    codes_ = rates(size.measured);
    if (!size.building_alone) served_ = rates(size.served);
    for (const auto& [id, weight] : original) reference.set_linear(id, weight);
    if (!size.building_alone) compare_ = comparing();
  }

  TimeNeed need() {
    TimeNeed t;
    t.candidates = candidates();
    t.building = building_ + vocabulary_;
    const auto tokens = static_cast<double>(size_.search_tokens), formats = static_cast<double>(size_.formats.size());
    // The measurements are the reference's streams, every format everywhere, and then one group at a time. A group has
    // codes in about one linear of seven; the walks of permutations have codes in every layer.
    const bool kept = kept_logit_bytes(size_.search_tokens, config_.v) > 0;
    const bool walks = size_.method == "shapley" || size_.method == "unified";
    const Seconds reference_logits = kept ? Seconds{} : dense_.head;
    const Seconds pass = walks ? codes_.layers : dense_.layers, head = (walks ? codes_.head : dense_.head) + compare_;
    Seconds one = formats * (codes_.layers + codes_.head + compare_ + reference_logits);
    one += sensitivity_passes(size_) * pass;
    one += sensitivity_measurements(size_) * (head + reference_logits);
    t.sensitivities = tokens * (dense_.layers + (kept ? dense_.head : Seconds{}) + one / size_.ranks);
    const Seconds token = dense_.layers + dense_.head + served_.layers + served_.head + compare_;
    const Seconds test = static_cast<double>(size_.certificate_tokens) * token;
    const Seconds trial = building_ + static_cast<double>(size_.trial_tokens) * token;
    const Seconds evolution = tokens * evolution_passes(size_) * (codes_.layers + codes_.head + compare_);
    // A plan of a given size is built and tested once. The trials of a target are followed by a ladder of plans, each
    // of which is built and tested.
    const auto search = [&](int trials) {
      if (trials == 0) return building_ + test + evolution;
      return trials * trial + kTypicalLadder * (building_ + test) + evolution;
    };
    t.search = search(std::min(kTypicalTrials, size_.max_trials));
    t.search_at_most = search(size_.max_trials);
    return t;
  }

 private:
  // Rates are seconds a token.
  struct Rates {
    Seconds layers, head;
  };
  Rates rates(Activations mode) {
    const auto rows = static_cast<double>(packed_.batch.rows()),
               logit_rows = static_cast<double>(packed_.batch.logit_rows.size());
    std::vector<float> stream(static_cast<size_t>(packed_.batch.rows() * config_.d));
    Rates r;
    for (int round = 0; round < 2; ++round) {  // The first round touches its memory.
      reference_.begin(packed_.batch, mode);
      reference_.embed();
      r.layers = {};
      for (const SampleLayer& sample : samples_)
        r.layers += sample.count / rows * seconds_of([&] {
                      reference_.layers(sample.layer, sample.layer + 1);
                      reference_.read_stream(stream);  // A GPU is done only now.
                    });
      r.head = seconds_of([&] { reference_.logits(0, static_cast<int64_t>(logit_rows)); }) / logit_rows;
    }
    return r;
  }

  Seconds comparing() {
    const auto rows = static_cast<int64_t>(packed_.batch.logit_rows.size());
    const int64_t v = config_.v;
    reference_.begin(packed_.batch, Activations::f32);
    reference_.embed();
    const auto p = reference_.allocate(rows * v), q = reference_.allocate(rows * v);
    reference_.read_logits(0, rows, {p.get(), static_cast<size_t>(rows * v)});
    reference_.layers(0, 1);
    reference_.read_logits(0, rows, {q.get(), static_cast<size_t>(rows * v)});
    const auto distances = make_row_distances(reference_.gpu(), pool_);
    std::vector<RowDistance> found(static_cast<size_t>(rows));
    const auto measure = [&] { distances->measure(p.get(), q.get(), v, found); };
    if (reference_.gpu()) measure();  // The first call loads its kernel.
    return seconds_of(measure) / static_cast<double>(rows);
  }

  // Returns a linear in the middle one of the formats, rounded to nearest.
  PackedLinear coded(LinearId id) {
    const LinearWeight weight = size_.source.linear(id);
    return reference_.pack(quantize_rtn(size_.formats[size_.formats.size() / 2], decode(weight), weight.out, weight.in,
                                        {.range_search = false, .importance = {}, .codebooks = size_.codebooks},
                                        pool_));
  }

  // Estimates the candidates, and building a plan on the way. Every rank takes the texts through the layers, and the
  // ranks share the quantising. Building a plan takes the texts through the layers twice, dense and as codes. It takes
  // three times as long for its Hessians, since the product of two inputs is not symmetric, and quantises to one
  // format.
  Seconds candidates() {
    const auto tokens = static_cast<double>(size_.calibration_tokens);
    Seconds seconds;
    building_ = tokens * (dense_.layers + codes_.layers);
    // Linears with the narrowest and the widest input are timed with the first columns of their inputs. A GPU, which is
    // slow at small ones, gets them whole.
    const auto at_most = [&](int64_t in, int64_t most) { return reference_.gpu() ? in : std::min(in, most); };
    std::vector<LayerStop> stops;  // of the sample layers; experts' gates and ups read what their router reads
    for (const LayerStop& s : stops_of(config_))
      if (is_sample(s.layer) && (s.stop->adds || !s.stop->routed)) stops.push_back(s);
    const auto in_of = [&](const LayerStop& s) { return shape_of(config_, {s.layer, s.stop->roles.front()})[1]; };
    const auto [least, most] = std::ranges::minmax_element(stops, {}, in_of);
    const QuantiseSample narrow = quantise(*least, at_most(in_of(*least), 768)),
                         wide = quantise(*most, at_most(in_of(*most), 2048));
    Seconds slope;
    if (wide.in > narrow.in) slope = (wide.quantise - narrow.quantise) / (wide.in - narrow.in);
    slope = {std::max(0.0, slope.wall), std::max(0.0, slope.cpu)};
    Seconds flat = narrow.quantise - narrow.in * slope;
    flat = {std::max(0.0, flat.wall), std::max(0.0, flat.cpu)};
    for (LinearId id : linears_of(config_)) {
      if (std::none_of(size_.groups.begin(), size_.groups.end(), [&](const LinearGroup& g) {
            return std::find(g.linears.begin(), g.linears.end(), id) != g.linears.end();
          }))
        continue;
      const Shape shape = shape_of(config_, id);
      const auto out = static_cast<double>(shape[0]), in = static_cast<double>(shape[1]);
      const bool head = !is_table(id.role) && (id.role == Role::head || config_.tie_embeddings);
      if (id.layer < 0 && !head) {
        const Seconds rounding = embedding(id);
        seconds += rounding;
        vocabulary_ += rounding / static_cast<double>(size_.formats.size());
        continue;
      }
      const Seconds quantising = QuantiseRate{flat, slope}.of(out, in);
      seconds += quantising;
      if (id.layer < 0) {  // Its inputs come from a pass over fewer tokens (quant/vocabulary.h).
        const Seconds passes =
            std::min(tokens, 32 * in) * (dense_.layers + in * in * narrow.sum) + in * in * in * narrow.factor;
        seconds += passes;
        vocabulary_ += passes + quantising / static_cast<double>(size_.formats.size());
        continue;
      }
      building_ += quantising / static_cast<double>(size_.formats.size());
      // Linears with the same input share its Hessian.
      if (std::ranges::none_of(stops_of(config_, id.layer), [&](const Stop& s) { return s.roles.front() == id.role; }))
        continue;
      const QuantiseSample& near = in < wide.in ? narrow : wide;
      const double share = share_of_rows(config_, id);
      const Seconds sum = share * tokens * in * in * near.sum, factor = in * in * in * near.factor;
      seconds += sum + factor;
      building_ += 3 * sum + factor;
    }
    return tokens * dense_.layers + seconds / size_.ranks;
  }

  struct QuantiseSample {
    double in = 0;
    Seconds quantise;  // per element, in all formats together
    Seconds sum;       // per token and column squared
    Seconds factor;    // per column cubed
  };
  QuantiseSample quantise(const LayerStop& stop, int64_t in) {
    const LinearId id = linears_of(config_, stop.layer, *stop.stop).front();
    QuantiseSample s{static_cast<double>(in), {}, {}, {}};
    reference_.begin(packed_.batch, Activations::f32);
    reference_.embed();
    const int64_t columns = shape_of(config_, id)[1];
    std::vector<float> x = input_of(stop, columns), part;
    const int64_t rows = static_cast<int64_t>(x.size()) / columns;
    for (int64_t r = 0; r < rows; ++r) part.insert(part.end(), x.begin() + r * columns, x.begin() + r * columns + in);
    const GptqOptions options{.codebooks = size_.codebooks};
    const LinearWeight weight = size_.source.linear(id);
    const int64_t out = reference_.gpu() ? weight.out : std::min<int64_t>(weight.out, 512);
    const LinearWeight sample = corner(weight, out, in);
    const auto elements = static_cast<double>(out * in);
    // A GPU loads its kernels and makes the handles of libraries when they are first needed. That takes a second or
    // two, which a whole run pays once and a sample must not multiply.
    for (int round = reference_.gpu() ? 0 : 1; round < 2; ++round) {
      const std::unique_ptr<Workbench> bench = make_workbench(reference_, pool_);
      bench->begin(in);
      s.sum = seconds_of([&] { bench->add(part); }) / static_cast<double>(rows * in * in);
      s.factor = seconds_of([&] { bench->factorize(options.damping, options.act_order); }) / std::pow(s.in, 3);
      bench->load(sample);
      s.quantise = {};
      for (const FormatSpec& f : size_.formats)
        s.quantise += seconds_of([&] {
                        const GptqResult made = bench->quantize(f, options);
                        reference_.pack(made.weight);
                        relative_error(made.weight, sample, pool_);
                      }) /
                      elements;
    }
    return s;
  }

  // Returns the rows that the linears of a stop read. For experts they are those of all experts.
  std::vector<float> input_of(const LayerStop& s, int64_t columns) {
    if (!s.stop->routed) {
      std::vector<float> x(static_cast<size_t>(packed_.batch.rows() * columns));
      read_input(reference_, s.layer, s.stop->name, x);
      return x;
    }
    const Routes routes = choose_experts(reference_, s.layer);
    std::vector<float> x(static_cast<size_t>(routes.count() * columns));
    return read_expert_input(reference_, s.layer, routes, x), x;
  }

  Seconds embedding(LinearId id) {
    const LinearWeight weight = size_.source.linear(id);
    const int64_t out = std::min<int64_t>(weight.out, 1024);
    const LinearWeight sample = corner(weight, out, weight.in);
    const std::vector<float> w = decode(sample);
    Seconds seconds;
    for (const FormatSpec& f : size_.formats)
      seconds += seconds_of([&] {
        const LinearWeight made =
            quantize_rtn(f, w, out, weight.in, {.importance = {}, .codebooks = size_.codebooks}, pool_);
        reference_.pack(made);
        relative_error(made, sample, pool_);
      });
    return static_cast<double>(weight.out) / static_cast<double>(out) * seconds;
  }

  // A SampleLayer is timed for all layers with the same parts, of which there are `count`.
  struct SampleLayer {
    int layer;
    double count;
  };
  bool is_sample(int layer) const { return std::ranges::find(samples_, layer, &SampleLayer::layer) != samples_.end(); }

  const CompressSize& size_;
  const ModelConfig& config_;
  std::vector<SampleLayer> samples_;
  Runner& reference_;
  ThreadPool& pool_;
  PackedBatch packed_;
  Rates dense_, codes_, served_;   // for the source at FP32, and for codes in sensitivities and in trials
  Seconds compare_;                // seconds to compare two rows of logits
  Seconds building_, vocabulary_;  // of a plan, and its share of the vocabulary; set by candidates()
};

}  // namespace

TimeNeed time_need(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool) {
  return Clock(size, reference, sample, pool).need();
}

Seconds quantising_time(const Checkpoint& source, const FormatSpec& format, bool with_embedding, const Dataset& data,
                        Runner& runner, ThreadPool& pool) {
  constexpr int64_t kRows = 512;  // the most rows of the sample
  const std::vector<LinearGroup> groups = groups_of(source.config(), Grouping::single, with_embedding);
  const std::vector<FormatSpec> formats = {format};
  CompressSize size{source, groups, formats};
  size.calibration_tokens = data.tokens;
  size.rows = std::min(kRows, runner.options().max_rows);
  size.logit_rows = 1;
  size.method = "none";
  size.building_alone = true;
  size.on_gpu = runner.gpu().has_value();
  Dataset sample;
  for (const auto& sequence : data.sequences) {
    if (sample.tokens > 0 && sample.tokens + std::ssize(sequence) > size.rows) break;
    sample.sequences.push_back(sequence);
    sample.sequences.back().resize(std::min<size_t>(sequence.size(), static_cast<size_t>(size.rows)));
    sample.tokens += std::ssize(sample.sequences.back());
  }
  return time_need(size, runner, sample, pool).building;
}

}  // namespace fidelio
