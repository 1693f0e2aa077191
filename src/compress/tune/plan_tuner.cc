#include "compress/tune/plan_tuner.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/tune/run_tuner.h"
#include "core/hash.h"
#include "train/state.h"

namespace fidelio {

nlohmann::json to_json(const PlanTuning& t) {
  return {{"text_sha256", t.text_sha256}, {"steps", t.steps},       {"windows", t.windows},
          {"kl_before", t.kl_before},     {"kl_after", t.kl_after}, {"codes_moved", t.codes_moved}};
}

PlanTuning plan_tuning_from_json(const nlohmann::json& json) {
  return {json.at("text_sha256"), json.at("steps"),    json.at("windows"),
          json.at("kl_before"),   json.at("kl_after"), json.at("codes_moved")};
}

const train::TuneData& PlanTuner::data() {
  if (data_) return *data_;
  const Job& job = desk_.job;
  TuneText text;
  text.samples = job.tune_samples >= 0 ? job.tune_samples : train::default_samples(job.on_gpu);
  text.tokens = job.tune_tokens, text.held = std::min(text.held, (text.tokens + text.samples) / 8);
  text.samples_file = job.out + ".journal/samples.safetensors";
  text.about_damaged = [&](const std::string& note) { journal_.note(note); };
  const World& w = desk_.world;
  data_ = tune_data_of(desk_.texts.calibration_documents, text, {w.source, w.tokenizer, w.chat, w.make_runner},
                       job.serving, job.on_gpu, job.context, job.seed);
  for (const auto* all : {&data_->windows, &data_->held})
    for (const std::vector<int32_t>* sample : origins_of(*all, desk_.texts.calibration_documents, job.context).others)
      desk_.uses.add_text("samples", w.tokenizer.decode(*sample));
  return *data_;
}

PlanTuner::Tuned PlanTuner::tune(const std::string& name, const std::map<LinearId, FormatSpec>& formats,
                                 const std::map<LinearId, LinearWeight>& weights) {
  const Job& job = desk_.job;
  train::TuneOptions how;
  how.steps = job.tune_steps, how.windows = job.tune_windows;
  how.outer = !job.keep_embedding, how.dense = false, how.seed = job.seed;
  train::set_defaults(how, job.on_gpu, job.context);
  // A run that asks for other steps or text has another key, and finds nothing here.
  const std::string key =
      name + "-" + sha256_hex(fmt::format("{} {} {} {}", how.steps, how.windows, how.seed, data().sha256)).substr(0, 8);
  const std::string before = "plan-" + key, after = "tuned-" + key, journal = job.out + ".journal/";
  how.state = journal + after + ".tuning";
  // A folder that was damaged since it was written is removed and written anew.
  const auto write = [&](const std::string& folder, const std::map<LinearId, LinearWeight>& all,
                         const nlohmann::json& about) {
    journal_.remove_folder(folder);
    write_checkpoint(
        journal + folder, desk_.source, formats, [&](LinearId id) { return all.at(id); }, about);
    journal_.seal_folder(folder);
  };
  if (!journal_.has_folder(after)) {
    if (!journal_.has_folder(before)) write(before, weights, nlohmann::json::object());
    const Checkpoint model = open_whole(journal + before);
    if (const std::string damage = train::damage_of_state(how.state); !damage.empty()) {
      journal_.note(fmt::format("{} is damaged ({}): it is made anew", how.state, damage));
      std::filesystem::remove(how.state);
    }
    const train::TuneResult result = run_tuner(model, desk_.source, data(), how, job.on_gpu, job.serving);
    const train::TuneReport& r = result.report;
    write(after, result.weights.linears,
          to_json(PlanTuning{data().sha256, r.best_step, how.windows, r.kl_before, r.kl_after, r.moved}));
    std::filesystem::remove(how.state);
    journal_.remove_folder(before);
  }
  const Checkpoint& made = read_.emplace_back(open_whole(journal + after));
  Tuned tuned;
  for (const auto& [id, weight] : weights) tuned.weights.emplace(id, made.linear(id));
  tuned.tuning = plan_tuning_from_json(nlohmann::json::parse(made.provenance()));
  return tuned;
}

}  // namespace fidelio
