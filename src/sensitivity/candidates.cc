#include "sensitivity/candidates.h"

#include <algorithm>
#include <future>
#include <map>
#include <numeric>

#include "quant/quantize_model.h"

namespace fidelio {

// Rows are summed one by one and then added in order, which gives the same number for any number of threads.
double relative_error(const LinearWeight& w, const LinearWeight& original, ThreadPool& pool) {
  std::vector<double> error(static_cast<size_t>(w.out), 0.0), energy(error);
  pool.run_ranges(w.out, [&](int64_t first, int64_t last, int) {
    std::vector<float> q(static_cast<size_t>(w.in)), exact(q);
    for (int64_t row = first; row < last; ++row) {
      decode_row(w, row, q);
      decode_row(original, row, exact);
      for (size_t i = 0; i < q.size(); ++i) {
        const double difference = double{q[i]} - exact[i];
        error[static_cast<size_t>(row)] += difference * difference;
        energy[static_cast<size_t>(row)] += double{exact[i]} * exact[i];
      }
    }
  });
  const double whole = std::accumulate(energy.begin(), energy.end(), 0.0);
  return whole > 0 ? std::accumulate(error.begin(), error.end(), 0.0) / whole : 0;
}

namespace {

struct Lost {
  double relative = 0, output = 0;
};

// A Shelf is a store that notes the errors of every candidate and never returns codes, because nothing needs them
// while candidates are made.
class Shelf final : public StopStore {
 public:
  Shelf(CandidateStore& store, const Checkpoint& source, int threads)
      : store_(store), source_(source), pool_(threads) {}
  bool contains(const std::string& stop) const override { return store_.contains(stop); }
  std::vector<QuantizedLinear> load(const std::string& stop) const override {
    finish();
    std::vector<QuantizedLinear> linears = store_.list(stop);
    for (const QuantizedLinear& q : linears) note(q);
    return linears;
  }
  // Compares and saves in a background thread, which has threads of its own for comparing. Comparing, hashing and
  // writing take minutes for a model whose candidates are tens of gigabytes; meanwhile the next stop is quantised.
  void save(const std::string& stop, std::vector<QuantizedLinear> linears) override {
    finish();
    writing_ = std::async(std::launch::async, [this, stop, linears = std::move(linears)]() mutable {
      for (QuantizedLinear& q : linears) {
        q.relative_error = relative_error(q.weight, source_.linear(q.id), pool_);
        note(q);
      }
      for (const QuantizedLinear& q : linears) source_.drop(q.id);
      store_.save(stop, std::move(linears));
    });
  }
  // Waits until the last stop is written. Throws what writing it threw.
  void finish() const {
    if (writing_.valid()) writing_.get();
  }
  // Returns the errors of a candidate, once finish() was called. They are zero if the format is the source's own.
  Lost lost(LinearId id, const FormatSpec& format) const {
    const auto found = lost_.find({id, to_string(format)});
    return found == lost_.end() ? Lost{} : found->second;
  }

 private:
  void note(const QuantizedLinear& q) const {
    check(q.relative_error.has_value(), "{} has no {} with its error: it was kept for something else", stop_of(q.id),
          to_string(q.weight.spec));
    lost_[{q.id, to_string(q.weight.spec)}] = {*q.relative_error,
                                               q.report ? q.report->relative_loss() : *q.relative_error};
  }
  CandidateStore& store_;
  const Checkpoint& source_;
  ThreadPool pool_;
  mutable std::map<std::pair<LinearId, std::string>, Lost> lost_;
  mutable std::future<void> writing_;  // at most one stop is being written; the destructor waits for it
};

}  // namespace

CandidateSet::CandidateSet(Runner& runner, const Checkpoint& source, const Dataset& calibration,
                           const std::vector<LinearGroup>& groups, const std::vector<FormatSpec>& formats,
                           const GptqOptions& options, ThreadPool& pool, CandidateStore& store, const Ranks& ranks,
                           int64_t held_bytes)
    : runner_(runner), source_(source), store_(store) {
  Shelf shelf(store, source, pool.threads());
  ModelQuantizer how;
  how.options = options;
  how.sequential = false;
  how.store = &shelf;
  for (const LinearGroup& g : groups)
    for (LinearId id : g.linears) how.formats[id] = formats;
  const auto make = [&](int part, int parts) {
    how.part = part;
    how.parts = parts;
    quantize_model_gptq(runner, source, calibration, how, pool, [](const QuantizedLinear&) {});
    shelf.finish();
  };
  if (ranks.size() > 1) {
    make(ranks.rank(), ranks.size());
    ranks.gather({});
  }
  make(0, 1);
  int64_t bytes = 0;
  for (const LinearGroup& g : groups) {
    CandidateGroup group{g, 0, {}};
    for (LinearId id : g.linears) group.parameters += shape_of(source.config(), id).elements();
    for (const FormatSpec& format : formats) {
      Candidate candidate{format, [this, format](LinearId id) { return packed(id, format); }, 0, 0, 0};
      for (LinearId id : g.linears) {
        const Shape shape = shape_of(source.config(), id);
        candidate.bytes += stored_bytes(format, shape[0], shape[1]);
        const Lost lost = shelf.lost(id, format);
        candidate.relative_error += lost.relative / static_cast<double>(g.linears.size());
        candidate.output_error += lost.output / static_cast<double>(g.linears.size());
      }
      bytes += candidate.bytes;
      group.candidates.push_back(std::move(candidate));
    }
    std::stable_sort(group.candidates.begin(), group.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; });
    groups_.push_back(std::move(group));
  }
  holds_ = bytes <= held_bytes;
}

LinearWeight CandidateSet::weight(LinearId id, const FormatSpec& format) const {
  return source_.format(id) == format ? source_.linear(id) : store_.load(stop_of(id), id, format);
}

PackedLinear CandidateSet::packed(LinearId id, const FormatSpec& format) const {
  if (!holds_) return runner_.pack(weight(id, format));
  PackedLinear& held = held_[{id, to_string(format)}];
  if (!held) held = runner_.pack(weight(id, format));
  return held;
}

void offer_source(const Checkpoint& source, const std::vector<LinearGroup>& groups, SensitivityTable& table) {
  for (Group& g : table.groups) {
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const LinearGroup& l) { return l.name == g.name; });
    check(group != groups.end(), "the table's group {} is none of the model's", g.name);
    Option own{.format = source.format(group->linears.front())};
    bool one_format = true;
    for (LinearId id : group->linears) {
      one_format = one_format && source.format(id) == own.format;
      const Shape shape = shape_of(source.config(), id);
      own.bytes += stored_bytes(source.format(id), shape[0], shape[1]);
    }
    const bool offered =
        std::any_of(g.options.begin(), g.options.end(), [&](const Option& o) { return o.format == own.format; });
    if (one_format && !offered) g.options.push_back(own);
  }
}

int64_t fixed_bytes(const Checkpoint& source, const std::vector<LinearGroup>& groups) {
  int64_t bytes = 0;
  std::map<std::string, int64_t> codebooks;
  for (LinearId id : linears_of(source.config())) {
    const bool grouped = std::any_of(groups.begin(), groups.end(), [&](const LinearGroup& g) {
      return std::find(g.linears.begin(), g.linears.end(), id) != g.linears.end();
    });
    const Shape shape = shape_of(source.config(), id);
    if (!grouped) {
      bytes += stored_bytes(source.format(id), shape[0], shape[1]);
      codebooks[shared_name(source.format(id))] = shared_bytes(source.format(id));
    }
    if (has_bias(source.config(), id.role)) bytes += source.bias_tensor(id).view.bytes();
  }
  for (const auto& [layer, norm] : norms_of(source.config()))
    bytes += source.tensor(norm_name(source.config(), layer, norm)).view.bytes();
  for (const auto& [name, shape] : tensors_of_routers(source.config())) bytes += source.tensor(name).view.bytes();
  const std::map<LinearId, FormatSpec> predictor = predictor_formats(source);
  for (const LinearId id : kept_linears_of(source.config())) {
    const auto found = predictor.find(id);
    const Shape shape = shape_of(source.config(), id);
    bytes += stored_bytes(found == predictor.end() ? source.format(id) : found->second, shape[0], shape[1]);
  }
  for (const auto& [layer, norm] : predictor_norms_of(source.config()))
    bytes += source.tensor(norm_name(source.config(), layer, norm)).view.bytes();
  if (source.config().predictor && has_experts(source.config(), kPredictorLayer))
    bytes += source.tensor(router_name(source.config(), kPredictorLayer)).view.bytes();
  for (const int layer : delta_layers(source.config()))
    for (const DeltaTensor which : kDeltaTensors) bytes += source.tensor(delta_name(layer, which)).view.bytes();
  for (const auto& [name, shared] : codebooks) bytes += shared;
  return bytes;
}

std::map<LinearId, FormatSpec> formats_of(const SensitivityTable& table, const Plan& plan) {
  std::map<LinearId, FormatSpec> formats;
  for (size_t g = 0; g < table.groups.size(); ++g)
    for (const std::string& name : table.groups[g].linears)
      formats[parse_linear_id(name)] = table.groups[g].options[static_cast<size_t>(plan.choice[g])].format;
  return formats;
}

}  // namespace fidelio
