#include "sensitivity/candidates.h"

#include <algorithm>
#include <numeric>

namespace fidelio {

// Rows are summed one by one, then in their order: the same number for any number of threads.
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

CandidateSet::CandidateSet(Runner& runner, const Checkpoint& source, const Dataset& calibration,
                           const std::vector<LinearGroup>& groups, const std::vector<FormatSpec>& formats,
                           const GptqOptions& options, ThreadPool& pool, StopStore* store, const Ranks& ranks) {
  ModelQuantizer how;
  how.options = options;
  how.sequential = false;
  how.store = store;
  for (const LinearGroup& g : groups)
    for (LinearId id : g.linears) how.formats[id] = formats;
  if (ranks.size() > 1) {
    how.part = ranks.rank();
    how.parts = ranks.size();
    quantize_model_gptq(runner, source, calibration, how, pool, [](const QuantizedLinear&) {});
    ranks.gather({});
    how.part = 0;
    how.parts = 1;
  }
  struct Errors {
    double relative = 0, output = 0;
  };
  std::map<std::pair<LinearId, std::string>, Errors> errors;
  quantize_model_gptq(runner, source, calibration, how, pool, [&](QuantizedLinear q) {
    const double relative = relative_error(q.weight, source.linear(q.id), pool);
    errors[{q.id, to_string(q.weight.spec)}] = {relative, q.report ? q.report->relative_loss() : relative};
    bytes_ += q.weight.stored_bytes();
    weights_[q.id].push_back(std::move(q.weight));
  });
  for (const LinearGroup& g : groups) {
    CandidateGroup group{g, 0, {}};
    for (LinearId id : g.linears) group.parameters += shape_of(source.config(), id).elements();
    for (const FormatSpec& format : formats) {
      Candidate candidate{format, {}, 0, 0, 0};
      for (LinearId id : g.linears) {
        candidate.weights[id] = runner.pack(weight(id, format));
        const Shape shape = shape_of(source.config(), id);
        candidate.bytes += stored_bytes(format, shape[0], shape[1]);
        const Errors& found = errors.at({id, to_string(format)});
        candidate.relative_error += found.relative / static_cast<double>(g.linears.size());
        candidate.output_error += found.output / static_cast<double>(g.linears.size());
      }
      group.candidates.push_back(std::move(candidate));
    }
    std::stable_sort(group.candidates.begin(), group.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; });
    groups_.push_back(std::move(group));
  }
}

const LinearWeight& CandidateSet::weight(LinearId id, const FormatSpec& format) const {
  for (const LinearWeight& w : weights_.at(id))
    if (w.spec == format) return w;
  throw Error("{} has no candidate in {}", to_string(id), to_string(format));
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
  for (LinearId id : linears_of(source.config())) {
    const bool grouped = std::any_of(groups.begin(), groups.end(), [&](const LinearGroup& g) {
      return std::find(g.linears.begin(), g.linears.end(), id) != g.linears.end();
    });
    const Shape shape = shape_of(source.config(), id);
    if (!grouped) bytes += stored_bytes(source.format(id), shape[0], shape[1]);
    const LinearWeight w = source.linear(id);
    if (w.bias) bytes += source.tensor(bias_name(id)).view.bytes();
  }
  for (const auto& [layer, norm] : norms_of(source.config()))
    bytes += source.tensor(norm_name(source.config(), layer, norm)).view.bytes();
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
