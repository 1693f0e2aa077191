// These tests check, over whole models with gated delta nets on the CPU, that answers do not depend on how states are
// kept: mixed = alone, chunked = whole, preempted = uninterrupted, reused = computed, drafted = plain, bit for bit. And
// that the block which predicts a token more is the one of its files.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "models.h"
#include "quant/quantize_model.h"

namespace fidelio {
namespace {

using Ids = std::vector<int32_t>;

// The logits of the predictor for every position, against tools/make_predictor_goldens.py.
struct Predictors : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tiny, Predictors, testing::Values("qwen3_5_mtp", "qwen3_5_moe_mtp"),
                         [](const auto& info) { return info.param; });

TEST_P(Predictors, GiveTheGoldenLogits) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model(GetParam()));
  const Ids ids = golden_json(GetParam())["ids"];
  const std::vector<float> golden = golden_logits(GetParam());
  const auto v = static_cast<size_t>(checkpoint.config().v);
  for (const std::string& isa : isa_names()) {
    RunnerOptions options = exact_options(isa);
    options.predictor = true;
    const auto model = make_cpu_runner(checkpoint, options);
    const auto predictor = model->make_predictor(checkpoint);
    model->reserve_states(2);
    const std::vector<int32_t> pages = first_pages(std::ssize(ids));
    for (int64_t t = 0; t < std::ssize(ids); ++t) {
      const std::span<const int32_t> token = std::span(ids).subspan(static_cast<size_t>(t), 1);
      for (Runner* runner : {predictor.get(), model.get()}) {
        Batch batch;
        batch.append(token, t, pages, 1, RowKind::output);
        if (t > 0) batch.begin_from(0);
        batch.keep_state(0, runner == predictor.get() ? 1 : 0);
        const std::span<const float> logits = runner->step(batch, Activations::f32);
        if (runner == predictor.get()) {
          EXPECT_LE(relative_distance(logits, std::span(golden).subspan(static_cast<size_t>(t) * v, v)), 1e-5)
              << isa << ", position " << t;
        }
      }
    }
  }
}

// A prompt in chunks leaves the predictor what one row after the other leaves it.
TEST_P(Predictors, FollowPromptsHoweverTheyAreCut) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model(GetParam()));
  const Ids ids = golden_json(GetParam())["ids"];
  const std::vector<int32_t> pages = first_pages(std::ssize(ids));
  std::vector<std::vector<float>> made;
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{90}, {64, 26}, {1, 63, 20, 6}}) {
    RunnerOptions options = exact_options();
    options.predictor = true;
    const auto model = make_cpu_runner(checkpoint, options);
    const auto predictor = model->make_predictor(checkpoint);
    run_chunks(*model, std::span(ids).first(90), chunks, pages, Activations::f32);
    Batch batch;
    batch.append(std::span(ids).subspan(90, 1), 90, pages, 1, RowKind::output);
    batch.begin_from(0);
    const std::span<const float> logits = predictor->step(batch, Activations::f32);
    made.emplace_back(logits.begin(), logits.end());
  }
  EXPECT_EQ(made[1], made[0]);
  EXPECT_EQ(made[2], made[0]);
}

// The models of the tests below, with integers of several widths so that their high bits can be read as drafts.
std::unique_ptr<Runner> make_quantised(const Checkpoint& checkpoint, bool on_gpu, int threads, int64_t cache_tokens,
                                       int64_t rows = 300) {
  const RunnerOptions options{.threads = threads,
                              .isa = {},
                              .max_rows = rows,
                              .max_logit_rows = 128,
                              .cache_tokens = cache_tokens,
                              .predictor = checkpoint.config().predictor};
  auto runner = on_gpu ? make_cuda_runner(checkpoint, options) : make_cpu_runner(checkpoint, options);
  ThreadPool pool(1);
  const std::vector<std::string> formats = {"int8g64zs8", "int5g64", "int4g64z", "bf16"};
  size_t next = 0;
  for (const LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight weight = checkpoint.linear(id);
    LinearWeight q =
        quantize_rtn(parse_format(formats[next++ % formats.size()]), decode(weight), weight.out, weight.in, {}, pool);
    q.bias = weight.bias;
    runner->set_linear(id, runner->pack(q));
  }
  return runner;
}

// Every other prompt begins like the others of its kind, for more than two chunks.
std::vector<GenerationRequest> random_requests(size_t count, int vocabulary, uint64_t seed) {
  Rng rng(seed);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& r = requests[i];
    const auto token = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary))); };
    if (i % 2 == 0) r.prompt.assign(130, static_cast<int32_t>(i % 4));
    for (uint64_t k = 0, n = 1 + rng.below(60); k < n; ++k) r.prompt.push_back(token());
    r.max_tokens = 5 + static_cast<int64_t>(rng.below(40));
    r.logprobs = true;
    r.prompt_logprobs = i % 9 == 8;
    if (i % 3 == 1) r.sampling = {.temperature = 0.9, .top_p = 0.95, .logit_bias = {}, .seed = i};
  }
  return requests;
}

struct Stateful : testing::TestWithParam<std::string> {
  explicit Stateful(bool gpu = false) : on_gpu(gpu), checkpoint(Checkpoint::open(tiny_model(GetParam()))) {}
  std::vector<Generation> alone(const std::vector<GenerationRequest>& requests) const {
    const auto runner = make_quantised(checkpoint, on_gpu, 1, 512);
    std::vector<Generation> results;
    for (const GenerationRequest& r : requests) results.push_back(generate(*runner, {r}, {.state_slots = 2})[0]);
    return results;
  }
  static void expect_same(const std::vector<Generation>& got, const std::vector<Generation>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(got[i].ids, expected[i].ids) << "request " << i;
      ASSERT_EQ(got[i].logprobs, expected[i].logprobs) << "request " << i;  // bit for bit
    }
  }
  void mixed_equals_alone() const;
  void preempted_equals_uninterrupted() const;
  void drafted_equals_plain() const;
  const bool on_gpu;
  const Checkpoint checkpoint;
};
const auto kStateful =
    testing::Values("qwen3_5", "qwen3_5_linear", "qwen3_5_moe", "qwen3_next", "qwen3_5_mtp", "qwen3_5_moe_mtp");
INSTANTIATE_TEST_SUITE_P(Delta, Stateful, kStateful, [](const auto& info) { return info.param; });

void Stateful::mixed_equals_alone() const {
  const auto requests = random_requests(24, checkpoint.config().v, 1);
  const auto expected = alone(requests);
  for (const auto& [rows, slots] : {std::pair{int64_t{300}, int64_t{30}}, {100, 6}}) {
    const auto runner = make_quantised(checkpoint, on_gpu, 2, 4096, rows);
    expect_same(generate(*runner, requests, {.state_slots = slots}), expected);
  }
}

void Stateful::preempted_equals_uninterrupted() const {
  auto requests = random_requests(16, checkpoint.config().v, 2);
  for (GenerationRequest& r : requests) r.max_tokens += 30;
  const auto expected = alone(requests);
  const auto runner = make_quantised(checkpoint, on_gpu, 2, 640);
  EngineOptions options;
  options.state_slots = 16;
  Engine engine(*runner, options);
  std::vector<Generation> got(requests.size());
  for (const GenerationRequest& r : requests)
    engine.add(r, {.on_finish = [&](int64_t i, Generation&& g) { got[static_cast<size_t>(i)] = std::move(g); }});
  while (engine.step()) {
  }
  expect_same(got, expected);
  EXPECT_GT(engine.counters().preemptions, 0);
  EXPECT_GT(engine.counters().reused_tokens, 0);
  EXPECT_EQ(engine.free_states(), 16);
}

void Stateful::drafted_equals_plain() const {
  const auto requests = random_requests(16, checkpoint.config().v, 3);
  const auto expected = alone(requests);
  for (const std::string kind : {"view", "predictor", "lookup"}) {
    if (kind == "predictor" && !checkpoint.config().predictor) continue;
    for (const bool adapt : {false, true}) {
      SCOPED_TRACE(kind);
      const auto runner = make_quantised(checkpoint, on_gpu, 2, 4096);
      const auto predictor = kind == "predictor" ? runner->make_predictor(checkpoint) : nullptr;
      SpeculationOptions how;
      how.draft = kind == "view" ? runner.get() : predictor.get();
      if (kind == "view") how.reading = {Activations::a8, 4};
      how.lookup = kind == "lookup";
      how.most = 3;
      how.adapt = adapt;
      EngineCounters counters;
      expect_same(generate(*runner, requests, {.state_slots = 100, .speculation = how, .counters = &counters}),
                  expected);
      if (!adapt && kind != "lookup") {  // random text seldom repeats itself
        EXPECT_GT(counters.drafted, 0);
      }
    }
  }
}

TEST_P(Stateful, MixedChunkedAndReusedEqualAlone) { mixed_equals_alone(); }
TEST_P(Stateful, PreemptedEqualsUninterrupted) { preempted_equals_uninterrupted(); }
TEST_P(Stateful, DraftsOfAnyKindGiveThePlainText) { drafted_equals_plain(); }

// The same on a GPU, whose steps are recorded.
struct StatefulOnGpu : Stateful {
  StatefulOnGpu() : Stateful(true) {}
  void SetUp() override {
    try {
      cuda_memory(0);
    } catch (const Error& e) {
      GTEST_SKIP() << "no GPU: " << e.what();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Delta, StatefulOnGpu, kStateful, [](const auto& info) { return info.param; });
TEST_P(StatefulOnGpu, MixedChunkedAndReusedEqualAlone) { mixed_equals_alone(); }
TEST_P(StatefulOnGpu, PreemptedEqualsUninterrupted) { preempted_equals_uninterrupted(); }
TEST_P(StatefulOnGpu, DraftsOfAnyKindGiveThePlainText) { drafted_equals_plain(); }

}  // namespace
}  // namespace fidelio
