// This file is the verb `eval`, which measures a model on texts and questions.
#include <fmt/ranges.h>

#include <cmath>

#include "app/about.h"
#include "app/options/common.h"
#include "app/options/texts.h"
#include "app/verbs/eval_draft.h"
#include "app/verbs/eval_tasks.h"
#include "core/file.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "eval/fidelity/perplexity.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/studies/grids.h"

namespace fidelio::app {
namespace {

struct Eval {
  RunOptions run;
  std::string reference, reference_activations = "f32", json, page;
  std::vector<std::string> texts;
  WindowOptions windows{.context = 0};
  int view = 0;
  EvalDraft draft;
  EvalTasks tasks;
};

// Returns the number without an interval where the data gives none (one window), and a dash where it gives no number.
std::string with_ci(const Estimate& e, int digits) {
  std::string text = number_text(e.value, digits);
  if (std::isfinite(e.ci95.low) && std::isfinite(e.ci95.high))
    text += fmt::format("  [{:.{}f}, {:.{}f}]", e.ci95.low, digits, e.ci95.high, digits);
  return text;
}

// `longest` is the length of the longest window in tokens.
RunnerOptions measuring(const Eval& o, Activations mode, int64_t longest) {
  RunnerOptions options = runner_options(o.run);
  options.mode = mode;
  if (mode == Activations::f32 && o.run.kv.empty()) options.kv = KvFormat::f32;
  // Several windows share a batch where they fit; one long window is fed in chunks.
  options.max_rows = std::max<int64_t>(512, std::min<int64_t>(longest, 2048));
  options.cache_tokens = std::max(longest, 2 * options.max_rows) + kPageTokens;
  options.context = longest;
  return options;
}

// These are the measured figures, for the terminal and for a page.
struct Figures {
  std::vector<std::vector<std::string>> rows;  // A row is a name and a value with its interval.
  std::string note;
};

// Tells what a bootstrap of few windows is worth, measured on documentation (docs/results.md): in how many cases of 100
// the interval from windows drawn from it contains the mean of all of it.
std::string few_windows_text(size_t windows) {
  constexpr std::pair<size_t, int> kCovered[] = {{2, 51}, {3, 72}, {5, 82}, {10, 88}};
  if (windows < 2 || windows >= 20) return "";
  int covered = 0;
  for (const auto& [count, share] : kCovered)
    if (windows >= count) covered = share;
  return fmt::format("; these are few windows: intervals are too narrow, and hold the true value in about {}% of cases",
                     covered);
}

Figures figures_of(const PerplexityReport& r) {
  return {{{"perplexity", with_ci(r.perplexity(), 4)}},
          fmt::format("{} tokens in {} windows{}", r.tokens(), r.windows.size(), few_windows_text(r.windows.size()))};
}

// Adds rows that are not means at temperature 1: the worst positions, and the model with the sampling that its authors
// recommend.
void add_rows_beyond_means(const FidelityReport& r, Figures& figures) {
  const Tails& t = r.tails;
  figures.rows.push_back({"KL: median, 99%, 99.9%, largest",
                          fmt::format("{:.6f}, {:.6f}, {:.6f}, {:.6f}", t.kl_p50, t.kl_p99, t.kl_p999, t.kl_largest)});
  figures.rows.push_back({"EAR: lowest of any position", fmt::format("{:.5f}", t.ear_lowest)});
  if (!r.options.sampling) return;
  figures.rows.push_back({"EAR as it is to be sampled",
                          fmt::format("{} ({})", with_ci(r.ear_sampled(), 5), sampling_text(*r.options.sampling))});
  figures.rows.push_back({"KL at that temperature", with_ci(r.kl_sampled(), 6)});
}

Figures figures_of(const FidelityReport& r) {
  Figures figures{{{"perplexity", with_ci(r.perplexity(), 4)},
                   {"perplexity of the reference", with_ci(r.reference_perplexity(), 4)},
                   {"KL, nats a token (full vocabulary)", with_ci(r.kl(), 6)},
                   {"EAR (full vocabulary)", with_ci(r.ear(), 5)},
                   {"EAR (top 10 renormalised)", with_ci(r.mean_of(&FidelitySums::ear_renormalised), 5)},
                   {"top-1 agreement", with_ci(r.top1(), 5)},
                   {"margin at disagreement", with_ci(r.mean_over_disagreements(&FidelitySums::margin_p), 4)}},
                  fmt::format("{} tokens in {} windows; 95% confidence intervals by bootstrap over windows{}",
                              r.positions(), r.windows.size(), few_windows_text(r.windows.size()))};
  add_rows_beyond_means(r, figures);
  return figures;
}

// `report` is that of a comparison with a reference, or null without one.
void write_page(const Eval& o, const Figures& figures, const FidelityReport* report = nullptr) {
  if (o.page.empty()) return;
  std::vector<std::string> texts;
  for (const std::string& text : o.texts) texts.push_back(folder_name(text));
  const Table table{
      fmt::format("On {}", fmt::join(texts, ", ")), figures.note, {"figure", "value [95%]"}, figures.rows};
  const std::string against = o.reference.empty() ? "" : " beside " + folder_name(o.reference);
  std::string body = to_html(table);
  if (report) {
    const NamedReport named[] = {{folder_name(o.run.model), report}};
    body += svg_chart(flips_chart(named)) + to_html(flips_table(named));
  }
  write_file_atomically(o.page, html_page(folder_name(o.run.model) + against, body, made_by()));
}

// Returns how the candidate is read: if --view asks for it, by the high bits of its integers alone, as a draft would
// be.
Reading reading_of(const Eval& o, const Runner& candidate, Activations mode) {
  const Reading reading(mode, o.view);
  const int64_t read = candidate.bytes_read(reading), whole = candidate.bytes_read(mode);
  check(o.view == 0 || read < whole, "--view {}: no layer of this checkpoint has integers that can be cut to {} bits",
        o.view, o.view);
  if (o.view > 0 && !quiet(o.json))
    fmt::print("a step reads {} of {} ({:.3f})\n", bytes_text(read), bytes_text(whole),
               static_cast<double>(read) / static_cast<double>(whole));
  return reading;
}

void eval(Eval o) {
  check_can_write({o.json, o.page});
  if (!o.tasks.questions.file.empty()) return eval_tasks(o.run, o.tasks, o.draft.draft, o.json, o.page);
  check(!o.texts.empty(), "eval: give --text FILE for perplexity and fidelity, or --tasks FILE for accuracy");
  const TextModel model = open_model(o.run.model);
  const ModelConfig& config = model.checkpoint.config();
  if (o.windows.context == 0) o.windows.context = config.max_positions;
  check(o.windows.context <= config.max_positions, "--context {} is longer than the model's {}", o.windows.context,
        config.max_positions);
  const std::vector<EvalText> texts = read_texts(o.texts, model.tokenizer);
  int64_t longest = 0;
  for (const EvalText& text : texts) longest = std::max(longest, static_cast<int64_t>(text.ids.size()));
  longest = std::min<int64_t>(longest, o.windows.context);
  const Activations mode = parse_activations(o.run.activations);
  if (o.draft.draft.draft != "off")
    return eval_draft(o.run, model, texts, o.windows, measuring(o, mode, longest), o.draft, o.json, o.page);
  RunnerOptions options = measuring(o, mode, longest);
  options.high_bits = o.view;
  const auto candidate = make_runner(o.run, model.checkpoint, options);
  const Reading reading = reading_of(o, *candidate, mode);
  ThreadPool pool(o.run.threads);
  set_words_on_interrupt("Nothing is kept of an evaluation on text; the same command begins anew.");
  std::unique_ptr<Progress> progress;
  int64_t before = 0;
  const ProgressCallback advance = [&](int64_t done, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("eval", total);
    progress->advance(done - std::exchange(before, done));
  };
  if (o.reference.empty()) {
    const PerplexityReport report = measure_perplexity(*candidate, texts, {o.windows, reading, {}}, pool, advance);
    progress.reset();
    const Figures figures = figures_of(report);
    if (!quiet(o.json)) fmt::print("{} {}, {}\n", figures.rows[0][0], figures.rows[0][1], figures.note);
    write_page(o, figures);
    return write_json(o.json, to_json(report));
  }
  const Checkpoint reference = Checkpoint::open(o.reference);
  check(reference.config().v == config.v, "{} has a vocabulary of {}, {} of {}: they cannot be compared", o.reference,
        reference.config().v, o.run.model, config.v);
  const Activations reference_mode = parse_activations(o.reference_activations);
  const auto exact = make_runner(o.run, reference, measuring(o, reference_mode, longest));
  const FidelityReport report =
      compare_models(*exact, *candidate, texts,
                     {.windows = o.windows,
                      .reference_mode = reference_mode,
                      .candidate_mode = reading,
                      .top_k = 10,
                      .sampling = recommended_sampling(GenerationDefaults::load(reference.texts())),
                      .bootstrap = {}},
                     pool, advance);
  progress.reset();
  const Figures figures = figures_of(report);
  if (!quiet(o.json)) {
    for (const auto& row : figures.rows) fmt::print("{:<34} {}\n", row[0], row[1]);
    fmt::print("{}\n", figures.note);
  }
  write_page(o, figures, &report);
  write_json(o.json, to_json(report));
}

}  // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Eval>();
  CLI::App* verb = app.add_subcommand("eval",
                                      "Perplexity, and fidelity against a reference (KL, EAR, agreement), or accuracy "
                                      "on tasks, with confidence intervals");
  verb->footer(
      "Examples:\n  fidelio eval quill-int4 --reference models/quill-26m --text models/data/docs-heldout.txt --context "
      "512 --windows 40\n"
      "  fidelio eval models/quill-26m --tasks models/data/tasks.jsonl --limit 30 --cache answers.jsonl\n"
      "  fidelio eval models/quill-26m --tasks models/data/tasks.jsonl --task recall --recommended --seeds 3\n"
      "  fidelio eval quill-quarot --tasks models/data/tasks.jsonl --draft a4 --drafts 3");
  add_model(*verb, o->run);
  verb->add_option("--text", o->texts, "Text file; may be repeated");
  CLI::Option* reference =
      verb->add_option("--reference", o->reference, "Model folder to compare with")->check(model_folder());
  verb->add_option("--reference-activations", o->reference_activations,
                   "Precision of the reference's activations: f32 (exact, the default), a16, a8")
      ->needs(reference);
  verb->add_option("--view", o->view, "Read only this many high bits of the layers' integer codes, as a draft would")
      ->check(CLI::Range(1, 7));
  CLI::Option* draft =
      verb->add_option("--draft", o->draft.draft.draft,
                       "How well a draft guesses: its EAR on the texts, and its acceptance while the "
                       "model continues them, or its acceptance by task; as `generate --draft` takes it")
          ->excludes(reference);
  verb->add_option("--drafts", o->draft.draft.most, "Tokens guessed at once")->check(CLI::Range(1, 64))->needs(draft);
  verb->add_option("--draft-temperature", o->draft.temperature, "At which the model continues the texts (default 1)")
      ->check(above_zero())
      ->needs(draft);
  verb->add_option("--context", o->windows.context, "Window length in tokens (default: the model's context)")
      ->check(CLI::Range(2, 1 << 24));
  verb->add_option("--stride", o->windows.stride, "Distance of windows (default: the context, i.e. side by side)")
      ->check(above_zero());
  verb->add_option("--windows", o->windows.windows, "Only this many windows of each text, the first ones")
      ->check(above_zero());
  CLI::Option* tasks = add_eval_tasks(*verb, o->tasks);
  for (const char* of_texts : {"--text", "--reference", "--reference-activations", "--view", "--draft-temperature",
                               "--context", "--stride", "--windows"})
    tasks->excludes(verb->get_option(of_texts));
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  add_report(*verb, o->page);
  verb->callback([o] { eval(*o); });
}

}  // namespace fidelio::app
