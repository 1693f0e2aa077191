#include "sensitivity/candidates.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace fidelio {

double relative_error(const LinearWeight& w, std::span<const float> original) {
  const std::vector<float> q = decode(w);
  double error = 0, energy = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const double difference = double{q[i]} - original[i];
    error += difference * difference;
    energy += double{original[i]} * original[i];
  }
  return energy > 0 ? error / energy : 0;
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
  std::map<LinearId, std::vector<double>> errors, output_errors;
  quantize_model_gptq(runner, source, calibration, how, pool, [&](QuantizedLinear q) {
    errors[q.id].push_back(relative_error(q.weight, decode(source.linear(q.id))));
    output_errors[q.id].push_back(q.report ? q.report->relative_loss() : errors[q.id].back());
    bytes_ += q.weight.stored_bytes();
    weights_[q.id].push_back(std::move(q.weight));
  });
  for (const LinearGroup& g : groups) {
    CandidateGroup group{g, 0, {}};
    for (LinearId id : g.linears) group.parameters += shape_of(source.config(), id).elements();
    for (size_t f = 0; f < formats.size(); ++f) {
      Candidate candidate{formats[f], {}, 0, 0, 0};
      for (LinearId id : g.linears) {
        const LinearWeight& w = weights_.at(id)[f];
        candidate.weights[id] = runner.pack(w);
        const Shape shape = shape_of(source.config(), id);
        candidate.bytes += stored_bytes(formats[f], shape[0], shape[1]);
        candidate.relative_error += errors.at(id)[f] / static_cast<double>(g.linears.size());
        candidate.output_error += output_errors.at(id)[f] / static_cast<double>(g.linears.size());
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
    bytes += source.tensor(norm_name(layer, norm)).view.bytes();
  return bytes;
}

LinearWeight noisy_weight(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform) {
  const std::vector<float> values = decode(weight);
  double energy = 0;
  for (float x : values) energy += double{x} * x;
  const double scale = sigma * std::sqrt(energy / static_cast<double>(values.size()));
  OwnedTensor noisy = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
  Rng rng(stream);
  const std::span<float> out = noisy.as<float>();
  for (size_t i = 0; i < values.size(); ++i)
    out[i] = static_cast<float>(values[i] + scale * (uniform ? std::sqrt(12.0) * (rng.uniform() - 0.5) : rng.normal()));
  return make_dense(std::move(noisy), weight.bias);
}

std::map<LinearId, FormatSpec> formats_of(const SensitivityTable& table, const Plan& plan) {
  std::map<LinearId, FormatSpec> formats;
  for (size_t g = 0; g < table.groups.size(); ++g)
    for (const std::string& name : table.groups[g].linears)
      formats[parse_linear_id(name)] = table.groups[g].options[static_cast<size_t>(plan.choice[g])].format;
  return formats;
}

}  // namespace fidelio
