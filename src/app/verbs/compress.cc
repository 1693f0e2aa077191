// This file is the verb `compress`, which makes the smallest model that meets a target of fidelity and certifies it.
#include "compress/compress.h"

#include <algorithm>
#include <filesystem>

#include "app/about.h"
#include "app/drafts/draft_verb.h"
#include "app/options/card.h"
#include "app/options/common.h"
#include "app/options/questions.h"
#include "app/options/task_target.h"
#include "app/options/texts.h"
#include "compress/certificate/certificate.h"
#include "compress/inputs/rules.h"
#include "compress/inputs/sizes.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "io/export/export.h"
#include "io/outline/outline.h"
#include "runtime/texts/corpus.h"
#include "train/block.h"

namespace fidelio::app {
namespace {

// These are the options of the command line; job_of() makes a Job from them.
struct CompressOptions {
  RunOptions run;
  Questions questions;
  Job job;
  std::string json, bytes, grouping = "fused", consumer = "", method = "single", allocate_by = "kl", search = "ilp",
                           promise = "domain";
  std::vector<std::string> formats, rules;
  bool dry_run = false, draft = false;
  int seeds = 3;  // It counts the seeds of answers.
};

// Reads everything from the command line that does not depend on the model.
Job job_of(const CompressOptions& o) {
  Job job = o.job;
  check(o.questions.file.empty() == (job.accuracy_drop == 0),
        "--tasks and --accuracy-drop go together: how much accuracy may be lost");
  job.model = o.run.model;
  job.grouping = parse_option<Grouping>("--grouping", o.grouping);
  if (!o.consumer.empty()) job.consumer = parse_option<Consumer>("--for", o.consumer);
  job.method = parse_option<SensitivityMethod>("--method", o.method);
  job.allocate_by = parse_option<Cost>("--allocate-by", o.allocate_by);
  job.search = parse_option<SearchKind>("--search", o.search);
  if (!o.bytes.empty()) job.bytes = parse_bytes(o.bytes);
  for (const std::string& name : o.formats) job.formats.push_back(parse_target(name));
  if (!job.plan_file.empty()) job.formats = formats_of_plan(job.plan_file);
  if (job.formats.empty() && !job.from_table.empty() && job.consumer == Consumer::fidelio)
    job.formats = formats_of_table(job.from_table);
  if (job.formats.empty()) job.formats = default_formats(job.consumer, on_gpu(o.run), job.tokens_per_second > 0);
  job.offered = job.formats;
  for (const std::string& rule : o.rules) {
    job.rules.push_back(parse_rule(rule));
    const FormatSpec& format = job.rules.back().format;
    if (std::find(job.formats.begin(), job.formats.end(), format) == job.formats.end()) job.formats.push_back(format);
  }
  if (!rules_of(job.consumer).embedding) job.keep_embedding = true;
  job.promise = parse_option<Promise>("--promise", o.promise);
  job.out = without_slash(job.out);
  job.serving = runner_options(o.run);
  job.on_gpu = on_gpu(o.run);
  constexpr int64_t kPrompt = 256;  // This is about the tokens of a prompt.
  if (!o.questions.file.empty()) {
    job.answering_tokens = o.questions.batch * (o.questions.max_tokens + kPrompt);
    job.answering_states = 2 * o.questions.batch;
  }
  check_job(job);
  return job;
}

// If there are several outputs, some may exist already, provided that a journal says that a run was interrupted.
void check_outputs(const Job& job, const std::string& json) {
  check_output_name(job.out);  // The names of all outputs are made from it.
  const bool begun = job.ear.size() > 1 && std::filesystem::exists(job.out + ".journal/job.json");
  const std::vector<std::string> outputs = job.outputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!begun || !std::filesystem::exists(outputs[i])) check_new_folder(outputs[i]);
    check_can_write({job.page(i)});
  }
  check_can_write({json, job.table_file});
}

void say(const Job& job, const MadeCheckpoint& made) {
  const Certificate& certificate = made.certificate;
  const PromisedFigures& promised = certificate.promised;
  std::vector<std::string> texts;
  for (const std::string& text : certificate.texts) texts.push_back(folder_name(parse_text_source(text).path));
  const std::string of = certificate.promise == Promise::document ? " (a new document of " + promised.domain + ")"
                         : certificate.promise == Promise::all    ? ""
                         : certificate.domains.size() > 1         ? " (" + promised.domain + ", the lowest kind)"
                                                                  : "";
  fmt::print("{}: {} -> {}, {:.3f} bits/parameter of the whole file\n", made.output, bytes_text(made.source_file_bytes),
             bytes_text(made.file_bytes), made.bits_per_parameter());
  fmt::print(
      "Certified: EAR {:.5f} [{:.5f}, {:.5f}] at {:g}%{} on {} tokens of {} {} of {}, which the search has not "
      "seen{}\n",
      promised.ear.value, promised.ear.ci95.low, promised.ear.ci95.high, 100 * promised.confidence, of,
      certificate.all.tokens, certificate.all.documents, certificate.passages ? "passages" : "documents",
      fmt::join(texts, ", "),
      certificate.ladder.size() > 1 ? fmt::format("; {} plans were tested on it", certificate.ladder.size()) : "");
  print_domains(certificate);
  fmt::print("  {}\n", made.beside);
  if (made.rate)
    fmt::print("  decodes at {:.4g} tokens/s here after {} tokens, {} asked for, {:.4g} foreseen ({})\n",
               made.rate->kept().measured, made.rate->timed.context, made.rate->asked, made.rate->kept().foreseen,
               made.rate->timed.machine);
  print_plain_words(certificate, true);
  if (job.consumer != Consumer::fidelio)
    fmt::print("  {} takes it as it is: fidelio export {} --to {}{} -o ...\n", name_of(job.consumer), made.output,
               rules_of(job.consumer).target, rules_of(job.consumer).export_options);
}

// Chooses for every checkpoint that was made the draft that makes it fastest.
void choose_drafts(const CompressOptions& o, nlohmann::json& report) {
  DraftChoiceOptions how;
  how.prompts.limit = 48;
  how.tuning = {o.job.tune, o.job.tune_steps, o.job.tune_windows, o.job.tune_samples};
  settle_draft_defaults(how);
  std::vector<nlohmann::json*> all = {&report};
  if (report.contains("targets")) {
    all.clear();
    for (nlohmann::json& one : report["targets"]) all.push_back(&one);
  }
  std::string names;
  for (const nlohmann::json* made : all) names += (names.empty() ? "" : ", ") + made->at("output").get<std::string>();
  set_words_on_interrupt(
      fmt::format("Whole: {}. `fidelio draft FOLDER` chooses the draft of one that has none yet.", names));
  for (nlohmann::json* made : all) {
    RunOptions run = o.run;
    run.model = made->at("output").get<std::string>();
    (*made)["draft"] = choose_and_say(run, how, quiet(o.json));
  }
}

// Predicts from sizes alone, where config.json exists and the weights do not.
void foresee_by_config(const CompressOptions& o, Job job) {
  const Checkpoint outline = Checkpoint::open(open_outline(o.run.model));
  if (job.tune) train::check_known(outline.config(), job.on_gpu);
  job.context = window_length("--context", job.context, outline.config());
  fit_to_experts(job, outline.config(), o.formats.empty());
  fit_to_columns(job, outline.config(), o.formats.empty());
  const auto note = [&](const std::string& text) {
    if (!quiet(o.json)) print_beside_progress(text + "\n");
  };
  write_json(o.json, to_json(foresee_sizes(outline, job, note)));
}

void compress(const CompressOptions& o) {
  Job job = job_of(o);
  check_outputs(job, o.json);
  if (o.dry_run && has_config_alone(o.run.model)) return foresee_by_config(o, std::move(job));
  const TextModel model = open_model(o.run.model);
  check_columns_once(model.checkpoint);
  if (job.tune) train::check_known(model.checkpoint.config(), job.on_gpu);
  if (job.consumer != Consumer::fidelio) check_exports_to(model.checkpoint, rules_of(job.consumer).target);
  job.context = window_length("--context", job.context, model.checkpoint.config());
  fit_to_experts(job, model.checkpoint.config(), o.formats.empty());
  fit_to_columns(job, model.checkpoint.config(), o.formats.empty());
  job.calibration = beside_words(job.calibration, bundled_texts(o.run.model).calibration);
  job.texts = beside_words(job.texts, bundled_texts(o.run.model).heldout);
  const World world{model.checkpoint,
                    model.tokenizer,
                    model.chat ? &*model.chat : nullptr,
                    [&](const RunnerOptions& options) { return make_runner(o.run, model.checkpoint, options); },
                    [&](const std::string& folder) -> std::unique_ptr<TaskJudge> {
                      return std::make_unique<TaskTarget>(model, o.questions, o.run, o.seeds, o.job.seed, folder);
                    },
                    [&](const std::string& text) {
                      if (!quiet(o.json)) print_beside_progress(text + "\n");
                    },
                    made_by()};
  if (!o.dry_run)
    set_words_on_interrupt(fmt::format(
        "What was quantised and measured is kept in {}.journal: the same command goes on there and removes it at "
        "the end. --fresh begins anew; to give up, remove that folder.",
        job.out));
  const std::unique_ptr<Ranks> ranks = launched_ranks();
  const bool chosen = !o.consumer.empty() || !o.formats.empty() || !job.plan_file.empty() || !job.from_table.empty();
  if (ranks->first() && !chosen) world.note(std::string(price_of_export()));
  CompressReport made;
  nlohmann::json report;
  try {
    if (o.dry_run) {
      report = to_json(foresee(job, world, *ranks));
    } else {
      made = fidelio::compress(job, world, *ranks);
      report = to_json(made);
    }
  } catch (const std::exception& error) {
    ranks->give_up(error.what());
    throw;
  }
  if (!ranks->first()) return;
  if (!o.dry_run)
    for (const std::string& out : job.outputs()) add_card(out, model.checkpoint.texts());
  if (o.draft && !o.dry_run) choose_drafts(o, report);
  write_json(o.json, report);
  if (quiet(o.json)) return;
  for (const MadeCheckpoint& one : made.made) say(job, one);
}

void add_answers(CLI::App& verb, CompressOptions* o) {
  CLI::Option* tasks = add_questions(verb, o->questions);
  const auto before = verb.get_options();
  verb.add_option("--accuracy-drop", o->job.accuracy_drop,
                  "Share of the model's accuracy on the questions that may be lost")
      ->check(from_to(0, 1));
  verb.add_option("--calibration-bits", o->job.calibration_bits,
                  "Size of the plan at which the loss of accuracy is counted")
      ->check(above_zero());
  verb.add_option("--seeds", o->seeds,
                  "How often each question is answered, sampled as the model's generation_config.json recommends, if "
                  "it does; 0: once, greedily")
      ->check(CLI::Range(0, 1000));
  group_with_tasks(verb, before, tasks);
}

void add_formats(CLI::App& verb, CompressOptions* o) {
  verb.add_option(
          "--formats", o->formats,
          "Formats a plan may choose from beside the source's own (default: those of --from-table; else grids of "
          "2-4 bits and integers of 7 and 8 in groups of 64 with 8-bit scales; on a CPU grids of 5 and 6, on a GPU or "
          "with --tokens-per-second integers of 3-6)")
      ->delimiter(',');
  verb.add_option("--rule", o->rules,
                  "Format of single weight matrices: PATTERN=FORMAT, as 'layers.0.*=int8g64zs8' or "
                  "'embedding=int8g64zs8'; may be repeated, the last that matches holds");
  verb.add_option("--ignore", o->job.ignored,
                  "Leave weight matrices as they are: a pattern, as 'layers.*.down'; may be repeated");
  verb.add_option("--plan", o->job.plan_file,
                  "Build and certify this plan (the `plan` of what --json writes), instead of searching");
  verb.add_option("--from-table", o->job.from_table,
                  "Search with this sensitivity table, written by --table, instead of measuring one");
  verb.add_option("--grouping", o->grouping,
                  "fused: q k v and gate up share a format, as vLLM needs; single: every weight matrix alone");
  verb.add_option("--for", o->consumer,
                  "Program that the plan must suit: fidelio (the default: the smallest model, which no other program "
                  "reads), vllm, gptq or llama.cpp. The formats are then those that its kernels take as they are from "
                  "`fidelio export`, and matrices that it fuses share one");
  verb.add_flag("--keep-embedding", o->job.keep_embedding, "Leave embedding and head as they are");
}

void add_ways(CLI::App& verb, CompressOptions* o) {
  verb.add_option("--method", o->method,
                  "How sensitivities are measured. single: every group in one format, the others by the error of "
                  "their weights; every: every group in every format; linear: by noise; shapley, unified: by "
                  "permutations");
  verb.add_option("--permutations", o->job.permutations, "Permutations of shapley and unified")
      ->check(CLI::Range(2, 1 << 20));
  verb.add_option("--sensitivity-error", o->job.target_se,
                  "Stop permutations when their standard errors are below this share of the total; 0: use them all")
      ->check(from_to(0, 1));
  verb.add_option("--allocate-by", o->allocate_by,
                  "What adds up over groups: kl (it does), or ear (1 - EAR, as the paper has it; for comparison)");
  verb.add_option(
      "--search", o->search,
      "ilp: the knapsack's answer, measured and corrected; ilp+evolve: evolution goes on from there; evolve: "
      "evolution alone, from the widest format everywhere, with whole plans measured and no sensitivities");
  verb.add_option("--generations", o->job.generations,
                  "Of evolution, at most (default: 20 after the knapsack, 500 alone)")
      ->check(CLI::Range(1, 1 << 20));
  verb.add_option("--max-trials", o->job.max_trials, "Plans measured before giving up")->check(above_zero());
  verb.add_option("--seed", o->job.seed, "Of noise, permutations, samples and answers");
}

void add_texts(CLI::App& verb, CompressOptions* o) {
  verb.add_option("--calibration", o->job.calibration,
                  "Calibration text, DIR, FILE or JSONL, each with :domain or without (default: what comes with "
                  "fidelio), or the word tools (calls of tools, which come along); may be repeated")
      ->check(text_source_or_word());
  verb.add_option(
          "--text", o->job.texts,
          "Text to try plans on and to certify with, DIR, FILE or JSONL, each with :domain or without (default: what "
          "comes with fidelio). Documents are a folder's files, a JSONL's lines, a file's parts between form feeds; "
          "one "
          "of three is for trying. Beside it the words tools (calls of tools, which come along) and own or own:N (N "
          "answers of the model itself). May be repeated")
      ->check(text_source_or_word());
  verb.add_option("--promise", o->promise,
                  "What --ear and --kl are promised of. domain: every domain's mean; document: a new document of every "
                  "domain; all: the mean over all text");
  verb.add_option(
          "--answers", o->job.answers,
          "Greedy answers of 200 tokens that the certificate compares with the original's, word for word, as 24; "
          "0: none")
      ->check(zero_or_more());
  verb.add_option(
          "--certificate-windows", o->job.certificate_windows,
          "The most windows of text that are certified on, and between 16 and 64 the most that plans are tried on")
      ->check(above_zero());
  verb.add_option("--calibration-tokens", o->job.tokens,
                  "Tokens the quantisers see (default: 131072; fewer above 30 million parameters, on a GPU above 500 "
                  "million, 32768 at least)")
      ->check(above_zero());
  verb.add_option(
          "--calibration-samples", o->job.samples,
          "How many of them the model writes itself, at temperature 1, each sequence begun with a few tokens of "
          "the text")
      ->check(zero_or_more());
  verb.add_option("--search-tokens", o->job.search_tokens,
                  "Tokens sensitivities are measured on (default: 4096, fewer above 100 million parameters, 2048 at "
                  "least; on a GPU 16384, fewer above 2 billion, 4096 at least)")
      ->check(above_zero());
  verb.add_option("--context", o->job.context,
                  "Length of the windows of all texts (default: 512, or the model's context if that is shorter)")
      ->check(CLI::Range(16, 1 << 20));
}

void add_tuning(CLI::App& verb, CompressOptions* o) {
  verb.add_flag("--tune", o->job.tune,
                "Tune every plan that is measured, on the calibration text and samples of the model itself, so that a "
                "smaller one meets the target; and the copy that --draft makes");
  verb.add_option("--tune-steps", o->job.tune_steps, "Steps of that (default: 300 on a CPU, 1000 on a GPU)")
      ->check(zero_or_more());
  verb.add_option("--tune-windows", o->job.tune_windows, "Windows a step (default: 8 on a CPU, 32 on a GPU)")
      ->check(above_zero());
  verb.add_option("--tune-tokens", o->job.tune_tokens, "Tokens of the calibration text that it is tuned on")
      ->check(above_zero());
  verb.add_option("--tune-samples", o->job.tune_samples,
                  "Tokens beside these that the model writes itself (default: 262144 on a CPU, 4194304 on a GPU)")
      ->check(zero_or_more());
}

}  // namespace

void add_compress(CLI::App& app) {
  auto o = std::make_shared<CompressOptions>();
  CLI::App* verb = app.add_subcommand(
      "compress", "Make the smallest model that stays as close to the original as you ask, and certify that");
  verb->footer(
      "Examples:\n  fidelio compress models/quill-26m --ear 0.99 -o quill-99\n"
      "  fidelio compress models/quill-26m --tasks models/data/tasks.jsonl --limit 100 --accuracy-drop 0.02 -o "
      "quill-tasks\n  mpirun -np 8 fidelio compress MODEL --ear 0.99 --method unified -o OUT");
  add_model(*verb, o->run);
  verb->add_option("--ear", o->job.ear,
                   "How much of the next-token probabilities must stay the same, from 0 to 1: 0.98 is an overlap with "
                   "the original of 98% on average, as the lower confidence bound on unseen text. Several targets, as "
                   "0.99,0.98, make one model each from one search: OUTPUT-99, OUTPUT-98")
      ->delimiter(',')
      ->check(above_zero())
      ->check(from_to(0, 1));
  verb->add_option("--kl", o->job.kl,
                   "KL divergence in nats a token to stay below, as the upper confidence bound on unseen text")
      ->check(above_zero());
  verb->add_option(
          "--top1", o->job.top1,
          "How often greedy decoding must pick the original's token, from 0 to 1, as the lower confidence bound "
          "on unseen text")
      ->check(above_zero())
      ->check(from_to(0, 1));
  add_answers(*verb, o.get());
  verb->add_option("--bits", o->job.bits,
                   "Instead of a target: the best fidelity within this many bits a parameter of the whole file")
      ->check(above_zero());
  verb->add_option("--bytes", o->bytes,
                   "Instead of a target: the best fidelity within a file of this size: 1200000, 1.2MB, 1.2MiB");
  verb->add_option(
          "--tokens-per-second", o->job.tokens_per_second,
          "Decode at least this many tokens a second, one sequence at a time, as timed on this machine: alone, "
          "the best fidelity within that time; or beside --ear, --kl, --bits or --bytes")
      ->check(above_zero());
  verb->add_option("-o,--output", o->job.out, "Folder to write; it appears complete or not at all")->required();
  add_formats(*verb, o.get());
  add_texts(*verb, o.get());
  add_ways(*verb, o.get());
  add_tuning(*verb, o.get());
  verb->add_flag("--draft", o->draft,
                 "Choose a draft too, as `fidelio draft` does, and keep it in the output's folder for --draft auto");
  verb->add_flag(
      "--dry-run", o->dry_run,
      "Say what memory and time this would take, and stop; of a folder with config.json and no weights, what sizes it "
      "would have");
  verb->add_flag("--fresh", o->job.fresh,
                 "Begin anew even if OUTPUT.journal holds the work of a run that was interrupted");
  verb->add_option("--report", o->job.page_file, "Write a page about the plan to this HTML file");
  verb->add_option("--table", o->job.table_file, "Write the sensitivity table to this JSON file");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { compress(*o); });
}

}  // namespace fidelio::app
