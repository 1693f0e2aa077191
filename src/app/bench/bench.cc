#include <chrono>
#include <cmath>

#include "app/bench/bench_linear.h"
#include "app/bench/bench_sampling.h"
#include "app/bench/bench_serve.h"
#include "app/bench/bench_speculate.h"
#include "app/bench/bench_tune.h"
#include "app/bench/probe.h"
#include "app/options/common.h"
#include "core/foreign/units.h"
#include "core/rng.h"
#include "runtime/page_table.h"

namespace fidelio::app {
namespace {

struct ModelBench {
  RunOptions run;
  std::vector<std::string> models;
  std::vector<int64_t> pp = {512}, tg = {128}, batch = {1};
  std::vector<std::string> activations = {"a16"};
  int repetitions = 5;
  std::string json;
};

struct Timing {
  std::string test;
  int64_t tokens = 0, bytes = 0;  // per repetition: tokens made, weight bytes read
  std::vector<double> seconds;
  double mean() const {
    double sum = 0;
    for (double s : seconds) sum += static_cast<double>(tokens) / s;
    return sum / static_cast<double>(seconds.size());
  }
  double deviation() const {
    if (seconds.size() < 2) return 0;
    double sum = 0;
    for (double s : seconds) sum += std::pow(static_cast<double>(tokens) / s - mean(), 2);
    return std::sqrt(sum / static_cast<double>(seconds.size() - 1));
  }
};

// Bytes of weights that a step of one row reads: everything but the embedding's rows that are not looked up, and of
// experts those that the row passes.
int64_t step_bytes(const Checkpoint& c) {
  int64_t bytes = 0, of_experts = 0;
  for (LinearId id : linears_of(c.config())) {
    if (id.role == Role::embedding && !c.config().tie_embeddings) continue;
    const Shape s = shape_of(c.config(), id);
    (id.expert < 0 ? bytes : of_experts) += stored_bytes(c.format(id), s[0], s[1]);
  }
  const ModelConfig& m = c.config();
  return m.experts > 0 ? bytes + of_experts / m.experts * m.experts_per_row : bytes;
}

template <typename F>
Timing time_test(const std::string& test, int64_t tokens, int64_t bytes, int repetitions, F&& once) {
  Timing t{test, tokens, bytes, {}};
  once();
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    once();
    t.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return t;
}

// Every one of the first with every one of the second.
std::vector<std::pair<int64_t, int64_t>> pairs(const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t a : first)
    for (int64_t b : second) all.emplace_back(a, b);
  return all;
}

// llama-bench's definitions: pp = one prompt in batches of max_rows, logits of its last token; tg = single-token steps
// of `sequences` sequences from an empty context.
std::vector<Timing> time_model(const Checkpoint& c, const ModelBench& o) {
  RunnerOptions options = runner_options(o.run);
  const auto largest = [](const std::vector<int64_t>& all) { return *std::max_element(all.begin(), all.end()); };
  const int64_t most = largest(o.batch), prompt_tokens = largest(o.pp), made_tokens = largest(o.tg);
  const int64_t context = c.config().max_positions;
  check(prompt_tokens <= context, "--pp {} is longer than the model's context of {}", prompt_tokens, context);
  check(made_tokens <= context, "--tg {} is longer than the model's context of {}", made_tokens, context);
  options.max_rows = std::max<int64_t>({std::min<int64_t>(prompt_tokens, 512), most, 1});
  options.max_logit_rows = most;
  options.cache_tokens = std::max(prompt_tokens, most * PageTable::pages_for(made_tokens) * kPageTokens);
  const auto runner = make_runner(o.run, c, options);
  Rng rng(1);
  const auto token = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(c.config().v))); };
  const int64_t bytes = step_bytes(c);

  std::vector<Timing> rows;
  for (int64_t pp : o.pp) {
    if (pp == 0) continue;
    std::vector<int32_t> prompt(static_cast<size_t>(pp));
    for (int32_t& id : prompt) id = token();
    PageTable pages(runner->cache_pages());
    pages.grow(0, pp);
    rows.push_back(time_test(fmt::format("pp{}", pp), pp, bytes, o.repetitions, [&] {
      for (int64_t begin = 0; begin < pp; begin += options.max_rows) {
        const int64_t count = std::min(options.max_rows, pp - begin);
        Batch batch;
        batch.append(std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin,
                     pages.pages(0), begin + count == pp ? 1 : 0, RowKind::prompt);
        runner->step(batch, options.mode);
      }
    }));
  }
  for (const auto& [tg, sequences] : pairs(o.tg, o.batch)) {
    if (tg == 0) continue;
    PageTable pages(runner->cache_pages());
    for (int64_t s = 0; s < sequences; ++s) pages.grow(s, tg);
    const std::string test = sequences == 1 ? fmt::format("tg{}", tg) : fmt::format("tg{} x{}", tg, sequences);
    rows.push_back(time_test(test, tg * sequences, bytes * tg, o.repetitions, [&, tg = tg, sequences = sequences] {
      for (int64_t position = 0; position < tg; ++position) {
        Batch batch;
        for (int64_t s = 0; s < sequences; ++s) {
          const int32_t id = token();
          batch.append({&id, 1}, position, pages.pages(s), 1, RowKind::output);
        }
        runner->step(batch, options.mode);
      }
    }));
  }
  return rows;
}

// One model in one mode: its rows in the report and, unless that is standard output, in the table.
void bench_one(const ModelBench& o, ThreadPool& pool, double& probe, nlohmann::json& report) {
  const Checkpoint c = Checkpoint::open(o.run.model);
  // Of the memory that the weights are read from.
  const auto bandwidth = [&] {
    return on_gpu(o.run) ? cuda_copy_bandwidth(runner_options(o.run).gpu) : read_bandwidth(pool);
  };
  const double before = bandwidth();
  const std::vector<Timing> rows = time_model(c, o);
  probe = (before + bandwidth()) / 2;
  for (const Timing& t : rows) {
    const double rate = static_cast<double>(t.bytes) * t.mean() / static_cast<double>(t.tokens);
    report["rows"].push_back({{"model", o.run.model},
                              {"file_bytes", c.file_bytes()},
                              {"parameters", c.parameters()},
                              {"activations", o.run.activations},
                              {"test", t.test},
                              {"tokens_per_second", t.mean()},
                              {"deviation", t.deviation()},
                              {"gbs", rate / 1e9},
                              {"read_bandwidth_gbs", probe / 1e9},
                              {"of_bandwidth", rate / probe}});
    if (quiet(o.json)) continue;
    fmt::print("| {} | {} | {:.2f} M | {} | {} | {} | {:.2f} ± {:.2f} | {:.1f} | {:.0f} of {:.1f} |\n", o.run.model,
               bytes_text(c.file_bytes()), static_cast<double>(c.parameters()) / 1e6,
               on_gpu(o.run) ? o.run.device : fmt::format("{}", pool.threads()), o.run.activations, t.test, t.mean(),
               t.deviation(), rate / 1e9, 100 * rate / probe, probe / 1e9);
    std::fflush(stdout);
  }
}

void bench_model(ModelBench o) {
  check_can_write({o.json});
  ThreadPool pool(o.run.threads);
  nlohmann::json report = {{"device", o.run.device}, {"threads", pool.threads()}, {"rows", nlohmann::json::array()}};
  if (!quiet(o.json))
    fmt::print(
        "| model | size | params | {} | activations | test | t/s | GB/s | % of GB/s {} "
        "|\n|---|---|---|---|---|---|---|---|---|\n",
        on_gpu(o.run) ? "device" : "threads", on_gpu(o.run) ? "copied" : "read");
  double probe = 0;
  for (const std::string& model : o.models)
    for (const std::string& mode : o.activations) {
      o.run.model = model;
      o.run.activations = mode;
      bench_one(o, pool, probe, report);
    }
  report["read_bandwidth_gbs"] = probe / 1e9;  // the last one's
  write_json(o.json, report);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<ModelBench>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  CLI::App* verb = bench->add_subcommand("model", "Prompt and decoding speed of a model, llama-bench style");
  verb->footer(
      "Example:\n  fidelio bench model models/quill-26m quill-int4 --pp 128,512 --tg 128 --batch 1,4,8 --activations "
      "a16,a8");
  verb->add_option("MODEL", o->models, "Model folders")->required()->check(model_folder());
  verb->add_option("--pp", o->pp, "Lengths of prompts; 0 = skip")->delimiter(',')->check(zero_or_more());
  verb->add_option("--tg", o->tg, "Numbers of tokens decoded; 0 = skip")->delimiter(',')->check(zero_or_more());
  verb->add_option("--batch", o->batch, "Numbers of sequences decoded at once")
      ->delimiter(',')
      ->check(from_to(1, kMostSideBySide));
  verb->add_option("-r,--repetitions", o->repetitions, "Repetitions")->check(above_zero());
  verb->add_option("--activations", o->activations, "What linears see: a16, a8, f32")->delimiter(',');
  add_device(*verb, o->run);
  verb->add_option("--kv", o->run.kv, "Key and value cache: f32, f16, bf16, i8, i4x2 (default f16)");
  add_json(*verb, o->json);
  verb->callback([o] { bench_model(*o); });
  add_bench_linear(*bench);
  add_bench_sampling(*bench);
  add_bench_speculate(*bench);
  add_bench_tune(*bench);
  add_bench_serve(*bench);
}

}  // namespace fidelio::app
