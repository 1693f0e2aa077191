#include "compress/builder.h"

#include <future>

#include "core/hash.h"

namespace fidelio {
namespace {

// A PlanStore keeps the quantised linears of plans in the journal, stop by stop. The result of a stop follows from the
// formats of its own layer and of those before it, so two plans that differ from some layer on share all stops before
// that layer.
class PlanStore final : public StopStore {
 public:
  PlanStore(Journal& journal, const std::map<LinearId, FormatSpec>& formats) : journal_(journal) {
    std::map<int, std::string> of_layer;
    for (const auto& [id, format] : formats)  // no layer reads the head, all read the embedding and a layers' table
      if (id.role != Role::head) of_layer[id.layer] += to_string(id) + " " + to_string(format) + "\n";
    std::string before;
    for (const auto& [layer, text] : of_layer) {
      before = sha256_hex(before + text);
      prefix_[layer] = "plan-" + before.substr(0, 16) + ".";
    }
  }
  bool contains(const std::string& stop) const override { return journal_.contains(name_of(stop)); }
  std::vector<QuantizedLinear> load(const std::string& stop) const override { return journal_.load(name_of(stop)); }
  // Saves in a background thread: hashing and writing take longer than quantising a stop on a GPU.
  void save(const std::string& stop, std::vector<QuantizedLinear> linears) override {
    finish();
    writing_ = std::async(std::launch::async, [this, name = name_of(stop), linears = std::move(linears)]() mutable {
      journal_.save(name, std::move(linears));
    });
  }
  // Waits until the last stop is written. Throws what writing it threw.
  void finish() {
    if (writing_.valid()) writing_.get();
  }

 private:
  // A stop of a layer is named "layers.3.qkv". Embedding and head are candidates, so nobody asks for them here.
  std::string name_of(const std::string& stop) const {
    return prefix_.at(std::stoi(stop.substr(stop.find('.') + 1))) + stop;
  }

  Journal& journal_;
  std::map<int, std::string> prefix_;
  std::future<void> writing_;  // at most one stop is being written; the destructor waits for it
};

}  // namespace

const Built& Builder::build(const Plan& plan) {
  if (plan.choice == built_.choice) return built_;
  const auto part = desk_.time.part("building plans");
  built_ = {};
  in_force_.reset();
  in_force_.emplace(runners_, Runners::Which::served);
  Runner& served = in_force_->runner();
  ModelQuantizer how;
  how.original = &runners_.reference();
  how.options.codebooks = &runners_.codebooks();
  const std::map<LinearId, FormatSpec> formats = desk_.quantised_formats(table_, plan);
  std::string name;
  for (const auto& [id, format] : formats) {
    name += to_string(id) + " " + to_string(format) + "\n";
    if (id.layer >= 0) {
      how.formats[id] = {format};
      continue;
    }
    built_.weights[id] = candidates_.weight(id, format);
    served.set_linear(id, served.pack(built_.weights[id]));
  }
  PlanStore store(journal_, formats);
  how.store = &store;
  quantize_model_gptq(served, desk_.source, desk_.texts.calibration, how, desk_.pool,
                      [&](QuantizedLinear q) { built_.weights[q.id] = std::move(q.weight); });
  store.finish();
  if (desk_.job.tune && !built_.weights.empty()) tune(sha256_hex(name).substr(0, 16), plan);
  built_.choice = plan.choice;
  return built_;
}

void Builder::tune(const std::string& name, const Plan& plan) {
  PlanTuner::Tuned tuned = tuner_.tune(name, desk_.quantised_formats(table_, plan), built_.weights);
  built_.weights = std::move(tuned.weights);
  built_.tuned = std::move(tuned.tuning);
  Runner& served = in_force_->runner();
  for (const auto& [id, weight] : built_.weights) served.set_linear(id, served.pack(weight));
}

void Builder::serve(Runner& runner) const {
  for (LinearId id : linears_of(desk_.source.config())) {
    const auto built = built_.weights.find(id);
    runner.set_linear(id, runner.pack(built == built_.weights.end() ? desk_.source.linear(id) : built->second));
  }
}

}  // namespace fidelio
