// These tests check what the engine does with a model that keeps a state for each sequence (step/state.h), by a runner
// whose states are running sums (runtime/fake_runner.h). A state of other rows, an overwritten slot, or a prompt that
// was cut elsewhere changes the logits of every later row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"
#include "engine/crowd_fixture.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

const FakeRunner::Shape kStateful = {.context = 400, .spread = 6, .draft_noise = 1, .state = true};

FakeRunner stateful_runner(int64_t rows, int64_t cache_tokens) {
  RunnerOptions options;
  options.max_rows = rows;
  options.max_logit_rows = std::min<int64_t>(rows, 128);
  options.cache_tokens = cache_tokens;
  return FakeRunner(kStateful, options);
}

// Every third prompt begins like the others of its kind, for two chunks and more.
std::vector<GenerationRequest> chunky_requests(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& r = requests[i];
    if (i % 3 == 0) r.prompt.assign(130 + rng.below(20), static_cast<int32_t>(i % 2));
    for (uint64_t k = 0, n = 1 + rng.below(150); k < n; ++k) r.prompt.push_back(static_cast<int32_t>(rng.below(5)));
    r.max_tokens = 1 + static_cast<int64_t>(rng.below(80));
    r.stop_ids = {22};
    r.logprobs = i % 3 == 0;
    r.prompt_logprobs = i % 7 == 6;
    if (i % 2 == 1) r.sampling = {.temperature = 0.9, .top_p = 0.95, .logit_bias = {}, .seed = i};
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.2;
  }
  return requests;
}

// Returns the answers one at a time, from a runner with room for everything.
std::vector<Generation> computed_alone(const std::vector<GenerationRequest>& requests) {
  std::vector<Generation> results;
  for (const GenerationRequest& r : requests) {
    FakeRunner runner = stateful_runner(512, 512);
    results.push_back(generate(runner, {r}, {.state_slots = 2})[0]);
  }
  return results;
}

// The engine's first token after a prompt is that of the logits computed directly.
TEST(States, OneRequestEqualsTheSumsComputedDirectly) {
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{200}}) {
    GenerationRequest r;
    r.prompt.assign(size, 3);
    r.max_tokens = 70;
    FakeRunner runner = stateful_runner(128, 512);
    const Generation got = generate(runner, {r}, {.state_slots = 1})[0];
    std::vector<int32_t> history = r.prompt;
    for (const int32_t id : got.ids) {
      const std::vector<float> logits = runner.logits_after(history, static_cast<int64_t>(size));
      EXPECT_EQ(id, std::ranges::max_element(logits) - logits.begin()) << history.size();
      history.push_back(id);
    }
  }
}

TEST(States, ChunkedEqualsWholeAndMixedEqualsAlone) {
  const auto requests = chunky_requests(60, 5);
  const auto expected = computed_alone(requests);
  for (const auto& [rows, slots] : {std::pair{int64_t{65}, int64_t{1}}, {100, 7}, {129, 40}, {400, 200}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << slots << " slots");
    FakeRunner runner = stateful_runner(rows, 8192);
    expect_same(generate(runner, requests, {.state_slots = slots}), expected);
  }
}

TEST(States, SpeculationGivesThePlainText) {
  const auto requests = chunky_requests(48, 3);
  const auto expected = computed_alone(requests);
  struct Case {
    int64_t rows, cache, slots, most;
    bool draft, lookup, adapt;
  };
  for (const Case& c : {Case{512, 4096, 64, 1, true, false, false},
                        {512, 4096, 400, 4, true, false, false},
                        {128, 1024, 8, 5, true, true, false},
                        {100, 800, 60, 6, true, false, true},
                        {512, 900, 70, 7, true, true, true},
                        {512, 4096, 1, 8, true, true, false},
                        {512, 4096, 90, 8, false, true, false}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.slots << " slots, " << c.most << " drafts");
    FakeRunner runner = stateful_runner(c.rows, c.cache);
    SpeculationOptions how;
    how.draft = c.draft ? &runner : nullptr;
    how.reading = {Activations::a8, 4};
    how.lookup = c.lookup;
    how.most = c.most;
    how.adapt = c.adapt;
    EngineCounters counters;
    expect_same(generate(runner, requests, {.state_slots = c.slots, .speculation = how, .counters = &counters}),
                expected);
    if (c.slots > 8 && !c.adapt) {  // an adaptive controller may find on a busy machine that drafts do not pay
      EXPECT_GT(counters.accepted + counters.lookup_accepted, 0);
      EXPECT_LT(counters.accepted + counters.lookup_accepted, counters.drafted + counters.looked_up);
    }
  }
}

// The cache has room for about two of the requests, which are preempted again and again.
TEST(States, PreemptedEqualsUninterrupted) {
  auto requests = chunky_requests(40, 4);
  for (GenerationRequest& r : requests) r.max_tokens += 60, r.stop_ids.clear();
  const auto expected = computed_alone(requests);
  for (const bool reuse : {true, false}) {
    FakeRunner runner = stateful_runner(128, 736);
    EngineOptions options;
    options.state_slots = 30;
    options.reuse_prefixes = reuse;
    Engine engine(runner, options);
    std::vector<Generation> got(requests.size());
    for (const GenerationRequest& r : requests)
      engine.add(r, {.on_finish = [&](int64_t i, Generation&& g) { got[static_cast<size_t>(i)] = std::move(g); }});
    while (engine.step()) {
    }
    expect_same(got, expected);
    EXPECT_GT(engine.counters().preemptions, 5);
    EXPECT_EQ(engine.free_pages(), runner.cache_pages());
    EXPECT_EQ(engine.free_states(), runner.state_slots());
  }
}

TEST(States, APrefixIsReusedUpToItsLastSnapshot) {
  FakeRunner runner = stateful_runner(256, 2048);
  EngineOptions options;
  options.state_slots = 10;
  Engine engine(runner, options);
  const auto answer = [&](const GenerationRequest& r) {
    Generation last;
    engine.add(r, {.on_finish = [&](int64_t, Generation&& g) { last = std::move(g); }});
    while (engine.step()) {
    }
    return last;
  };
  const auto reused = [&](std::vector<int32_t> prompt) {
    GenerationRequest r;
    r.prompt = std::move(prompt);
    r.max_tokens = 4;
    const int64_t before = engine.counters().reused_tokens;
    expect_same(std::vector{answer(r)}, computed_alone({r}));
    return engine.counters().reused_tokens - before;
  };
  std::vector<int32_t> prompt(200, 2);
  EXPECT_EQ(reused(prompt), 0);
  EXPECT_EQ(reused(prompt), 192);  // 200 tokens end in the fourth chunk
  prompt.resize(100);
  EXPECT_EQ(reused(prompt), 0);  // a chunk of 192 rows left one snapshot, after its last row
  prompt.resize(300, 3);
  EXPECT_EQ(reused(prompt), 64);  // the first 64 positions of 100 have one now
  EXPECT_EQ(reused(prompt), 256);
  EXPECT_EQ(engine.free_states(), 10);
}

// A model with one slot for each sequence keeps working: snapshots are dropped for sequences, and drafts do without.
TEST(States, SnapshotsGiveWayToSequences) {
  FakeRunner runner = stateful_runner(512, 4096);
  EngineOptions options;
  options.state_slots = 4;
  options.speculation.lookup = true;
  Engine engine(runner, options);
  auto requests = chunky_requests(30, 11);
  const auto expected = computed_alone(requests);
  std::vector<Generation> got(requests.size());
  int64_t most = 0;
  for (const GenerationRequest& r : requests)
    engine.add(r, {.on_finish = [&](int64_t i, Generation&& g) { got[static_cast<size_t>(i)] = std::move(g); }});
  while (engine.step()) most = std::max(most, engine.running());
  expect_same(got, expected);
  EXPECT_EQ(most, 4);
  EXPECT_EQ(engine.free_states(), 4);
}

// Ten thousand requests with shared prefixes, preemptions, drafts and cancellations leave no slot and no page behind.
TEST(States, TenThousandRequestsLeaveNothingBehind) {
  FakeRunner runner = stateful_runner(160, 800);
  EngineOptions options;
  options.state_slots = 24;
  options.speculation.draft = &runner;
  options.speculation.reading = {Activations::a8, 4};
  options.speculation.most = 3;
  options.speculation.lookup = true;
  Engine engine(runner, options);
  auto requests = chunky_requests(150, 9);
  for (GenerationRequest& r : requests) r.max_tokens += 60, r.stop_ids.clear();
  const CrowdCounts counts = run_crowd(engine, requests, computed_alone(requests), 500);
  EXPECT_GT(counts.compared, 1000);
  EXPECT_GT(engine.counters().preemptions, 10);
  EXPECT_GT(engine.counters().reused_tokens, 10000);
  EXPECT_EQ(engine.free_pages(), runner.cache_pages());
  EXPECT_EQ(engine.free_states(), runner.state_slots());
}

TEST(States, ARunnerWithoutRoomForThemIsRefused) {
  const auto message = [](int64_t rows) {
    try {
      FakeRunner runner = stateful_runner(rows, 1024);
      Engine engine(runner, {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(65), "accepted");
  EXPECT_THAT(message(64), testing::HasSubstr("needs 65"));
}

}  // namespace
}  // namespace fidelio
