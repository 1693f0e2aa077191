#include "app/verbs/eval_draft.h"

#include <algorithm>
#include <cmath>

#include "app/about.h"
#include "core/file.h"
#include "engine/generate.h"
#include "eval/report/html.h"
#include "eval/report/table.h"

namespace fidelio::app {
namespace {

// The model continues the windows of the texts: kPrompt tokens of each are given, and kContinued more are generated.
constexpr int64_t kPrompt = 32, kContinued = 96, kMost = 64;  // kMost counts windows.

std::vector<GenerationRequest> continuations(const std::vector<EvalText>& texts, const WindowOptions& windows,
                                             double temperature) {
  std::vector<GenerationRequest> requests;
  for (const EvalText& text : texts)
    for (const TextWindow& w : text_windows(static_cast<int64_t>(text.ids.size()), windows)) {
      if (static_cast<int64_t>(requests.size()) == kMost || w.end - w.begin < kPrompt) continue;
      GenerationRequest r;
      r.prompt.assign(text.ids.begin() + w.begin, text.ids.begin() + w.begin + kPrompt);
      r.max_tokens = kContinued;
      r.sampling.temperature = temperature;
      r.sampling.seed = requests.size();
      requests.push_back(std::move(r));
    }
  check(!requests.empty(), "no window of the texts has {} tokens to begin an answer with", kPrompt);
  return requests;
}

}  // namespace

nlohmann::json measure_draft(const std::string& verb, const RunOptions& run, const TextModel& model,
                             const std::vector<EvalText>& texts, const WindowOptions& windows,
                             const RunnerOptions& measuring, const EvalDraft& o) {
  RunnerOptions options = measuring;
  prepare_for_drafts(options, {&o.draft.draft, 1}, run, model.checkpoint.config().v);
  const auto verifier = make_runner(run, model.checkpoint, options);
  const Draft draft = open_draft(o.draft, *verifier, run);
  check(draft.how.draft != nullptr && !draft.how.lookup,
        "{} --draft {}: give one reading or folder; what lookup finds depends on the text", verb, o.draft.draft);
  check(!draft.how.reading.short_head,
        "{} --draft {}: it guesses some tokens alone; `fidelio draft` tells how often it is right", verb,
        o.draft.draft);
  ThreadPool pool(run.threads);
  // Two runners side by side need a cache each.
  const auto alone = draft.folder.empty() ? make_runner(run, model.checkpoint, measuring)
                                          : make_runner(run, Checkpoint::open(draft.folder), measuring);
  const FidelityReport report = compare_models(
      *verifier, *alone, texts,
      {.windows = windows, .reference_mode = measuring.mode, .candidate_mode = draft.how.reading, .bootstrap = {}},
      pool);
  SpeculationOptions how = draft.how;
  how.adapt = false;
  how.most = o.draft.most;
  how.acceptance = Acceptance::rejection;
  EngineCounters counters;
  generate(*verifier, continuations(texts, windows, o.temperature),
           {.reading = measuring.mode, .max_sequences = 8, .speculation = how, .counters = &counters});
  const auto judged = static_cast<double>(std::max<int64_t>(1, counters.judged));
  const Estimate ear = report.ear();
  return {{"draft", draft.name},
          {"bytes_share", static_cast<double>(how.draft->bytes_read(how.reading)) /
                              static_cast<double>(verifier->bytes_read(measuring.mode))},
          {"ear", {{"value", ear.value}, {"ci95", {ear.ci95.low, ear.ci95.high}}}},
          {"temperature", o.temperature},
          {"judged", counters.judged},
          {"accepted", counters.accepted},
          {"acceptance", static_cast<double>(counters.accepted) / judged},
          {"expected_acceptance", counters.overlap / judged}};
}

void eval_draft(const RunOptions& run, const TextModel& model, const std::vector<EvalText>& texts,
                const WindowOptions& windows, const RunnerOptions& measuring, const EvalDraft& o,
                const std::string& json, const std::string& page) {
  const nlohmann::json found = measure_draft("eval", run, model, texts, windows, measuring, o);
  const auto of = [&](const char* key) { return found.at(key).get<double>(); };
  const double acceptance = of("acceptance"), judged = std::max(1.0, of("judged"));
  const nlohmann::json &ear = found.at("ear").at("value"), &ends = found.at("ear").at("ci95");
  const Table table{
      "How well it guesses",
      fmt::format("The last two agree within {:.5f}, two standard errors of counting, where all is right.",
                  2 * std::sqrt(acceptance * (1 - acceptance) / judged)),
      {"figure", "value [95%]"},
      {{"bytes a step reads, of the model's", fmt::format("{:.3f}", of("bytes_share"))},
       {"EAR on the texts",
        fmt::format("{:.5f}  [{:.5f}, {:.5f}]", ear.get<double>(), ends[0].get<double>(), ends[1].get<double>())},
       {"EAR where drafts were judged", fmt::format("{:.5f}", of("expected_acceptance"))},
       {"accepted there", fmt::format("{:.5f}  ({} of {})", acceptance, found.at("accepted").get<int64_t>(),
                                      found.at("judged").get<int64_t>())}}};
  if (!quiet(json)) {
    for (const auto& row : table.rows) fmt::print("{:<44} {}\n", row[0], row[1]);
    fmt::print("{}\n", table.note);
  }
  if (!page.empty())
    write_file_atomically(
        page, html_page(fmt::format("{} drafts for {}", found.at("draft").get<std::string>(), folder_name(run.model)),
                        to_html(table), made_by()));
  write_json(json, found);
}

}  // namespace fidelio::app
