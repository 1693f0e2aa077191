// These tests check speculation on a GPU. The text, and the reported probabilities, are those of plain decoding bit
// for bit, whatever drafts, however many at once, beside prompts, after preemption and over reused prefixes. Without
// a GPU each test is skipped by name.
#include <gtest/gtest.h>

#include "core/rng.h"
#include "engine/generate.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/test_device.h"
#include "quant/quantize.h"

namespace fidelio {
namespace {

class CudaSpeculation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-26m"));
    RunnerOptions options;
    options.max_rows = options.max_logit_rows = 300;
    options.cache_tokens = 24 * kPageTokens;  // room for some of the 24 requests at once, whose answers outgrow it
    runner_ = make_cuda_runner(*checkpoint_, options);
    fill(*runner_, "int8g64zs8");
  }
  void fill(Runner& runner, const char* format) {
    for (LinearId id : linears_of(checkpoint_->config())) {
      if (id.role == Role::embedding) continue;
      const LinearWeight weight = checkpoint_->linear(id);
      runner.set_linear(
          id, runner.pack(quantize_rtn(parse_format(format), decode(weight), weight.out, weight.in, {}, pool_)));
    }
  }
  std::unique_ptr<Runner> copy(const char* format) {
    auto draft = runner_->make_draft(*checkpoint_);
    EXPECT_TRUE(draft->shares_cache_with(*runner_));
    fill(*draft, format);
    return draft;
  }
  std::vector<int32_t> every_other_token() const {
    std::vector<int32_t> tokens;
    for (int32_t id = 0; id < checkpoint_->config().v; id += 2) tokens.push_back(id);
    return tokens;
  }
  // Returns prompts of 1 to 80 tokens, half of them behind the same 70. Every third request is greedy, the others are
  // sampled. With penalties, drafts are made step by step; without them, fixed numbers of drafts are made without
  // waiting.
  std::vector<GenerationRequest> requests(bool penalties) const {
    Rng rng(5);
    std::vector<int32_t> shared;
    const auto id = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(runner_->config().v))); };
    for (int i = 0; i < 70; ++i) shared.push_back(id());
    std::vector<GenerationRequest> all(24);
    for (size_t i = 0; i < all.size(); ++i) {
      GenerationRequest& r = all[i];
      if (i % 2 == 0) r.prompt = shared;
      for (uint64_t n = 1 + rng.below(80); n > 0; --n) r.prompt.push_back(id());
      r.max_tokens = 20 + static_cast<int64_t>(rng.below(100));
      r.sampling.temperature = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.3 : 1;
      r.sampling.top_p = i % 4 == 0 ? 0.9 : 1;
      if (penalties && i % 5 == 0) r.sampling.repetition_penalty = 1.3;
      r.sampling.seed = i;
      r.logprobs = true;
    }
    return all;
  }
  std::vector<Generation> answers(const SpeculationOptions& how, int64_t at_once, EngineCounters& counters,
                                  bool penalties) {
    GenerationOptions options;
    options.max_sequences = at_once;
    options.speculation = how;
    options.counters = &counters;
    return generate(*runner_, requests(penalties), options);
  }
  void expect_plain(SpeculationOptions how, const std::vector<Generation>& plain, bool penalties) {
    EngineCounters sum;
    for (int64_t at_once : {int64_t{1}, int64_t{5}, int64_t{24}})
      for (int64_t most : {1, 3, 8})
        for (bool adapt : {false, true}) {
          if ((adapt && most != 8) || (penalties && (most != 3 || adapt))) continue;
          SCOPED_TRACE(std::to_string(at_once) + " at once, " + std::to_string(most) + " drafts");
          how.most = most;
          how.adapt = adapt;
          EngineCounters counters;
          const std::vector<Generation> got = answers(how, at_once, counters, penalties);
          ASSERT_EQ(got.size(), plain.size());
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i].error, "");
            ASSERT_EQ(got[i].ids, plain[i].ids) << "request " << i;
            ASSERT_EQ(got[i].logprobs, plain[i].logprobs) << "request " << i;
          }
          sum.drafted += counters.drafted + counters.looked_up;
          sum.accepted += counters.accepted + counters.lookup_accepted;
          sum.preemptions += counters.preemptions;
          sum.reused_tokens += counters.reused_tokens;
        }
    EXPECT_GT(sum.drafted, 0);
    EXPECT_GT(sum.accepted, 0);
    EXPECT_LT(sum.accepted, sum.drafted);
    EXPECT_TRUE(penalties || sum.preemptions > 0);  // in the longer list of runs
    EXPECT_GT(sum.reused_tokens, 0);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Runner> runner_;
  ThreadPool pool_;
};

TEST_F(CudaSpeculation, KeepsTheTextOfPlainDecodingWhateverDrafts) {
  for (bool penalties : {false, true}) {
    SCOPED_TRACE(penalties ? "with penalties" : "without");
    EngineCounters counters;
    const std::vector<Generation> plain = answers({}, 24, counters, penalties),
                                  alone = answers({}, 1, counters, penalties);
    for (size_t i = 0; i < plain.size(); ++i) {
      ASSERT_EQ(plain[i].ids, alone[i].ids) << i;
      ASSERT_EQ(plain[i].logprobs, alone[i].logprobs) << i;
    }
    SpeculationOptions how;
    how.draft = runner_.get();
    how.reading = {Activations::a16, 4};
    EXPECT_LT(runner_->bytes_read(how.reading), runner_->bytes_read({}));
    for (bool lookup : {false, true}) {
      SCOPED_TRACE(lookup ? "a view and lookup" : "a view");
      how.lookup = lookup;
      ASSERT_NO_FATAL_FAILURE(expect_plain(how, plain, penalties));
    }
    how = {};
    for (const char* format : {"int4g64zs8", "lut4g64"}) {
      SCOPED_TRACE(format);
      const std::unique_ptr<Runner> draft = copy(format);
      how.draft = draft.get();
      how.reading.short_head = false;
      ASSERT_NO_FATAL_FAILURE(expect_plain(how, plain, penalties));
      draft->set_short_head(checkpoint_->linear({-1, Role::embedding}), every_other_token());
      how.reading.short_head = true;
      ASSERT_NO_FATAL_FAILURE(expect_plain(how, plain, penalties));
    }
  }
}

TEST_F(CudaSpeculation, AShortHeadHasTheLogitsOfItsTokensAlone) {
  const std::vector<int32_t> tokens = every_other_token();
  runner_->set_short_head(checkpoint_->linear({-1, Role::embedding}), tokens);
  const std::vector<int32_t> ids = {5, 700, 31}, pages = {0};
  Batch batch;
  batch.append(ids, 0, pages, 3, RowKind::output);
  const auto v = static_cast<size_t>(checkpoint_->config().v);
  for (int round = 0; round < 3; ++round) {  // the second step is recorded, and the third replayed
    const std::span<const float> whole = runner_->step(batch, Reading());
    const std::vector<float> expected(whole.begin(), whole.end());
    const std::span<const float> got = runner_->step(batch, Reading(Activations::a16, 0, true));
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(got[i], i % v % 2 == 0 ? expected[i] : -INFINITY) << round << " " << i;
  }
}

// Rejection gives the model's distribution, but not the same text. The test only checks that it runs, accepts about
// as often as the distributions overlap, and reports that.
TEST_F(CudaSpeculation, RejectionAcceptsAsOftenAsDistributionsOverlap) {
  SpeculationOptions how;
  how.draft = runner_.get();
  how.reading = {Activations::a16, 4};
  how.acceptance = Acceptance::rejection;
  how.most = 3;
  how.adapt = false;
  EngineCounters counters;
  GenerationOptions options;
  options.speculation = how;
  options.counters = &counters;
  std::vector<GenerationRequest> sampled = requests(false);
  for (GenerationRequest& r : sampled) r.sampling.temperature = 1;
  for (const Generation& g : generate(*runner_, sampled, options)) EXPECT_EQ(g.error, "");
  ASSERT_GT(counters.judged, 0);
  const double ear = counters.overlap / static_cast<double>(counters.judged),
               rate = static_cast<double>(counters.accepted) / static_cast<double>(counters.judged);
  EXPECT_NEAR(rate, ear, 4 * std::sqrt(0.25 / static_cast<double>(counters.judged)));  // four standard errors, at most
}

}  // namespace
}  // namespace fidelio
