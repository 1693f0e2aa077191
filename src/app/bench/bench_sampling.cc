// `bench sampling`: how long choosing a token takes on the host, a row of logits at a time. Rows are peaked as a model's
// are where it is sure (50 tokens above a normal rest), normal with a deviation of 2.5, and flat: normal with 1, where
// most of a vocabulary has a share. Greedy reads a row once: what sampling costs beyond that is its own.
#include "app/bench/bench_sampling.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/options/common.h"
#include "core/rng.h"
#include "engine/sampler.h"
#include "kernels/cpu/choice/choose.h"

namespace fidelio::app {
namespace {

constexpr int kRows = 16;

struct SamplingBench {
  std::vector<int64_t> vocabularies = {49152, 151936};
  std::string isa, json;
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

// Seconds a row: the median of its passes over the rows.
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
  std::nth_element(passes.begin(), passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2), passes.end());
  return passes[passes.size() / 2];
}

void bench_sampling(const SamplingBench& o) {
  cpu::Chooser chooser(o.isa.empty() ? cpu::supported_isas().back() : cpu::parse_isa(o.isa));
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
  write_json(o.json, report);
}

}  // namespace

void add_bench_sampling(CLI::App& bench) {
  auto o = std::make_shared<SamplingBench>();
  CLI::App* verb = bench.add_subcommand("sampling", "How long choosing a token from a row of logits takes");
  verb->footer("Example:\n  fidelio bench sampling --vocabularies 49152,151936");
  verb->add_option("--vocabularies", o->vocabularies, "Logits a row")->delimiter(',')->check(above_zero());
  verb->add_option("--isa", o->isa, "Kernels to use instead of the best ones: portable, avx2, avx512");
  verb->add_option("--seconds", o->seconds, "Time a row of the table takes")->check(from_to(0, 3600));
  add_json(*verb, o->json);
  verb->callback([o] { bench_sampling(*o); });
}

}  // namespace fidelio::app
