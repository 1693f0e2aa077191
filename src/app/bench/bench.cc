// This file is the verb `bench model`, which times a model's prompts and steps in the terms of llama-bench.
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
#include "step/own_slot.h"

namespace fidelio::app {
namespace {

struct ModelBench {
  RunOptions run;
  std::vector<std::string> models;
  std::vector<int64_t> pp = {512}, tg = {128}, mixed = {0}, batch = {1}, depth = {0};
  std::vector<std::string> activations = {"a16"};
  int repetitions = 5;
  std::string json;
};

struct Timing {
  std::string test;
  // These count, per repetition, the tokens made, and the bytes of weights and states read and of states written.
  int64_t tokens = 0, bytes = 0;
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

// Returns the bytes of weights that a step of one row reads: everything except rows of the embedding that are not
// looked up and experts that the row does not pass.
int64_t step_bytes(const Checkpoint& c) {
  int64_t bytes = 0, of_experts = 0;
  std::vector<LinearId> linears = linears_of(c.config());
  const std::vector<LinearId> fixed = fixed_linears_of(c.config());
  linears.insert(linears.end(), fixed.begin(), fixed.end());
  for (LinearId id : linears) {
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

// Pairs each of the first with each of the second.
std::vector<std::pair<int64_t, int64_t>> pairs(const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t a : first)
    for (int64_t b : second) all.emplace_back(a, b);
  return all;
}

// These are llama-bench's definitions: pp is one prompt in batches of 512, with the logits of its last token; tg is
// single-token steps of `sequences` sequences; @ d starts from a context of d positions. A mixed step, as on a server,
// feeds a chunk of one prompt beside a token of each of the sequences.
class ModelTimer {
 public:
  ModelTimer(const Checkpoint& c, const ModelBench& o) : bench_(o), options_(runner_options(o.run)) {
    const auto largest = [](const std::vector<int64_t>& all) { return *std::max_element(all.begin(), all.end()); };
    const int64_t most = largest(o.batch), chunk = largest(o.mixed), depth = largest(o.depth);
    const auto pages = [&](int64_t tokens) { return PageTable::pages_for(depth + tokens) * kPageTokens; };
    const auto fits = [&, context = c.config().max_positions](const char* option, int64_t tokens) {
      check(depth <= context, "--depth {} is beyond the model's context of {}", depth, context);
      if (depth == 0)
        check(tokens <= context, "{} {} is longer than the model's context of {}", option, tokens, context);
      else
        check(tokens <= context - depth, "{} {} does not fit behind --depth {} in the model's context of {}", option,
              tokens, depth, context);
    };
    fits("--pp", largest(o.pp)), fits("--tg", largest(o.tg)), fits("--mixed", chunk);
    options_.max_rows = std::max(std::min(largest(o.pp), kPromptRows), most + chunk);
    options_.max_logit_rows = most + 1;
    options_.cache_tokens = std::max(
        pages(largest(o.pp)), most * pages(std::max<int64_t>(largest(o.tg), 1)) + (chunk > 0 ? pages(chunk) : 0));
    runner_ = make_runner(o.run, c, options_);
    runner_->reserve_states(most + 1);
    state_bytes_ = 2 * runner_->program().state.floats() * int64_t{sizeof(float)};
    vocabulary_ = static_cast<uint64_t>(c.config().v);
    prompt_.resize(static_cast<size_t>(std::max(largest(o.pp), chunk)));
    for (int32_t& id : prompt_) id = token();
    step_bytes_ = step_bytes(c);
  }

  Timing prompt(int64_t tokens, int64_t depth) {
    PageTable pages(runner_->cache_pages());
    pages.grow(0, depth + tokens);
    return time_test(name("pp", tokens, 1, depth), tokens, step_bytes_ + state_bytes_, bench_.repetitions, [&] {
      for (int64_t begin = 0, count = 0; begin < tokens; begin += count) {
        count = rows_of_prompt(runner_->program().state, depth + begin, tokens - begin, kPromptRows);
        Batch batch;
        batch.append(of_prompt(begin, count), depth + begin, pages.pages(0), begin + count == tokens ? 1 : 0,
                     RowKind::prompt);
        continue_in_slot(runner_->program().state, batch, 0);
        runner_->step(batch, options_.mode);
      }
    });
  }

  Timing decode(int64_t tokens, int64_t sequences, int64_t depth) {
    PageTable pages(runner_->cache_pages());
    for (int64_t s = 0; s < sequences; ++s) pages.grow(s, depth + tokens);
    const int64_t bytes = step_bytes_ + sequences * state_bytes_;
    return time_test(name("tg", tokens, sequences, depth), tokens * sequences, bytes * tokens, bench_.repetitions, [&] {
      for (int64_t i = 0; i < tokens; ++i) {
        Batch batch;
        append_outputs(batch, pages, sequences, depth + i);
        runner_->step(batch, options_.mode);
      }
    });
  }

  Timing mixed(int64_t chunk, int64_t sequences, int64_t depth) {
    PageTable pages(runner_->cache_pages());
    for (int64_t s = 0; s < sequences; ++s) pages.grow(s, depth + 1);
    pages.grow(sequences, depth + chunk);
    const int64_t bytes = step_bytes_ + (sequences + 1) * state_bytes_;
    return time_test(name("mixed", chunk, sequences, depth), chunk + sequences, bytes, bench_.repetitions, [&] {
      Batch batch;
      append_outputs(batch, pages, sequences, depth);
      batch.append(of_prompt(0, chunk), depth, pages.pages(sequences), 1, RowKind::prompt);
      continue_in_slot(runner_->program().state, batch, static_cast<int32_t>(sequences));
      runner_->step(batch, options_.mode);
    });
  }

 private:
  static constexpr int64_t kPromptRows = 512;

  int32_t token() { return static_cast<int32_t>(rng_.below(vocabulary_)); }
  std::span<const int32_t> of_prompt(int64_t begin, int64_t count) const {
    return std::span(prompt_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }
  void append_outputs(Batch& batch, const PageTable& pages, int64_t sequences, int64_t position) {
    for (int64_t s = 0; s < sequences; ++s) {
      const int32_t id = token();
      batch.append({&id, 1}, position, pages.pages(s), 1, RowKind::output);
      continue_in_slot(runner_->program().state, batch, static_cast<int32_t>(s));
    }
  }
  static std::string name(const char* test, int64_t tokens, int64_t sequences, int64_t depth) {
    return fmt::format("{}{}{}{}", test, tokens, sequences == 1 ? "" : fmt::format(" x{}", sequences),
                       depth == 0 ? "" : fmt::format(" @ d{}", depth));
  }

  const ModelBench& bench_;
  RunnerOptions options_;
  std::unique_ptr<Runner> runner_;
  Rng rng_{1};
  uint64_t vocabulary_;
  std::vector<int32_t> prompt_;
  int64_t step_bytes_, state_bytes_;  // the weights of a step, and a sequence's state, which it reads and writes
};

std::vector<Timing> time_model(const Checkpoint& c, const ModelBench& o) {
  ModelTimer timer(c, o);
  std::vector<Timing> rows;
  for (int64_t depth : o.depth) {
    for (int64_t pp : o.pp)
      if (pp > 0) rows.push_back(timer.prompt(pp, depth));
    for (const auto& [tg, sequences] : pairs(o.tg, o.batch))
      if (tg > 0) rows.push_back(timer.decode(tg, sequences, depth));
    for (const auto& [chunk, sequences] : pairs(o.mixed, o.batch))
      if (chunk > 0) rows.push_back(timer.mixed(chunk, sequences, depth));
  }
  return rows;
}

// Measures one model in one mode: its rows go into the report and, unless that is standard output, into the table.
void bench_one(const ModelBench& o, ThreadPool& pool, double& probe, nlohmann::json& report) {
  const Checkpoint c = Checkpoint::open(o.run.model);
  // This is the bandwidth of the memory that the weights are read from.
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
  report["read_bandwidth_gbs"] = probe / 1e9;  // It is the bandwidth measured last.
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
  verb->add_option("--mixed", o->mixed, "Tokens of a prompt that a step feeds beside one of each sequence; 0 = skip")
      ->delimiter(',')
      ->check(zero_or_more());
  verb->add_option("--depth", o->depth, "Positions that sequences have behind them")
      ->delimiter(',')
      ->check(zero_or_more());
  verb->add_option("--batch", o->batch, "Numbers of sequences decoded at once")
      ->delimiter(',')
      ->check(from_to(1, kMostSideBySide));
  verb->add_option("-r,--repetitions", o->repetitions, "Repetitions")->check(above_zero());
  verb->add_option("--activations", o->activations, "Precision of activations: a16, a8, f32")->delimiter(',');
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
