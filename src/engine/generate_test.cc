#include "engine/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

using testing::AllOf;
using testing::HasSubstr;

FakeRunner generating_runner(int64_t max_rows, int64_t max_logit_rows, int64_t cache_tokens = 0,
                             FakeRunner::Shape shape = {}) {
  RunnerOptions options;
  options.max_rows = max_rows;
  options.max_logit_rows = max_logit_rows;
  options.cache_tokens = cache_tokens;
  return FakeRunner(shape, options);
}

std::vector<GenerationRequest> mixed_requests(int count) {
  Rng rng(5);
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest r;
    for (uint64_t k = 0, n = 1 + rng.below(60); k < n; ++k) r.prompt.push_back(static_cast<int32_t>(rng.below(23)));
    r.max_tokens = 1 + static_cast<int64_t>(rng.below(50));
    r.stop_ids = {7};
    if (i % 2 == 1) r.sampling = {.temperature = 1.5, .top_p = 0.9, .logit_bias = {}, .seed = static_cast<uint64_t>(i)};
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.3;
    requests.push_back(r);
  }
  return requests;
}

// Generates one token at a time by the definition of the model, without batches or a cache.
Generation by_definition(const GenerationRequest& r, int64_t context) {
  FakeRunner model = generating_runner(1, 1);
  cpu::Chooser chooser;
  std::vector<LogitChange> changes;
  Generation g;
  std::vector<int32_t> history = r.prompt;
  for (;;) {
    const auto logits = model.logits_after(history);
    const ChoiceRule rule =
        choice_rule(r.sampling, history, static_cast<int64_t>(r.prompt.size()), static_cast<int64_t>(history.size()),
                    static_cast<int64_t>(logits.size()), changes);
    const int32_t id = chooser.choose(logits, rule).id;
    history.push_back(id);
    g.ids.push_back(id);
    if (std::count(r.stop_ids.begin(), r.stop_ids.end(), id) > 0) return g.finish_reason = FinishReason::stop, g;
    if (static_cast<int64_t>(g.ids.size()) == r.max_tokens) return g.finish_reason = FinishReason::length, g;
    if (static_cast<int64_t>(history.size()) == context) return g.finish_reason = FinishReason::context, g;
  }
}

TEST(Generate, EveryRequestAsIfItWereAloneForEveryWayOfBatching) {
  const auto requests = mixed_requests(40);
  struct Case {
    int64_t rows, logit_rows, cache, sequences;
  };
  for (const Case& c : {Case{512, 128, 1024, 0},
                        {1, 1, 64, 0},
                        {7, 3, 256, 0},
                        {64, 64, 128, 0},
                        {512, 128, 1024, 5},
                        {16, 128, 4096, 0}}) {
    FakeRunner runner = generating_runner(c.rows, c.logit_rows, c.cache);
    const auto results = generate(runner, requests, {.max_sequences = c.sequences});
    ASSERT_EQ(results.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation expected = by_definition(requests[i], 64);
      EXPECT_EQ(results[i].ids, expected.ids) << i;
      EXPECT_EQ(results[i].finish_reason, expected.finish_reason) << i;
    }
  }
}

TEST(Generate, EveryReasonToEndOccurs) {
  FakeRunner runner = generating_runner(64, 64, 512);
  int reasons[3] = {};
  for (const Generation& g : generate(runner, mixed_requests(40))) ++reasons[static_cast<int>(g.finish_reason)];
  for (int count : reasons) EXPECT_GT(count, 0);
  EXPECT_EQ(name_of(FinishReason::context), "context");
  EXPECT_EQ(name_of(FinishReason::length), "length");
  EXPECT_EQ(name_of(FinishReason::stop), "stop");
}

TEST(Generate, DecodesTogetherAndRefills) {
  std::vector<GenerationRequest> requests(12);
  for (auto& r : requests) {
    r.prompt = {1, 2, 3};
    r.max_tokens = 10;
  }
  FakeRunner runner = generating_runner(64, 4, 512);
  generate(runner, requests);
  // Four requests run at a time. There are three rounds of one step with 12 prompt rows and nine steps with 4 rows.
  EXPECT_EQ(runner.steps.size(), 30u);
  EXPECT_EQ(std::accumulate(runner.steps.begin(), runner.steps.end(), int64_t{0}), 3 * (12 + 9 * 4));
}

TEST(Generate, CallbacksSeeTokensAndEnds) {
  const auto requests = mixed_requests(9);
  FakeRunner runner = generating_runner(32, 32, 256);
  std::vector<std::vector<int32_t>> seen(requests.size());
  std::vector<int64_t> ended;
  const auto results = generate(runner, requests,
                                {.on_token = [&](int64_t r, int32_t id) { seen[static_cast<size_t>(r)].push_back(id); },
                                 .on_finish =
                                     [&](int64_t r, const Generation& g) {
                                       ended.push_back(r);
                                       EXPECT_EQ(g.ids, seen[static_cast<size_t>(r)]);
                                     }});
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].ids, seen[i]);
  std::sort(ended.begin(), ended.end());
  std::vector<int64_t> all(requests.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(ended, all);
}

TEST(Generate, LogprobsAreThoseOfTheModel) {
  GenerationRequest request = mixed_requests(4)[3];
  request.logprobs = true;
  FakeRunner runner = generating_runner(32, 32);
  const Generation g = generate(runner, {request})[0];
  ASSERT_EQ(g.logprobs.size(), g.ids.size());
  std::vector<int32_t> history = request.prompt;
  for (size_t i = 0; i < g.ids.size(); ++i) {
    const auto logits = runner.logits_after(history);
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x));
    EXPECT_FLOAT_EQ(g.logprobs[i], static_cast<float>(logits[static_cast<size_t>(g.ids[i])] - std::log(sum)));
    history.push_back(g.ids[i]);
  }
}

TEST(Generate, RefusesImpossibleRequests) {
  FakeRunner runner = generating_runner(64, 64, 64, {.context = 1000});
  const auto message = [&](GenerationRequest r) {
    try {
      Engine(runner, {}).add(std::move(r));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  GenerationRequest r;
  EXPECT_THAT(message(r), HasSubstr("empty"));
  r.prompt.assign(64, 1);
  EXPECT_THAT(message(r),
              AllOf(HasSubstr("64 tokens"), HasSubstr("holds 64")));  // the cache holds less than the context
  r.prompt.assign(63, 1);
  EXPECT_EQ(message(r), "accepted");
  r.prompt = {1, 23};
  EXPECT_THAT(message(r), HasSubstr("23"));
  r.prompt = {1};
  r.max_tokens = 0;
  EXPECT_THAT(message(r), HasSubstr("max_tokens"));
  r.max_tokens = 1;
  r.sampling.top_p = 0;
  EXPECT_THAT(message(r), HasSubstr("top_p"));
  r.sampling = {};
  r.stop_strings = {"x"};
  EXPECT_THAT(message(r), HasSubstr("tokenizer"));
}

TEST(Generate, TextAndStopStrings) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  FakeRunner runner = generating_runner(32, 32, 0, {.vocabulary = tokenizer.vocab_size(), .context = 64});
  GenerationRequest request;
  request.prompt = {10, 20, 30};
  request.max_tokens = 30;
  request.sampling = {.temperature = 2, .logit_bias = {}, .seed = 4};
  const Generation whole = generate(runner, {request}, {.tokenizer = &tokenizer})[0];
  EXPECT_EQ(whole.text, tokenizer.decode(whole.ids));
  ASSERT_GT(whole.text.size(), 40u);

  // The stop string is taken from the middle of the text, and does not end where tokens do.
  size_t begin = whole.text.size() / 2;
  while ((static_cast<unsigned char>(whole.text[begin]) & 0xC0) == 0x80) ++begin;
  request.stop_strings = {"never to be seen", whole.text.substr(begin, 7)};
  const Generation cut = generate(runner, {request}, {.tokenizer = &tokenizer})[0];
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(request.stop_strings[1])));
  EXPECT_EQ(cut.finish_reason, FinishReason::stop);
  EXPECT_LT(cut.ids.size(), whole.ids.size());
}

}  // namespace
}  // namespace fidelio
