#include <chrono>
#include <cmath>

#include "app/bench_linear.h"
#include "app/bench_sampling.h"
#include "app/common.h"
#include "app/probe.h"
#include "core/rng.h"
#include "runtime/page_table.h"

namespace fidelio::app {
namespace {

struct ModelBench {
  RunOptions run;
  int64_t pp = 512, tg = 128;
  std::vector<int64_t> batch = {1};
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

// Bytes of weights one step reads: everything but the embedding's rows that are not looked up.
int64_t step_bytes(const Checkpoint& c) {
  int64_t bytes = 0;
  for (LinearId id : linears_of(c.config())) {
    if (id.role == Role::embedding && !c.config().tie_embeddings) continue;
    const Shape s = shape_of(c.config(), id);
    bytes += stored_bytes(c.format(id), s[0], s[1]);
  }
  return bytes;
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

// llama-bench's definitions: pp = one prompt in batches of max_rows, logits of its last token; tg = single-token steps
// of `sequences` sequences from an empty context.
std::vector<Timing> time_model(const Checkpoint& c, const ModelBench& o) {
  RunnerOptions options = runner_options(o.run);
  const int64_t most = *std::max_element(o.batch.begin(), o.batch.end());
  options.max_rows = std::max<int64_t>({std::min<int64_t>(o.pp, 512), most, 1});
  options.max_logit_rows = most;
  options.cache_tokens = std::max(o.pp, most * PageTable::pages_for(o.tg) * kPageTokens);
  check(
      options.cache_tokens / std::max<int64_t>(most, 1) <= c.config().max_positions || o.pp <= c.config().max_positions,
      "--pp {} is longer than the model's context of {}", o.pp, c.config().max_positions);
  const auto runner = make_runner(o.run, c, options);
  Rng rng(1);
  const auto token = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(c.config().v))); };
  const int64_t bytes = step_bytes(c);

  std::vector<Timing> rows;
  if (o.pp > 0) {
    std::vector<int32_t> prompt(static_cast<size_t>(o.pp));
    for (int32_t& id : prompt) id = token();
    PageTable pages(runner->cache_pages());
    pages.grow(0, o.pp);
    rows.push_back(time_test(fmt::format("pp{}", o.pp), o.pp, bytes, o.repetitions, [&] {
      for (int64_t begin = 0; begin < o.pp; begin += options.max_rows) {
        const int64_t count = std::min(options.max_rows, o.pp - begin);
        Batch batch;
        batch.append(std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin,
                     pages.pages(0), begin + count == o.pp ? 1 : 0, RowKind::prompt);
        runner->step(batch, options.mode);
      }
    }));
  }
  for (int64_t sequences : o.batch) {
    if (o.tg == 0) break;
    PageTable pages(runner->cache_pages());
    for (int64_t s = 0; s < sequences; ++s) pages.grow(s, o.tg);
    const std::string test = sequences == 1 ? fmt::format("tg{}", o.tg) : fmt::format("tg{} x{}", o.tg, sequences);
    rows.push_back(time_test(test, o.tg * sequences, bytes * o.tg, o.repetitions, [&] {
      for (int64_t position = 0; position < o.tg; ++position) {
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

void bench_model(const ModelBench& o) {
  const Checkpoint c = Checkpoint::open(o.run.model);
  ThreadPool pool(o.run.threads);
  // Of the memory that the weights are read from.
  const auto bandwidth = [&] {
    return on_gpu(o.run) ? cuda_copy_bandwidth(runner_options(o.run).gpu) : read_bandwidth(pool);
  };
  const double before = bandwidth();
  const std::vector<Timing> rows = time_model(c, o);
  const double probe = (before + bandwidth()) / 2;

  nlohmann::json report = {{"model", o.run.model},
                           {"file_bytes", c.file_bytes()},
                           {"parameters", c.parameters()},
                           {"device", o.run.device},
                           {"threads", pool.threads()},
                           {"activations", o.run.activations},
                           {"read_bandwidth_gbs", probe / 1e9},
                           {"rows", nlohmann::json::array()}};
  if (!quiet(o.json))
    fmt::print(
        "| model | size | params | {} | activations | test | t/s | GB/s | % of {:.1f} GB/s {} "
        "|\n|---|---|---|---|---|---|---|---|---|\n",
        on_gpu(o.run) ? "device" : "threads", probe / 1e9, on_gpu(o.run) ? "copied" : "read");
  for (const Timing& t : rows) {
    const double rate = static_cast<double>(t.bytes) * t.mean() / static_cast<double>(t.tokens);
    report["rows"].push_back({{"test", t.test},
                              {"tokens_per_second", t.mean()},
                              {"deviation", t.deviation()},
                              {"gbs", rate / 1e9},
                              {"of_bandwidth", rate / probe}});
    if (!quiet(o.json))
      fmt::print("| {} | {} | {:.2f} M | {} | {} | {} | {:.2f} ± {:.2f} | {:.1f} | {:.0f} |\n", o.run.model,
                 bytes_text(c.file_bytes()), static_cast<double>(c.parameters()) / 1e6,
                 on_gpu(o.run) ? o.run.device : fmt::format("{}", pool.threads()), o.run.activations, t.test, t.mean(),
                 t.deviation(), rate / 1e9, 100 * rate / probe);
  }
  write_json(o.json, report);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<ModelBench>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  CLI::App* verb = bench->add_subcommand("model", "Prompt and decoding speed of a model, llama-bench style");
  verb->footer("Example:\n  fidelio bench model models/quill-26m --pp 512 --tg 128 --batch 1,4,8");
  add_model(*verb, o->run);
  verb->add_option("--pp", o->pp, "Prompt length; 0 = skip")->check(zero_or_more());
  verb->add_option("--tg", o->tg, "Tokens decoded; 0 = skip")->check(zero_or_more());
  verb->add_option("--batch", o->batch, "Numbers of sequences decoded at once")->delimiter(',')->check(above_zero());
  verb->add_option("-r,--repetitions", o->repetitions, "Repetitions")->check(above_zero());
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { bench_model(*o); });
  add_bench_linear(*bench);
  add_bench_sampling(*bench);
}

}  // namespace fidelio::app
