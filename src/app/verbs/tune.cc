#include "app/verbs/tune.h"

#include <algorithm>
#include <filesystem>

#include "app/options/common.h"
#include "compress/tune/tune_data.h"
#include "core/foreign/json.h"
#include "core/progress.h"
#include "io/checkpoint_write.h"
#include "train/tune/tuner.h"

namespace fidelio::app {
namespace {

struct Tune {
  RunOptions run;
  std::vector<std::string> files;  // texts
  std::string reference, out, json, loss = "kl", products;
  TuneText text;
  int64_t context = 0;
  train::TuneOptions how;
  bool keep_outer = false, keep_dense = false;
};

train::Loss parse_loss(const std::string& name) {
  if (name == "kl") return train::Loss::kl;
  if (name == "reverse-kl") return train::Loss::reverse_kl;
  if (name == "cakld") return train::Loss::cakld;
  if (name == "label") return train::Loss::label;
  throw Error("--loss {}: expected kl, reverse-kl, cakld or label", name);
}

void check_same_model(const Checkpoint& model, const Checkpoint& source) {
  const ModelConfig &a = model.config(), &b = source.config();
  check(a.architecture == b.architecture && a.L == b.L && a.d == b.d && a.f == b.f && a.h == b.h && a.hk == b.hk &&
            a.e == b.e && a.v == b.v && a.tie_embeddings == b.tie_embeddings,
        "{} is not {} quantised: their shapes differ; give the model that it was made from", model.folder(),
        source.folder());
}

nlohmann::json report_of(const Tune& o, const train::TuneReport& r) {
  nlohmann::json evaluations = nlohmann::json::array();
  for (const train::Evaluation& e : r.evaluations) evaluations.push_back({{"step", e.step}, {"kl", e.kl}});
  return {{"output", o.out},
          {"kl_before", r.kl_before},
          {"kl_after", r.kl_after},
          {"best_step", r.best_step},
          {"steps", r.steps},
          {"seconds_a_step", r.seconds_a_step},
          {"diverged", r.diverged},
          {"stopped_early", r.stopped_early},
          {"skipped", r.skipped},
          {"resumed", r.resumed},
          {"codes_moved", r.moved},
          {"layer_error_before", r.layer_before},
          {"layer_error_after", r.layer_after},
          {"evaluations", evaluations}};
}

void print(const train::TuneReport& r) {
  fmt::print(
      "KL from the source on the windows held out: {:.5g} before, {:.5g} after ({:+.1f}%), best of step {} of {}; "
      "{:.3g}% of the codes are others\n",
      r.kl_before, r.kl_after, 100 * (r.kl_after / r.kl_before - 1), r.best_step, r.steps, 100 * r.moved);
  if (r.diverged)
    fmt::print("the loss grew without bound: what is written is the best model before that; lower the rates\n");
  if (r.stopped_early) fmt::print("stopped early: nothing better was found for a while\n");
  if (r.seconds_a_step > 0) fmt::print("{:.3g} s a step\n", r.seconds_a_step);
}

// What the model's own says, and how it was tuned.
nlohmann::json provenance_of(const Tune& o, const Checkpoint& model, const Checkpoint& source,
                             const train::TuneData& data, const train::TuneReport& report) {
  nlohmann::json provenance = parse_json(model.provenance(), model.folder());
  provenance["tuned"] = {{"source_sha256", source.sha256()}, {"text_sha256", data.sha256}, {"loss", o.loss},
                         {"layer_steps", o.how.layer_steps}, {"steps", report.best_step},  {"windows", o.how.windows},
                         {"samples", o.text.samples},        {"seed", o.how.seed}};
  return provenance;
}

// Ranks of one host take its GPUs in turn, from the one that was named on.
void choose_gpu(RunOptions& run, const Ranks& ranks) {
  if (ranks.size() > 1) run.device = fmt::format("cuda:{}", runner_options(run).gpu + ranks.rank_on_this_host());
}

train::TuneResult tuned(const Tune& o, const Checkpoint& model, const Checkpoint& source, const train::TuneData& data,
                        const Ranks& ranks, const std::function<void(const std::string&)>& say) {
  std::optional<Progress> progress;
  int64_t before = 0;
  const auto advance = [&](const train::TuneProgress& p) {
    if (!progress) progress.emplace("tuning", p.total);
    progress->advance(p.done - std::exchange(before, p.done));
    if (!p.note.empty()) say(p.note);
  };
  return on_gpu(o.run) ? train::tune_on_gpu(model, source, data, o.how, runner_options(o.run).gpu, advance, ranks)
                       : train::tune_on_host(model, source, data, o.how, o.run.threads, advance, ranks);
}

void tune(Tune o, const Ranks& ranks) {
  const bool gpu = on_gpu(o.run);
  if (gpu) choose_gpu(o.run, ranks);
  if (!ranks.first()) set_progress_mode(ProgressMode::none);
  check_new_folder(o.out);
  check_can_write({o.json});
  o.how.loss = parse_loss(o.loss);
  o.how.outer = !o.keep_outer, o.how.dense = !o.keep_dense;
  const Checkpoint model = Checkpoint::open(o.run.model), source = Checkpoint::open(o.reference);
  check_same_model(model, source);
  train::check_known(model.config());
  const int64_t context = window_length("--context", o.context, model.config());
  train::set_defaults(o.how, gpu, context);
  o.how.products = train::parse_products(o.products, gpu);
  if (o.text.samples < 0) o.text.samples = train::default_samples(gpu);
  if (o.how.state.empty()) o.how.state = o.out + ".tuning";
  set_words_on_interrupt(
      fmt::format("{} keeps what is done so far: the same command goes on from there.", o.how.state));
  std::vector<Stage> parts;
  if (o.text.samples > 0) parts.push_back({"sampling", 1});
  parts.push_back({"tuning", 6});
  std::optional<Stages> stages(std::in_place, "tune", std::move(parts));
  stages->next();
  const Tokenizer tokenizer = Tokenizer::load(source.texts());
  const auto chat = ChatTemplate::load(source.texts());
  RunOptions serving = o.run;
  serving.activations = "a16";
  const TuneSource from{source, tokenizer, chat ? &*chat : nullptr,
                        [&](const RunnerOptions& options) { return make_runner(serving, source, options); }};
  const Corpus corpus = read_corpus(o.files, tokenizer, from.chat, context);
  const train::TuneData data =
      tune_data_of(corpus.documents, o.text, from, runner_options(serving), gpu, context, o.how.seed, ranks);
  if (o.text.samples > 0) stages->next();
  const auto say = [&](const std::string& text) {
    if (ranks.first() && !quiet(o.json)) print_beside_progress(text + "\n");
  };
  say(fmt::format("tuning on {} windows, {} held out; {} of memory", data.windows.size(), data.held.size(),
                  bytes_text(train::tune_bytes(model.config(), o.how, context))));
  const train::TuneResult result = tuned(o, model, source, data, ranks, say);
  stages.reset();
  if (!ranks.first()) return;

  const nlohmann::json provenance = provenance_of(o, model, source, data, result.report);
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(model.config())) formats[id] = model.format(id);
  write_checkpoint(
      o.out, model, formats, [&](LinearId id) { return result.weights.linears.at(id); }, provenance,
      result.weights.tensors);
  // The state is needed until what it would lead to is there.
  std::filesystem::remove(o.how.state);
  write_json(o.json, report_of(o, result.report));
  if (!quiet(o.json)) print(result.report);
}

// An error of one rank ends all: the others would wait for it.
void tune_among_ranks(const Tune& o) {
  const std::unique_ptr<Ranks> ranks = launched_ranks();
  try {
    tune(o, *ranks);
  } catch (const std::exception& error) {
    ranks->give_up(error.what());
    throw;
  }
}

void add_rates(CLI::App& verb, train::TuneOptions& how) {
  const auto rate = [&](const char* name, train::Share share, const char* what) {
    verb.add_option(name, how.rates[static_cast<size_t>(share)], what)->check(zero_or_more());
  };
  rate("--code-rate", train::Share::codes,
       "How far codes of 4 bits move a step at most, in cells; those of fewer bits further, of more less far");
  rate("--scale-rate", train::Share::scales, "... scales, in shares of themselves, likewise");
  rate("--zero-rate", train::Share::zeros, "... zero points, in whole steps");
  rate("--grid-rate", train::Share::grid, "... codebooks, in signed bytes");
  rate("--dense-rate", train::Share::dense,
       "... norms, biases and dense matrices, in shares of their root mean square");
}

void add_schedule(CLI::App& verb, Tune& o) {
  verb.add_option("--steps", o.how.steps, "Steps of the whole model (default: 300 on a CPU, 1000 on a GPU)")
      ->check(zero_or_more());
  verb.add_option("--layer-steps", o.how.layer_steps, "Steps of every layer by itself before that")
      ->check(zero_or_more());
  verb.add_option("--windows", o.how.windows, "Windows a step (default: 8 on a CPU, 32 on a GPU)")->check(above_zero());
  verb.add_option("--rows", o.how.rows,
                  "Rows of a pass; a step of more is cut into slices, which ranks share (default: 2048 on a CPU, 16384 "
                  "on a GPU)")
      ->check(CLI::Range(16, 1 << 20));
  verb.add_option("--products", o.products,
                  "What a GPU rounds the factors of products to: f32, tf32 (the default), bf16");
  verb.add_option("--evaluate-every", o.how.evaluate_every, "Steps between measurements on the windows held out")
      ->check(above_zero());
  verb.add_option("--patience", o.how.patience,
                  "Measurements without a better one before rates are halved, or, where they are small, it stops")
      ->check(above_zero());
  verb.add_option("--warmup", o.how.warmup, "Share of the steps in which rates rise")->check(from_to(0, 1));
  verb.add_option("--memory", o.how.memory, "Share of a gradient's mean square that a step keeps (AdamW's beta2)")
      ->check(from_to(0.5, 0.9999));
  verb.add_option("--start", o.how.start, "How far from the middle of its cell a code may start, towards the source")
      ->check(from_to(0, 0.49));
  verb.add_option("--clip", o.how.clip, "Gradients longer than so many times their mean length are shortened to that")
      ->check(above_zero());
  verb.add_option("--state", o.how.state,
                  "File that a run which was ended goes on from (default: the output's name, "
                  ".tuning)");
  verb.add_option("--save-seconds", o.how.save_seconds, "Seconds between two states")->check(zero_or_more());
}

void add_text(CLI::App& verb, Tune& o) {
  TuneText& text = o.text;
  verb.add_option("--calibration", o.files,
                  "Folder, text or .jsonl of documents, each DIR|FILE|JSONL[:domain]; may be repeated. Not the text "
                  "that is measured on")
      ->required();
  verb.add_option("--calibration-tokens", text.tokens, "Tokens of it that are used")->check(above_zero());
  verb.add_option("--calibration-samples", text.samples,
                  "Tokens beside these that the source writes itself, at temperature 1 (default: 262144 on a CPU, "
                  "4194304 on a GPU)")
      ->check(zero_or_more());
  verb.add_option("--samples-file", text.samples_file,
                  "Where these are kept: read if it is there and was written for the same model, text and seed");
  verb.add_option("--held-tokens", text.held, "Tokens of all these that are kept aside to choose the best step by")
      ->check(above_zero());
}

}  // namespace

void add_tune(CLI::App& app) {
  auto o = std::make_shared<Tune>();
  CLI::App* verb = app.add_subcommand(
      "tune", "Move a quantised model nearer to its source by gradients: the same formats, the same bytes");
  verb->footer(
      "Example:\n  fidelio tune quill-int3 --reference models/quill-26m --calibration models/data/docs-calibration.txt "
      "-o quill-int3-tuned\nThe same command again goes on where a run was ended. Several ranks share its steps, each "
      "with a GPU of its own under --device cuda, and give the same bytes:\n  mpirun -np 2 fidelio tune ...");
  add_model(*verb, o->run);
  verb->add_option("--reference", o->reference, "The model that MODEL was quantised from")->required();
  add_text(*verb, *o);
  verb->add_option("--context", o->context,
                   "Length of a window (default: 512, or the model's context if that is shorter)")
      ->check(CLI::Range(16, 1 << 20));
  verb->add_option("--loss", o->loss,
                   "kl: KL(source || model); reverse-kl; cakld: both, weighted by the source's confidence; label: the "
                   "text's own next tokens");
  add_schedule(*verb, *o);
  add_rates(*verb, o->how);
  verb->add_flag("--keep-dense", o->keep_dense, "Leave norms, biases and dense matrices as they are");
  verb->add_flag("--keep-embedding", o->keep_outer, "Leave the embedding and the head as they are");
  verb->add_option("--seed", o->how.seed, "Of samples and of the order of windows");
  add_device(*verb, o->run);
  verb->add_option("-o,--output", o->out, "Folder to write; it appears complete or not at all")->required();
  add_json(*verb, o->json);
  verb->callback([o] { tune_among_ranks(*o); });
}

}  // namespace fidelio::app
