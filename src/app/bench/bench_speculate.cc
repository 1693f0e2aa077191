// This file is the verb `bench speculate`, which measures what drafts gain on a model's own prompts, beside plain
// decoding in one interleaved run.
#include "app/bench/bench_speculate.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "app/options/common.h"
#include "app/options/draft.h"
#include "app/options/prompts.h"
#include "app/options/sampling.h"
#include "engine/engine.h"
#include "eval/statistics/statistics.h"

namespace fidelio::app {
namespace {

struct SpeculateBench {
  RunOptions run;
  Sampling sampling;
  DraftOptions draft;
  std::vector<std::string> drafts = {"auto"};
  std::vector<int64_t> batch = {1};
  PromptOptions prompts;
  std::string json;
  int repetitions = 3;
  double acceptance = -1;
};

using Answers = std::vector<std::vector<int32_t>>;

// This is one draft at one batch size. Its engine answers every repetition, as a server's does, and learns in the first
// what drafts cost and gain. Prompts are computed each time.
struct Line {
  std::string draft;
  int64_t batch;
  std::unique_ptr<Engine> engine;
  // There is one of each a repetition: tokens a second, and the ratio to plain decoding.
  std::vector<double> rates, of_plain;
  double seconds = 0;  // This sums all repetitions.

  Line(Runner& runner, const Draft& d, Reading reading, int64_t sequences) : draft(d.name), batch(sequences) {
    EngineOptions options;
    options.reading = reading;
    options.max_sequences = sequences;
    options.reuse_prefixes = false;
    options.speculation = d.how;
    engine = std::make_unique<Engine>(runner, options);
  }

  Answers repeat(const std::vector<GenerationRequest>& requests) {
    Answers answers(requests.size());
    const int64_t before = engine->counters().tokens;
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < requests.size(); ++i) {
      RequestEvents events;
      events.on_finish = [&answers, i](int64_t, Generation&& generation) {
        check(generation.error.empty(), "{}", generation.error);
        answers[i] = std::move(generation.ids);
      };
      engine->add(requests[i], std::move(events));
    }
    while (engine->step()) {
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(static_cast<double>(engine->counters().tokens - before) / took);
    seconds += took;
    return answers;
  }
};

void print(const Line& l) {
  const EngineCounters c = l.engine->counters();
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? std::string("-")
                      : fmt::format("{:.3f}", static_cast<double>(part) / static_cast<double>(whole));
  };
  const auto steps = static_cast<double>(std::max<int64_t>(1, c.steps));
  fmt::print("| {} | {} | {:.1f} | {:.3f} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", l.draft, l.batch,
             percentile(l.rates, 50), percentile(l.of_plain, 50), share(c.accepted, c.judged),
             share(c.accepted, c.drafted), share(c.lookup_accepted, c.looked_up),
             static_cast<double>(c.tokens) / steps / static_cast<double>(l.batch), c.draft_seconds, c.step_seconds,
             l.seconds - c.draft_seconds - c.step_seconds);
}

nlohmann::json to_json(const Line& l) {
  const EngineCounters c = l.engine->counters();
  return {{"draft", l.draft},
          {"batch", l.batch},
          {"tokens_per_second", percentile(l.rates, 50)},
          {"of_plain", percentile(l.of_plain, 50)},
          {"of_plain_by_repetition", l.of_plain},
          {"drafted", c.drafted},
          {"judged", c.judged},
          {"accepted", c.accepted},
          {"looked_up", c.looked_up},
          {"lookup_accepted", c.lookup_accepted},
          {"steps", c.steps},
          {"draft_steps", c.draft_steps},
          {"tokens", c.tokens},
          {"draft_seconds", c.draft_seconds},
          {"step_seconds", c.step_seconds},
          {"seconds", l.seconds}};
}

void bench_speculate(SpeculateBench o) {
  check_can_write({o.json});
  const TextModel model = open_model(o.run.model);
  std::vector<GenerationRequest> requests = read_prompts(o.prompts, sampling_of(o.sampling, o.run.model), model);
  if (o.acceptance >= 0)  // The text has no meaning then.
    for (GenerationRequest& r : requests) r.stop_ids.clear();
  RunnerOptions options = runner_options(o.run);
  const int64_t most = *std::max_element(o.batch.begin(), o.batch.end()),
                context = model.checkpoint.config().max_positions;
  int64_t longest = 0;
  for (const GenerationRequest& r : requests) longest = std::max(longest, static_cast<int64_t>(r.prompt.size()));
  options.cache_tokens = most * (std::min(context, longest + std::min(context, o.prompts.max_tokens)) + kPageTokens);
  options.max_logit_rows = std::max(options.max_logit_rows, most * (o.draft.most + 1));
  options.max_rows = std::max(options.max_rows, options.max_logit_rows);
  prepare_for_drafts(options, o.drafts, o.run, model.checkpoint.config().v);
  const auto runner = make_runner(o.run, model.checkpoint, options);
  std::vector<Draft> drafts(1);
  drafts[0].name = "plain";
  for (const std::string& name : o.drafts) {
    DraftOptions one = o.draft;
    one.draft = name;
    drafts.push_back(open_draft(one, *runner, o.run));
    drafts.back().how.replayed_acceptance = o.acceptance;
  }
  if (!quiet(o.json)) {
    for (const Draft& d : drafts)
      if (d.how.draft != nullptr)
        fmt::print("{} reads {:.3f} of the model's bytes\n", d.name,
                   static_cast<double>(d.how.draft->bytes_read(d.how.reading)) /
                       static_cast<double>(runner->bytes_read(options.mode)));
    fmt::print(
        "| draft | batch | t/s | of plain | acceptance | of drafted | of looked up | tokens a step | draft s | verify "
        "s | rest s "
        "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  }
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t batch : o.batch) {
    std::vector<Line> lines;
    for (const Draft& d : drafts) lines.emplace_back(*runner, d, options.mode, batch);
    for (int i = 0; i < o.repetitions; ++i) {
      Answers plain;
      for (Line& line : lines) {
        Answers answers = line.repeat(requests);
        if (plain.empty())
          plain = std::move(answers);
        else
          check(o.acceptance >= 0 || answers == plain,
                "draft {} changed an answer: speculation is broken, do not use it", line.draft);
        line.of_plain.push_back(line.rates.back() / lines[0].rates.back());
      }
    }
    for (const Line& line : lines) {
      if (!quiet(o.json)) print(line);
      rows.push_back(to_json(line));
    }
  }
  write_json(o.json, {{"model", o.run.model}, {"rows", rows}});
}

}  // namespace

void add_bench_speculate(CLI::App& bench) {
  auto o = std::make_shared<SpeculateBench>();
  CLI::App* verb = bench.add_subcommand("speculate", "Speed and acceptance with drafts, beside plain decoding");
  verb->footer(
      "Example:\n  fidelio bench speculate quill-8bit --prompts models/data/tasks.jsonl --draft 4,lookup,auto --batch "
      "1,4");
  add_model(*verb, o->run);
  verb->add_option("--prompts", o->prompts.file,
                   "A prompt a line: text, or of a .jsonl file JSON with \"prompt\" or \"question\"")
      ->required();
  verb->add_option("--limit", o->prompts.limit, "Prompts to answer")->check(above_zero());
  verb->add_option("--max-tokens", o->prompts.max_tokens, "Longest answer in tokens")->check(above_zero());
  verb->add_flag("--plain", o->prompts.plain, "Continue the bare prompts, without the chat template");
  verb->add_option("--draft", o->drafts, "Drafts to compare, as `generate --draft` takes them")->delimiter(',');
  verb->add_option("--drafts", o->draft.most, "Tokens guessed at once, at most")->check(CLI::Range(1, 64));
  verb->add_flag("--fixed-drafts", o->draft.fixed, "Always guess that many, instead of as many as pay");
  verb->add_option("--batch", o->batch, "Numbers of answers side by side")
      ->delimiter(',')
      ->check(from_to(1, kMostSideBySide));
  verb->add_option("--acceptance", o->acceptance,
                   "Accept drafts with this probability whatever they are, for models of random weights")
      ->check(from_to(0, 1));
  verb->add_option("-r,--repetitions", o->repetitions, "Interleaved repetitions; medians are shown")
      ->check(above_zero());
  add_sampling(*verb, o->sampling);
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { bench_speculate(*o); });
}

}  // namespace fidelio::app
