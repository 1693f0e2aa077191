// This file is the verb `bench sampling`, which times the choice of tokens on the host, a row of logits at a time. The
// rows are peaked, as a model's are where it is certain (50 tokens above a normal rest); normal with a deviation of
// 2.5; and flat, which is normal with a deviation of 1, where most of a vocabulary has a share. Greedy choice reads a
// row once, so the cost beyond that is sampling's own. If a model is given, the verb also reports what sampling costs
// of the steps that make the rows, on whatever device they are computed.
#include "app/bench/bench_sampling.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/options/common.h"
#include "core/rng.h"
#include "engine/sampler.h"
#include "eval/statistics/statistics.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/page_table.h"
#include "step/own_slot.h"

namespace fidelio::app {
namespace {

constexpr int kRows = 16;

struct SamplingBench {
  RunOptions run;  // Without a model, rows alone are timed.
  std::vector<int64_t> vocabularies = {49152, 151936}, batch = {1, 8};
  int64_t tokens = 128;
  std::string json;
  double seconds = 0.2;
};

struct Filters {
  const char* name;
  SamplingOptions options;
};
std::vector<Filters> all_filters() {
  SamplingOptions greedy, plain, top_p, top_k, all;
  plain.temperature = 0.7;
  top_p = top_k = plain;
  top_p.top_p = 0.9;
  top_k.top_k = 50;
  all = top_k;
  all.top_p = 0.9;
  all.min_p = 0.05;
  return {
      {"greedy", greedy}, {"t .7", plain}, {"t .7, top-p .9", top_p}, {"t .7, top-k 50", top_k}, {"all filters", all}};
}

std::vector<std::vector<float>> make_rows(const std::string& kind, int64_t v) {
  Rng rng(1);
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(static_cast<size_t>(v)));
  for (std::vector<float>& row : rows) {
    for (float& x : row) x = static_cast<float>((kind == "flat" ? 1 : 2.5) * rng.normal());
    for (int i = 0; kind == "peaked" && i < 50; ++i)
      row[rng.below(row.size())] = static_cast<float>(12 + 3 * rng.normal());
  }
  return rows;
}

// Returns seconds a row, as the median of the passes over the rows.
double time_rows(cpu::Chooser& chooser, const std::vector<std::vector<float>>& rows, const SamplingOptions& options,
                 double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<double> passes;
  std::vector<LogitChange> changes;
  const auto begin = Clock::now();
  for (int64_t position = 0; passes.size() < 5 || since(begin) < seconds; ++position) {
    const auto start = Clock::now();
    for (const std::vector<float>& row : rows)
      check_chosen(
          chooser.choose(row, choice_rule(options, {}, 0, position, static_cast<int64_t>(row.size()), changes)));
    passes.push_back(since(start) / static_cast<double>(rows.size()));
  }
  return percentile(passes, 50);
}

struct SampledSteps {
  double greedy, sampled;  // These are seconds a step, as medians.
};

// Runs sequences freely, one token of each a step, chosen greedily and by sampling in turns, so both kinds meet the
// same machine and the same contexts.
SampledSteps time_steps(Runner& runner, Activations mode, int64_t sequences, int64_t tokens) {
  SamplingOptions greedy, sampled;
  sampled.temperature = 0.7;
  sampled.top_p = 0.9;
  PageTable pages(runner.cache_pages());
  const auto v = static_cast<uint64_t>(runner.config().v);
  std::vector<int32_t> newest;
  Rng rng(1);
  for (int64_t s = 0; s < sequences; ++s) {
    pages.grow(s, tokens);
    newest.push_back(static_cast<int32_t>(rng.below(v)));
  }
  std::vector<double> seconds[2];
  std::vector<LogitChange> changes;  // Neither kind changes logits.
  std::vector<Choice> choices(newest.size());
  const int64_t warm = tokens / 8;
  for (int64_t position = 0; position < tokens; ++position) {
    const bool samples = position % 2 == 1;
    const auto start = std::chrono::steady_clock::now();
    Batch batch;
    std::vector<ChoiceRule> rules;
    for (int64_t s = 0; s < sequences; ++s) {
      sampled.seed = static_cast<uint64_t>(s);
      batch.append({&newest[static_cast<size_t>(s)], 1}, position, pages.pages(s), 1, RowKind::output);
      continue_in_slot(runner.program().state, batch, static_cast<int32_t>(s));
      rules.push_back(choice_rule(samples ? sampled : greedy, {}, 0, position, static_cast<int64_t>(v), changes));
    }
    runner.step_and_choose(batch, mode, rules, choices);
    if (position >= warm)
      seconds[samples].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (size_t s = 0; s < choices.size(); ++s) {
      check_chosen(choices[s]);
      newest[s] = choices[s].id;
    }
  }
  return {percentile(seconds[0], 50), percentile(seconds[1], 50)};
}

nlohmann::json bench_steps(const SamplingBench& o) {
  const Checkpoint c = Checkpoint::open(o.run.model);
  const int64_t most = *std::max_element(o.batch.begin(), o.batch.end());
  check(o.tokens <= c.config().max_positions, "--tokens {} is longer than the model's context of {}", o.tokens,
        c.config().max_positions);
  RunnerOptions options = runner_options(o.run);
  options.max_rows = options.max_logit_rows = most;
  options.cache_tokens = most * PageTable::pages_for(o.tokens) * kPageTokens;
  const auto runner = make_runner(o.run, c, options);
  runner->reserve_states(most);
  nlohmann::json report = nlohmann::json::array();
  if (!quiet(o.json))
    fmt::print("| sequences | greedy, tokens/s | t .7, top-p .9, tokens/s | sampling costs |\n|---|---|---|---|\n");
  for (const int64_t n : o.batch) {
    const SampledSteps t = time_steps(*runner, options.mode, n, o.tokens);
    const double rows = static_cast<double>(n), greedy = rows / t.greedy, sampled = rows / t.sampled;
    report.push_back({{"sequences", n},
                      {"greedy_tokens_per_second", greedy},
                      {"sampled_tokens_per_second", sampled},
                      {"cost", t.sampled / t.greedy - 1}});
    if (quiet(o.json)) continue;
    fmt::print("| {} | {:.1f} | {:.1f} | {:+.2f} % |\n", n, greedy, sampled, 100 * (t.sampled / t.greedy - 1));
    std::fflush(stdout);
  }
  return report;
}

nlohmann::json bench_rows(const SamplingBench& o) {
  cpu::Chooser chooser(o.run.isa.empty() ? cpu::supported_isas().back() : cpu::parse_isa(o.run.isa));
  nlohmann::json report = nlohmann::json::array();
  if (!quiet(o.json)) fmt::print("| vocabulary | rows | filters | ms a row |\n|---|---|---|---|\n");
  for (const int64_t v : o.vocabularies)
    for (const char* kind : {"peaked", "normal", "flat"}) {
      const std::vector<std::vector<float>> rows = make_rows(kind, v);
      for (const Filters& filters : all_filters()) {
        const double seconds = time_rows(chooser, rows, filters.options, o.seconds);
        report.push_back(
            {{"vocabulary", v}, {"rows", kind}, {"filters", filters.name}, {"milliseconds", seconds * 1e3}});
        if (quiet(o.json)) continue;
        fmt::print("| {} | {} | {} | {:.3f} |\n", v, kind, filters.name, seconds * 1e3);
        std::fflush(stdout);
      }
    }
  return report;
}

}  // namespace

void add_bench_sampling(CLI::App& bench) {
  auto o = std::make_shared<SamplingBench>();
  CLI::App* verb = bench.add_subcommand("sampling", "How long choosing a token from a row of logits takes");
  verb->footer(
      "Examples:\n  fidelio bench sampling --vocabularies 49152,151936\n"
      "  fidelio bench sampling models/quill-26m --batch 1,8,64");
  verb->add_option("MODEL", o->run.model, "A model whose steps are timed with either choice; without it rows alone")
      ->check(model_folder());
  verb->add_option("--batch", o->batch, "Of a model: numbers of sequences decoded at once")
      ->delimiter(',')
      ->check(from_to(1, kMostSideBySide));
  verb->add_option("--tokens", o->tokens, "Of a model: tokens a sequence")->check(CLI::Range(16, 1 << 20));
  verb->add_option("--vocabularies", o->vocabularies, "Without a model: logits a row")
      ->delimiter(',')
      ->check(from_to(1, 1 << 28));
  verb->add_option("--seconds", o->seconds, "Without a model: time a row of the table takes")->check(from_to(0, 3600));
  add_device(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] {
    check_can_write({o->json});
    write_json(o->json, {{"model", o->run.model}, {"rows", o->run.model.empty() ? bench_rows(*o) : bench_steps(*o)}});
  });
}

}  // namespace fidelio::app
