// These tests check the engine's laws with a runner that does no real arithmetic but shows every mistake in the
// bookkeeping. A wrong page, a missing row, or a slot that a draft wrote and nothing wrote again changes its logits.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"
#include "engine/crowd_fixture.h"
#include "engine/generate.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

FakeRunner make_runner(int64_t rows, int64_t logit_rows, int64_t cache_tokens, FakeRunner::Shape shape = {}) {
  RunnerOptions options;
  options.max_rows = rows;
  options.max_logit_rows = logit_rows;
  options.cache_tokens = cache_tokens;
  return FakeRunner(shape, options);
}

std::vector<GenerationRequest> random_requests(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& r = requests[i];
    for (uint64_t k = 0, n = 1 + rng.below(90); k < n; ++k) r.prompt.push_back(static_cast<int32_t>(rng.below(5)));
    r.max_tokens = 1 + static_cast<int64_t>(rng.below(60));
    r.stop_ids = {22};
    r.logprobs = i % 3 == 0;
    if (i % 2 == 1) r.sampling = {.temperature = 0.9, .top_p = 0.95, .logit_bias = {}, .seed = i};
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.2;
    if (i % 5 == 4) r.sampling.frequency_penalty = 0.3, r.sampling.logit_bias = {{3, 0.5f}};
  }
  return requests;
}

// Returns the answers one at a time, from a runner with room for everything.
std::vector<Generation> alone(const std::vector<GenerationRequest>& requests, FakeRunner::Shape shape) {
  std::vector<Generation> results;
  for (const GenerationRequest& r : requests) {
    FakeRunner runner = make_runner(512, 128, 256, shape);
    results.push_back(generate(runner, {r})[0]);
  }
  return results;
}

const FakeRunner::Shape kShape = {.context = 160, .spread = 6, .draft_noise = 1};

TEST(Engine, SpeculationGivesThePlainTextForEveryWayOfDraftingAndBatching) {
  const auto requests = random_requests(48, 3);
  const auto expected = alone(requests, kShape);
  struct Case {
    int64_t rows, logit_rows, cache, most;
    bool draft, lookup, adapt;
  };
  for (const Case& c : {Case{512, 128, 4096, 1, true, false, false},
                        {512, 128, 4096, 2, true, false, false},
                        {512, 128, 4096, 3, true, false, false},
                        {64, 64, 512, 4, true, false, false},
                        {512, 32, 4096, 5, true, true, false},
                        {40, 40, 320, 6, true, false, true},
                        {512, 128, 224, 7, true, true, true},
                        {512, 128, 4096, 8, true, false, false},
                        {512, 128, 4096, 8, false, true, false},
                        {9, 9, 192, 8, true, true, false},
                        {1, 1, 160, 8, true, true, false}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.cache << " tokens, " << c.most << " drafts");
    FakeRunner runner = make_runner(c.rows, c.logit_rows, c.cache, kShape);
    SpeculationOptions how;
    how.draft = c.draft ? &runner : nullptr;
    how.reading = {Activations::a8, 4};
    how.lookup = c.lookup;
    how.most = c.most;
    how.adapt = c.adapt;
    EngineCounters counters;
    expect_same(generate(runner, requests, {.speculation = how, .counters = &counters}), expected);
    if (c.draft && c.rows > 16) {
      EXPECT_GT(counters.accepted + counters.lookup_accepted, 0);
      EXPECT_LT(counters.accepted + counters.lookup_accepted, counters.drafted + counters.looked_up);
    }
  }
}

// Without penalties, a fixed number of drafts is made and verified before any of them is known.
TEST(Engine, DraftsThatNobodyWaitsForGiveThePlainText) {
  auto requests = random_requests(48, 5);
  for (GenerationRequest& r : requests) r.sampling.repetition_penalty = 1, r.sampling.frequency_penalty = 0;
  const auto expected = alone(requests, kShape);
  for (const auto& [rows, cache] : {std::pair{int64_t{512}, int64_t{4096}}, {64, 512}, {40, 224}})
    for (int64_t most : {1, 3, 8})
      for (bool lookup : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << most << " drafts");
        FakeRunner runner = make_runner(rows, std::min<int64_t>(rows, 128), cache, kShape);
        SpeculationOptions how;
        how.draft = &runner;
        how.reading = {Activations::a8, 4};
        how.lookup = lookup;
        how.most = most;
        how.adapt = false;
        EngineCounters counters;
        expect_same(generate(runner, requests, {.speculation = how, .counters = &counters}), expected);
        EXPECT_GT(counters.accepted, 0);
        EXPECT_LT(counters.accepted, counters.drafted);
      }
}

// The cache has room for two of the requests. The youngest are preempted again and again, and replayed.
TEST(Engine, PreemptedEqualsUninterrupted) {
  for (const bool kinds_agree : {true, false})
    for (const bool reuse : {true, false}) {
      FakeRunner::Shape shape = kShape;
      shape.kinds_agree = kinds_agree;
      auto requests = random_requests(40, 4);
      for (GenerationRequest& r : requests) {
        r.max_tokens += 30;
        r.stop_ids.clear();
      }
      const auto expected = alone(requests, shape);
      FakeRunner runner = make_runner(64, 64, 320, shape);
      EngineOptions options;
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
    }
}

// Prompts are cut wherever output rows before them happen to leave room.
TEST(Engine, ChunkedEqualsWholeAndMixedEqualsAlone) {
  FakeRunner::Shape shape = kShape;
  shape.kinds_agree = false;  // a row of the wrong kind would show
  const auto requests = random_requests(60, 5);
  const auto expected = alone(requests, shape);
  for (const int64_t rows : {3, 17, 33, 100}) {
    FakeRunner runner = make_runner(rows, rows, 8192, shape);
    expect_same(generate(runner, requests), expected);
  }
}

TEST(Engine, ReusedPrefixesEqualComputedOnes) {
  for (const bool kinds_agree : {true, false}) {
    FakeRunner::Shape shape = kShape;
    shape.kinds_agree = kinds_agree;
    FakeRunner runner = make_runner(256, 64, 640, shape);
    Engine engine(runner, {});
    Generation last;
    const auto answer = [&](const GenerationRequest& r) {
      engine.add(r, {.on_finish = [&](int64_t, Generation&& g) { last = std::move(g); }});
      while (engine.step()) {
      }
      return last;
    };
    // A conversation grows: each prompt is the one before, its answer, and something new.
    GenerationRequest r;
    r.prompt.assign(70, 2);
    for (int turn = 0; turn < 3; ++turn) {
      r.max_tokens = 15;
      const int64_t before = engine.counters().reused_tokens;
      const auto expected = alone({r}, shape);
      expect_same(std::vector{answer(r)}, expected);
      const int64_t reused = engine.counters().reused_tokens - before;
      if (turn == 0) {
        EXPECT_EQ(reused, 0);
      }
      if (turn > 0) {
        EXPECT_GE(reused, 64);
      }
      // The answer's own rows are reused if both kinds of rows leave the same bits.
      if (turn == 2) {
        EXPECT_EQ(reused, kinds_agree ? 96 : 64);
      }
      r.prompt.insert(r.prompt.end(), last.ids.begin(), last.ids.end());
      for (int i = 0; i < 5; ++i) r.prompt.push_back(turn);
    }
    EXPECT_EQ(engine.free_pages(), runner.cache_pages());
  }
}

// Requests are cancelled before they run, while their prompts are read, while they are drafted for, and from
// callbacks of their own and of others.
TEST(Engine, CancelledAtAnyTimeNothingIsLostAndOthersDoNotNotice) {
  FakeRunner runner = make_runner(48, 48, 480, kShape);
  EngineOptions options;
  options.speculation.draft = &runner;
  options.speculation.reading = {Activations::a8, 4};
  options.speculation.most = 3;
  options.speculation.lookup = true;
  Engine engine(runner, options);
  const auto requests = random_requests(300, 9);
  const CrowdCounts counts = run_crowd(engine, requests, alone(requests, kShape), 200);
  EXPECT_FALSE(engine.cancel(0));
  EXPECT_GT(counts.cancelled, 500);
  EXPECT_GT(counts.compared, 2000);
  EXPECT_EQ(engine.free_pages(), runner.cache_pages());
}

TEST(Engine, RefusesDraftsThatCannotBe) {
  FakeRunner runner = make_runner(64, 64, 256), other = make_runner(64, 64, 256);
  FakeRunner larger = make_runner(64, 64, 256, {.vocabulary = 24});
  const auto message = [&](Runner* draft, Reading reading, int64_t most = 3) {
    EngineOptions options;
    options.speculation.draft = draft;
    options.speculation.reading = reading;
    options.speculation.most = most;
    try {
      Engine engine(runner, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(&runner, {Activations::a16, 4}), "accepted");
  EXPECT_THAT(message(&runner, {Activations::a16, 12}), testing::HasSubstr("12 high bits"));
  EXPECT_THAT(message(&other, Activations::a8), testing::HasSubstr("cache"));
  EXPECT_THAT(message(&larger, Activations::a8), testing::HasSubstr("24"));
  EXPECT_THAT(message(&runner, {Activations::a16, 4}, 0), testing::HasSubstr("0 drafted"));
  EXPECT_THAT(message(&runner, {Activations::a16, 4}, 65), testing::HasSubstr("65 drafted"));
}

// A request whose logits are damaged reports an error to its owner; the others go on.
TEST(Engine, ARowWithoutABestEndsItsRequestAlone) {
  const auto requests = random_requests(3, 6);
  const auto expected = alone(requests, kShape);
  FakeRunner runner = make_runner(64, 64, 512, kShape);
  Engine engine(runner, {});
  std::vector<Generation> got(3);
  for (size_t i = 0; i < 3; ++i) {
    GenerationRequest r = requests[i];
    if (i == 1) r.sampling.logit_bias[4] = INFINITY;
    engine.add(r, {.on_finish = [&](int64_t n, Generation&& g) { got[static_cast<size_t>(n)] = std::move(g); }});
  }
  while (engine.step()) {
  }
  EXPECT_THAT(got[1].error, testing::HasSubstr("not finite"));
  EXPECT_EQ(got[0].ids, expected[0].ids);
  EXPECT_EQ(got[2].ids, expected[2].ids);
}

}  // namespace
}  // namespace fidelio
