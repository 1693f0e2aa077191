// This file is the verb `tune`, which tunes a quantised model towards its original.
#include "app/verbs/tune.h"

#include <algorithm>
#include <filesystem>

#include "app/options/card.h"
#include "app/options/common.h"
#include "compress/tune/run_tuner.h"
#include "compress/tune/tune_data.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/foreign/units.h"
#include "core/own_files.h"
#include "core/progress.h"
#include "io/checkpoint_files.h"
#include "io/checkpoint_write.h"
#include "train/tune/tuner.h"

namespace fidelio::app {
namespace {

struct Tune {
  RunOptions run;
  std::vector<std::string> files;  // These are texts.
  std::string reference, out, json, loss = "kl", products;
  TuneText text;
  int64_t context = 0;
  train::TuneOptions how;
  int64_t rounds = 1, settle_steps = 0;
  bool keep_outer = false, keep_dense = false;
  bool own_state = false;  // It is true if the name was not chosen by the user.
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

// A round is a run of its own: rates rise and fall once more, and codes begin in the cells where they ended. It was
// measured on quill-26m (docs/results.md, "Tuned again, and scales alone at the end").
std::vector<train::TuneOptions> rounds_of(const Tune& o) {
  constexpr double kCodes = 0.6, kScales = 0.6;  // They multiply the rates of the round before.
  std::vector<train::TuneOptions> rounds = {o.how};
  const auto add = [&]() -> train::TuneOptions& {
    train::TuneOptions next = rounds.back();
    next.layer_steps = 0;
    next.state = fmt::format("{}-{}", o.how.state, rounds.size() + 1);
    return rounds.emplace_back(next);
  };
  for (int64_t i = 1; i < o.rounds; ++i) add().rates[static_cast<size_t>(train::Share::codes)] *= kCodes;
  if (o.settle_steps > 0) {
    train::TuneOptions& last = add();
    last.steps = o.settle_steps;
    last.rates[static_cast<size_t>(train::Share::codes)] = 0;
    last.rates[static_cast<size_t>(train::Share::scales)] *= kScales;
  }
  return rounds;
}

nlohmann::json report_of(const train::TuneReport& r) {
  nlohmann::json evaluations = nlohmann::json::array();
  for (const train::Evaluation& e : r.evaluations) evaluations.push_back({{"step", e.step}, {"kl", e.kl}});
  return {{"kl_before", r.kl_before},
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

// Returns the report of the last round, measured from the beginning of the first, together with every round's where
// there were several.
nlohmann::json report_of(const Tune& o, const std::vector<nlohmann::json>& rounds) {
  nlohmann::json report = rounds.back();
  report["output"] = o.out;
  report["kl_before"] = rounds.front()["kl_before"];
  if (rounds.size() > 1) report["rounds"] = rounds;
  return report;
}

void print_change(double before, double after) {
  fmt::print("KL from the source on the windows held out: {:.5g} before, {:.5g} after ({:+.1f}%)", before, after,
             100 * (after / before - 1));
}

void print(const std::vector<nlohmann::json>& rounds) {
  for (size_t i = 0; i < rounds.size(); ++i) {
    const nlohmann::json& r = rounds[i];
    if (rounds.size() > 1) fmt::print("Round {}. ", i + 1);
    print_change(r["kl_before"], r["kl_after"]);
    fmt::print(", best of step {} of {}; {:.3g}% of the codes are others\n", r["best_step"].get<int64_t>(),
               r["steps"].get<int64_t>(), 100 * r["codes_moved"].get<double>());
    if (r["diverged"])
      fmt::print("the loss grew without bound: what is kept is the best model before that; lower the rates\n");
    if (r["stopped_early"]) fmt::print("stopped early: nothing better was found for a while\n");
    if (r["seconds_a_step"] > 0) fmt::print("{:.3g} s a step\n", r["seconds_a_step"].get<double>());
  }
  if (rounds.size() == 1) return;
  fmt::print("All rounds. ");
  print_change(rounds.front()["kl_before"], rounds.back()["kl_after"]);
  fmt::print("\n");
}

// Returns the model's own provenance together with how it was tuned, round by round.
nlohmann::json provenance_of(const Tune& o, const Checkpoint& model, const Checkpoint& source,
                             const train::TuneData& data, const std::vector<nlohmann::json>& rounds) {
  nlohmann::json provenance = parse_json(model.provenance(), model.folder());
  nlohmann::json steps = nlohmann::json::array();
  for (const nlohmann::json& r : rounds) steps.push_back(r["best_step"]);
  provenance["tuned"] = {{"source_sha256", source.sha256()},
                         {"text_sha256", data.sha256},
                         {"loss", o.loss},
                         {"layer_steps", o.how.layer_steps},
                         {"steps", steps},
                         {"windows", o.how.windows},
                         {"samples", o.text.samples},
                         {"seed", o.how.seed}};
  return provenance;
}

// Ranks of one host take its GPUs in turn, starting from the one that was named.
void choose_gpu(RunOptions& run, const Ranks& ranks) {
  if (ranks.size() > 1) run.device = fmt::format("cuda:{}", runner_options(run).gpu + ranks.rank_on_this_host());
}

using Say = std::function<void(const std::string&)>;

void write_tuned(const std::string& folder, const Checkpoint& model, const train::TuneResult& result,
                 const nlohmann::json& provenance) {
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(model.config())) formats[id] = model.format(id);
  write_checkpoint(
      folder, model, formats, [&](LinearId id) { return result.weights.linears.at(id); }, provenance,
      result.weights.tensors);
}

// This is the result of all rounds, with the report of each. The result of every round but the last is stored beside
// the output, for the next round and for the same command after an interrupt.
struct Rounds {
  // The last round began with this model; weights that it did not change are views into it.
  std::optional<Checkpoint> before;
  train::TuneResult last;
  std::vector<nlohmann::json> reports;
  std::vector<std::string> states, folders;  // They are removed once the output is complete.
};

// Puts aside damaged files of an earlier run, which the first rank checks while the others wait. A folder with anything
// else in it may be a user's, and is refused below.
void put_aside_damaged(const Tune& o, const std::string& state, const std::string& folder, const Ranks& ranks,
                       const Say& say) {
  if (ranks.first() && o.own_state) put_aside_damaged_state(state, say);
  if (ranks.first() && std::filesystem::exists(folder) && foreign_in(folder, is_checkpoint_file).empty()) {
    std::string damage;
    try {
      open_whole(folder);
    } catch (const Error& error) {
      damage = error.what();
    }
    if (!damage.empty()) put_aside(folder, damage, say);
  }
  ranks.gather({});
}

Rounds tune_in_rounds(const Tune& o, const std::vector<train::TuneOptions>& all, const Checkpoint& model,
                      const Checkpoint& source, const train::TuneData& data, const Ranks& ranks, Stages& stages,
                      const Say& say) {
  Rounds rounds;
  for (size_t i = 0; i < all.size(); ++i) {
    stages.next();
    const Checkpoint& from = rounds.before ? *rounds.before : model;
    const std::string folder = fmt::format("{}.round-{}", o.out, i + 1);
    const nlohmann::json job = train::job_of(from, source, data, all[i]);
    const bool last = i + 1 == all.size();
    put_aside_damaged(o, all[i].state, last ? "" : folder, ranks, say);
    if (last || !std::filesystem::exists(folder)) {
      rounds.last = run_tuner(from, source, data, all[i], on_gpu(o.run), runner_options(o.run), ranks, say);
      if (!last && ranks.first())
        write_tuned(folder, from, rounds.last, {{"job", job}, {"report", report_of(rounds.last.report)}});
      ranks.gather({});  // All ranks wait here until the folder exists.
    }
    rounds.states.push_back(all[i].state);
    if (last) break;
    rounds.folders.push_back(folder);
    rounds.before = open_whole(folder);
    const nlohmann::json about = parse_json(rounds.before->provenance(), folder);
    check(about.value("job", nlohmann::json()) == job, "{} belongs to another run; remove it to begin again", folder);
    rounds.reports.push_back(about.at("report"));
  }
  rounds.reports.push_back(report_of(rounds.last.report));
  return rounds;
}

void tune(Tune o, const Ranks& ranks) {
  const bool gpu = on_gpu(o.run);
  if (gpu) choose_gpu(o.run, ranks);
  if (!ranks.first()) set_progress_mode(ProgressMode::none);
  check_new_folder(o.out);
  o.out = without_slash(o.out);
  o.own_state = o.how.state.empty();
  if (o.own_state) o.how.state = o.out + ".tuning";
  check_can_write({o.json, o.how.state, o.text.samples_file});
  o.how.loss = parse_loss(o.loss);
  o.how.outer = !o.keep_outer, o.how.dense = !o.keep_dense;
  const Checkpoint model = Checkpoint::open(o.run.model), source = Checkpoint::open(o.reference);
  check_same_model(model, source);
  train::check_known(model.config(), gpu);
  const int64_t context = window_length("--context", o.context, model.config());
  train::set_defaults(o.how, gpu, context);
  o.how.products = train::parse_products(o.products, gpu);
  if (o.text.samples < 0) o.text.samples = train::default_samples(gpu);
  set_words_on_interrupt(
      fmt::format("The same command goes on from {}, where that is: it is written every {:g} seconds of tuning.",
                  o.how.state, o.how.save_seconds));
  std::vector<Stage> parts;
  if (o.text.samples > 0) parts.push_back({"sampling", 1});
  const std::vector<train::TuneOptions> all = rounds_of(o);
  for (size_t round = 1; round <= all.size(); ++round)
    parts.push_back({round == 1 ? "tuning" : fmt::format("tuning, round {}", round), 6});
  std::optional<Stages> stages(std::in_place, "tune", std::move(parts));
  if (o.text.samples > 0) stages->next();
  const Tokenizer tokenizer = Tokenizer::load(source.texts());
  const auto chat = ChatTemplate::load(source.texts());
  RunOptions serving = o.run;
  serving.activations = "a16";
  const TuneSource from{source, tokenizer, chat ? &*chat : nullptr,
                        [&](const RunnerOptions& options) { return make_runner(serving, source, options); }};
  const Corpus corpus = read_corpus(o.files, tokenizer, from.chat, context);
  const train::TuneData data =
      tune_data_of(corpus.documents, o.text, from, runner_options(serving), gpu, context, o.how.seed, ranks);
  const auto say = [&](const std::string& text) {
    if (ranks.first() && !quiet(o.json)) print_beside_progress(text + "\n");
  };
  say(fmt::format("tuning on {} windows, {} held out; {} of memory", data.windows.size(), data.held.size(),
                  bytes_text(train::tune_bytes(model.config(), o.how, context))));
  const Rounds rounds = tune_in_rounds(o, all, model, source, data, ranks, *stages, say);
  stages.reset();
  if (!ranks.first()) return;
  write_tuned(o.out, model, rounds.last, provenance_of(o, model, source, data, rounds.reports));
  add_card(o.out, source.texts());
  // States and rounds are needed until the output is complete.
  for (const std::string& state : rounds.states) std::filesystem::remove(state);
  for (const std::string& folder : rounds.folders)
    for (const std::string& foreign : remove_ours(folder, is_checkpoint_file))
      say(fmt::format("{} stays: it holds {}, which fidelio did not write", folder, foreign));
  write_json(o.json, report_of(o, rounds.reports));
  if (!quiet(o.json)) print(rounds.reports);
}

// An error of one rank ends all, as the others would wait for it.
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
  verb.add_option(
          "--rounds", o.rounds,
          "How often it is tuned: each round takes all the steps, begins where the one before came to rest, and "
          "moves codes 0.6 times as far")
      ->check(CLI::Range(1, 16));
  verb.add_option("--settle-steps", o.settle_steps,
                  "Steps at the end in which codes stay as they are and all else moves on")
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
  verb.add_option("--clip", o.how.clip, "Gradients longer than this many times their mean length are shortened to that")
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
