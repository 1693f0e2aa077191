#include "compress/tune/plan_tuner.h"

#include <filesystem>

#include "compress/tune/run_tuner.h"
#include "core/file.h"
#include "core/hash.h"

namespace fidelio {

const train::TuneData& PlanTuner::data() {
  if (data_) return *data_;
  const Job& job = desk_.job;
  TuneText text;
  text.samples = job.tune_samples >= 0 ? job.tune_samples : train::default_samples(job.on_gpu);
  text.tokens = job.tune_tokens, text.held = std::min(text.held, (text.tokens + text.samples) / 8);
  text.samples_file = job.out + ".journal/samples.safetensors";
  const World& w = desk_.world;
  data_ = tune_data_of(desk_.calibration_documents, text, {w.source, w.tokenizer, w.chat, w.make_runner}, job.serving,
                       job.on_gpu, job.context, job.seed);
  return *data_;
}

PlanTuner::Tuned PlanTuner::tune(const std::string& name, const std::map<LinearId, FormatSpec>& formats,
                                 const std::map<LinearId, LinearWeight>& weights) {
  const Job& job = desk_.job;
  train::TuneOptions how;
  how.steps = job.tune_steps, how.windows = job.tune_windows;
  how.outer = !job.keep_embedding, how.dense = false, how.seed = job.seed;
  train::set_defaults(how, job.on_gpu, job.context);
  // A run that asks for other steps or text finds nothing here.
  const std::string key =
      name + "-" + sha256_hex(fmt::format("{} {} {} {}", how.steps, how.windows, how.seed, data().sha256)).substr(0, 8);
  const std::string before = job.out + ".journal/plan-" + key, after = job.out + ".journal/tuned-" + key;
  how.state = after + ".tuning";
  const auto write = [&](const std::string& folder, const std::map<LinearId, LinearWeight>& all,
                         const nlohmann::json& about) {
    write_checkpoint(
        folder, desk_.source, formats, [&](LinearId id) { return all.at(id); }, about);
  };
  if (!std::filesystem::exists(after)) {
    if (!std::filesystem::exists(before)) write(before, weights, nlohmann::json::object());
    const Checkpoint model = open_whole(before);
    const train::TuneResult result = run_tuner(model, desk_.source, data(), how, job.on_gpu, job.serving);
    const train::TuneReport& r = result.report;
    write(after, result.weights.linears,
          {{"text_sha256", data().sha256},
           {"steps", r.best_step},
           {"windows", how.windows},
           {"kl_before", r.kl_before},
           {"kl_after", r.kl_after},
           {"codes_moved", r.moved}});
    std::filesystem::remove(how.state);
    remove_at_once(before);
  }
  const Checkpoint& made = read_.emplace_back(open_whole(after));
  Tuned tuned;
  for (const auto& [id, weight] : weights) tuned.weights.emplace(id, made.linear(id));
  tuned.about = nlohmann::json::parse(made.provenance());
  const double kl_before = tuned.about.at("kl_before"), kl_after = tuned.about.at("kl_after");
  if (kl_before > 0) tuned.gain = kl_after / kl_before;
  return tuned;
}

}  // namespace fidelio
