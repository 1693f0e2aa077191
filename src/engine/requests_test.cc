// These tests ask random requests with random ends of a real model: prompts that share beginnings, every option of
// sampling, every way of drafting, a cache too small for those who run, owners who cancel at any moment, and
// impossible requests. Every request must be answered exactly once, no page may be lost, and a request that is not
// cancelled must be answered as if it were alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "io/checkpoint.h"

namespace fidelio {
namespace {

// This constraint forbids every third id, others after each token. An answer is complete after every fourth token,
// and over after the twentieth.
class EveryThirdForbidden final : public Constraint {
 public:
  explicit EveryThirdForbidden(int32_t vocabulary) : vocabulary_(vocabulary) {}
  State start() override { return 0; }
  std::span<const uint64_t> allowed(State state) override {
    words_.assign(static_cast<size_t>(vocabulary_ + 63) / 64, 0);
    for (int32_t id = 0; id < vocabulary_; ++id)
      if (id % 3 != state % 3) words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    return words_;
  }
  State next(State state, int32_t id) override { return state < 0 || id % 3 == state % 3 ? kForbidden : state + 1; }
  bool may_end(State state) override { return state % 4 == 0; }
  bool must_end(State state) override { return state >= 20; }

 private:
  int32_t vocabulary_;
  std::vector<uint64_t> words_;
};

// Rounds the model's linears to 5 bits in groups of 32. Their high 4 bits serve as the draft.
void round_linears(Runner& runner, const Checkpoint& checkpoint) {
  for (const LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight dense = checkpoint.linear(id);
    LinearWeight w = allocate_weight(parse_format("int5g32"), dense.out, dense.in);
    auto& m = std::get<IntGroup>(w.main);
    std::vector<float> row(static_cast<size_t>(dense.in));
    for (int64_t o = 0; o < dense.out; ++o) {
      decode_row(dense, o, row);
      for (int64_t c = 0; c < dense.in; ++c) {
        const auto group = std::span(row)
                               .subspan(static_cast<size_t>(c / 32 * 32))
                               .first(static_cast<size_t>(std::min<int64_t>(32, dense.in - c / 32 * 32)));
        float range = 1e-6f;
        for (const float x : group) range = std::max(range, std::abs(x));
        f16& scale = m.scale.as<f16>()[static_cast<size_t>(o * w.spec.groups(dense.in) + c / 32)];
        scale = to_f16(range / 15);
        const float code = std::round(row[static_cast<size_t>(c)] / to_float(scale)) + 16;
        m.codes.set(o, c, static_cast<uint8_t>(std::clamp(code, 0.0f, 31.0f)));
      }
    }
    w.bias = dense.bias;
    runner.set_linear(id, runner.pack(w));
  }
}

enum class Drafts : uint8_t { none, view, copy };
struct Way {
  std::string name;
  Drafts drafts = Drafts::none;
  bool lookup = false, adapt = true;
  int64_t most = 4;
  Acceptance acceptance = Acceptance::coupled;
  bool reuse = true;
  bool unseen = false;  // requests whose drafts can be verified before anyone has seen them
  bool short_head = false;
  int64_t at_once = 0;
};

// World is what all engines of the test share: one set of weights, its copy, and a runner with room for everything.
struct World {
  explicit World(const std::string& folder, int64_t pages)
      : checkpoint(Checkpoint::open(folder)),
        tokenizer(Tokenizer::load(Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m").texts())),
        vocabulary(checkpoint.config().v),
        context(checkpoint.config().max_positions) {
    roomy = make_cpu_runner(checkpoint, {.threads = 1, .isa = {}});
    round_linears(*roomy, checkpoint);
    RunnerOptions options;
    options.threads = 2;
    options.max_rows = 64;
    options.max_logit_rows = 64;
    options.cache_tokens = pages * kPageTokens;
    small = roomy->make_sibling(checkpoint, options);
    copy = small->make_draft(checkpoint);
    std::vector<int32_t> tokens;
    for (int32_t id = 1; id < vocabulary; id += 3) tokens.push_back(id);
    const LinearWeight head = checkpoint.linear(head_of(checkpoint.config()));
    for (Runner* runner : {small.get(), copy.get()}) runner->set_short_head(head, tokens);
  }
  Checkpoint checkpoint;
  Tokenizer tokenizer;
  int32_t vocabulary;
  int64_t context;
  std::unique_ptr<Runner> roomy, small, copy;
};

EngineOptions options_of(const World& world, const Way& way) {
  EngineOptions options;
  options.reading = Activations::a16;
  options.tokenizer = &world.tokenizer;
  options.reuse_prefixes = way.reuse;
  options.max_sequences = way.at_once;
  SpeculationOptions& how = options.speculation;
  if (way.drafts == Drafts::view) how.draft = world.small.get(), how.reading = {Activations::a8, 4};
  if (way.drafts == Drafts::copy) how.draft = world.copy.get(), how.reading = Activations::a8;
  how.reading.short_head = way.short_head;
  how.lookup = way.lookup;
  how.adapt = way.adapt;
  how.most = way.most;
  how.acceptance = way.acceptance;
  return options;
}

std::vector<int32_t> random_ids(Rng& rng, uint64_t count, int32_t vocabulary) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary)));
  return ids;
}

// Returns one of four beginnings, of any length, with something new behind it; or eight tokens repeated, which lookup
// can predict.
std::vector<int32_t> random_prompt(Rng& rng, const World& world) {
  const auto most = static_cast<uint64_t>(std::min<int64_t>(world.context - 1, 160));
  Rng beginning(99, rng.below(4));
  std::vector<int32_t> prompt = random_ids(beginning, most, world.vocabulary);
  if (rng.below(4) == 0)
    for (size_t i = 8; i < prompt.size(); ++i) prompt[i] = prompt[i - 8];
  prompt.resize(1 + rng.below(most));
  const auto fresh = random_ids(rng, rng.below(1 + std::min<uint64_t>(20, most - prompt.size())), world.vocabulary);
  prompt.insert(prompt.end(), fresh.begin(), fresh.end());
  return prompt;
}

void choose_sampling(Rng& rng, SamplingOptions& s, bool penalties, int32_t vocabulary) {
  const double temperatures[] = {0, 0, 0.4, 0.8, 1.3};
  s.temperature = temperatures[rng.below(5)];
  s.seed = rng.next();
  if (rng.below(4) == 0) s.top_k = 1 + static_cast<int64_t>(rng.below(30));
  if (rng.below(4) == 0) s.top_p = 0.3 + 0.7 * rng.uniform();
  if (rng.below(6) == 0) s.min_p = 0.1 * rng.uniform();
  if (rng.below(6) == 0)
    s.logit_bias = {{static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary))), 2.5f}, {vocabulary, 1.0f}};
  if (!penalties) return;
  if (rng.below(5) == 0) s.repetition_penalty = 0.8 + 0.6 * rng.uniform();
  if (rng.below(5) == 0) s.presence_penalty = rng.normal() / 2;
  if (rng.below(5) == 0) s.frequency_penalty = rng.normal() / 2;
}

// Returns the request that a number stands for, so that it can be asked again alone.
GenerationRequest request_of(uint64_t number, const World& world, const Way& way) {
  Rng rng(17, number);
  GenerationRequest r;
  r.prompt = random_prompt(rng, world);
  r.max_tokens = 1 + static_cast<int64_t>(rng.below(30));
  // At times all prompts are short and answers long. The pages that they will need are not reserved.
  if (number / 16 % 2 == 0) r.prompt.resize(1 + rng.below(std::min<uint64_t>(r.prompt.size(), 20))), r.max_tokens += 60;
  choose_sampling(rng, r.sampling, !way.unseen, world.vocabulary);
  if (rng.below(3) == 0) r.stop_ids = {static_cast<int32_t>(rng.below(static_cast<uint64_t>(world.vocabulary)))};
  const std::vector<std::string> stops = {"a", "\n", "the", "e ", "\xef\xbf\xbd", "no such thing"};
  if (rng.below(4) == 0) r.stop_strings = {stops[rng.below(stops.size())], stops[rng.below(stops.size())]};
  r.special_in_text = rng.below(4) == 0;
  r.logprobs = rng.below(3) == 0;
  if (way.unseen) return r;
  if (rng.below(6) == 0) r.alternatives = static_cast<int64_t>(rng.below(6));
  if (rng.below(6) == 0) r.prompt_logprobs = true, r.max_tokens -= static_cast<int64_t>(rng.below(2));
  if (rng.below(6) == 0) r.constraint = std::make_shared<EveryThirdForbidden>(world.vocabulary);
  return r;
}

// Returns requests that must be refused, with a part of the message.
std::pair<GenerationRequest, std::string> impossible(uint64_t which, const World& world) {
  GenerationRequest r{{1, 2, 3}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  switch (which) {
    case 0:
      return r.prompt.clear(), std::pair{r, "empty"};
    case 1:
      return r.prompt.assign(static_cast<size_t>(world.context), 1), std::pair{r, "shorten the prompt"};
    case 2:
      return r.prompt[1] = world.vocabulary, std::pair{r, "token id"};
    case 3:
      return r.prompt[2] = -1, std::pair{r, "token id -1"};
    case 4:
      return r.max_tokens = 0, std::pair{r, "max_tokens"};
    case 5:
      return r.alternatives = world.vocabulary + 1, std::pair{r, "alternatives"};
    case 6:
      return r.alternatives = -1, std::pair{r, "alternatives"};
    case 7:
      return r.sampling.temperature = nan, std::pair{r, "temperature"};
    case 8:
      return r.sampling.top_p = 0, std::pair{r, "top_p"};
    case 9:
      return r.sampling.min_p = nan, std::pair{r, "min_p"};
    case 10:
      return r.sampling.repetition_penalty = 0, std::pair{r, "repetition_penalty"};
    default:
      return r.sampling.presence_penalty = std::numeric_limits<double>::infinity(), std::pair{r, "penalties"};
  }
}

// A Crowd asks requests and records everything that their owners are told.
class Crowd {
 public:
  Crowd(const World& world, const Way& way, uint64_t seed)
      : world_(world), way_(way), rng_(seed, 1), seed_(seed), engine_(*world.small, options_of(world, way)) {}

  void ask(int64_t count) {
    for (int64_t asked = 0; ended_ < count;) {
      for (int i = 0; i < 3 && asked < count && open_.size() < 14; ++i, ++asked)
        add(seed_ + static_cast<uint64_t>(asked));
      if (rng_.below(10) == 0) refuse();
      if (rng_.below(30) == 0) cancel_anybody();
      EXPECT_FALSE(engine_.cancel(gone_));
      engine_.step();
      ASSERT_GE(engine_.free_pages(), 0);
    }
    while (engine_.step()) {
    }
    EXPECT_TRUE(open_.empty());
    EXPECT_EQ(ended_, count);
    EXPECT_EQ(engine_.running() + engine_.waiting(), 0);
    EXPECT_EQ(engine_.free_pages(), world_.small->cache_pages());
    for (const auto& weak : constraints_) EXPECT_TRUE(weak.expired());  // so the sequence that held it is gone too
    if (way_.drafts != Drafts::none || way_.lookup) {
      EXPECT_GT(engine_.counters().judged + engine_.counters().lookup_accepted, 0);
    }
  }

  // Fills the cache. Every page can be used at once, including those kept for reuse, and holds what is written to it.
  void fill() {
    const int64_t pages = world_.small->cache_pages(), each = world_.context / kPageTokens;
    const int64_t preempted = engine_.counters().preemptions;
    int64_t least = pages;
    std::vector<GenerationRequest> requests;
    std::vector<Generation> got(static_cast<size_t>(pages / each));
    for (int64_t i = 0; i < pages / each; ++i) {
      GenerationRequest& r = requests.emplace_back();
      r.prompt = random_ids(rng_, static_cast<uint64_t>((each - 1) * kPageTokens), world_.vocabulary);
      r.max_tokens = kPageTokens;
      RequestEvents events;
      events.on_token = [&](const NewToken&) { least = std::min(least, engine_.free_pages()); };
      events.on_finish = [&got, i](int64_t, Generation&& g) { got[static_cast<size_t>(i)] = std::move(g); };
      engine_.add(r, std::move(events));
    }
    while (engine_.step()) {
    }
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got[i].ids, alone(requests[i]).ids) << i;
    const int64_t at_once = way_.at_once > 0 ? std::min(way_.at_once, pages / each) : pages / each;
    // If drafts are good, all but the last sequence may have ended before that one asks for its last page.
    EXPECT_LE(least, pages - each * at_once + at_once - 1);
    EXPECT_EQ(engine_.counters().preemptions, preempted);
    EXPECT_EQ(engine_.free_pages(), pages);
  }

  const Engine& engine() const { return engine_; }
  int64_t cancelled() const { return cancelled_; }
  int64_t compared() const { return compared_; }

 private:
  struct Heard {
    uint64_t asked = 0;  // the number for request_of()
    std::vector<int32_t> ids{};
    std::vector<float> logprobs{};
    std::string text{};
    int prompts = 0;
  };

  Generation alone(const GenerationRequest& request) const {
    GenerationOptions options;
    options.reading = Activations::a16;
    options.tokenizer = &world_.tokenizer;
    return generate(*world_.roomy, {request}, options)[0];
  }

  void add(uint64_t asked) {
    GenerationRequest request = request_of(asked, world_, way_);
    if (request.constraint) constraints_.push_back(request.constraint);
    RequestEvents events;
    events.on_prompt = [this](int64_t n, std::vector<ScoredToken>&& prompt) {
      Heard& heard = open_.at(n);
      EXPECT_TRUE(heard.prompts++ == 0 && heard.ids.empty());
      EXPECT_EQ(prompt.size() + 1, request_of(heard.asked, world_, way_).prompt.size());
      if (rng_.below(8) == 0) engine_.cancel(n);
    };
    events.on_token = [this](const NewToken& token) {
      Heard& heard = open_.at(token.request);
      heard.ids.push_back(token.id);
      heard.logprobs.push_back(token.logprob);
      heard.text += token.text;
      if (rng_.below(1000) == 0) engine_.cancel(token.request);
      if (rng_.below(1000) == 0) cancel_anybody();
    };
    events.on_finish = [this](int64_t n, Generation&& g) {
      const auto found = open_.find(n);
      ASSERT_TRUE(found != open_.end()) << n;  // it is told only once
      const Heard heard = std::move(found->second);
      open_.erase(found);
      gone_ = n;
      ++ended_;
      check_end(heard, g);
      EXPECT_FALSE(engine_.cancel(n));
      if (rng_.below(40) == 0) cancel_anybody();
    };
    const int64_t number = engine_.add(std::move(request), std::move(events));
    open_.emplace(number, Heard{asked});
    if (rng_.below(30) == 0) {  // before it is admitted
      EXPECT_TRUE(engine_.cancel(number));
    }
  }

  void refuse() {
    const std::pair<GenerationRequest, std::string> bad = impossible(rng_.below(12), world_);
    const int64_t before = engine_.running() + engine_.waiting();
    const auto add = [&] { engine_.add(bad.first, {.on_finish = [](int64_t, Generation&&) { FAIL(); }}); };
    EXPECT_THAT(add, testing::ThrowsMessage<Error>(testing::HasSubstr(bad.second)));
    EXPECT_EQ(engine_.running() + engine_.waiting(), before);
  }

  void cancel_anybody() {
    if (open_.empty()) return;
    auto it = open_.begin();
    std::advance(it, static_cast<int64_t>(rng_.below(open_.size())));
    EXPECT_TRUE(engine_.cancel(it->first));
  }

  void check_end(const Heard& heard, const Generation& g) {
    EXPECT_EQ(g.error, "");
    EXPECT_EQ(g.ids, heard.ids);
    const bool cut = g.finish_reason == FinishReason::cancelled;
    EXPECT_TRUE(cut ? g.text.starts_with(heard.text) : g.text == heard.text) << g.text << "\n" << heard.text;
    cancelled_ += cut;
    const GenerationRequest request = request_of(heard.asked, world_, way_);
    EXPECT_EQ(g.logprobs, request.logprobs ? heard.logprobs : std::vector<float>());
    // Under rejection sampling a sampled text depends on what was drafted.
    if (way_.acceptance == Acceptance::rejection && request.sampling.temperature > 0) return;
    if (heard.asked % 8 != 0) return;
    ++compared_;
    Generation expected = alone(request);
    if (cut) {
      ASSERT_LE(g.ids.size(), expected.ids.size());
      expected.ids.resize(g.ids.size()), expected.logprobs.resize(g.logprobs.size());
    } else {
      EXPECT_EQ(g.finish_reason, expected.finish_reason);
      EXPECT_EQ(g.stop_string, expected.stop_string);
      EXPECT_EQ(g.text, expected.text);
    }
    EXPECT_EQ(g.ids, expected.ids) << heard.asked;
    EXPECT_EQ(g.logprobs, expected.logprobs) << heard.asked;  // bit for bit
  }

  const World& world_;
  const Way& way_;
  Rng rng_;
  uint64_t seed_;
  std::map<int64_t, Heard> open_;
  std::vector<std::weak_ptr<Constraint>> constraints_;
  // gone_ is the last request that ended, at first none.
  int64_t ended_ = 0, cancelled_ = 0, compared_ = 0, gone_ = 1 << 20;
  Engine engine_;
};

const std::vector<Way> kWays = {
    {.name = "plain"},
    {.name = "plain, nothing reused, 3 at once", .reuse = false, .at_once = 3},
    {.name = "view, as far as it pays", .drafts = Drafts::view, .lookup = true, .most = 8},
    {.name = "view, always 4", .drafts = Drafts::view, .adapt = false},
    {.name = "view, not waited for", .drafts = Drafts::view, .adapt = false, .most = 5, .unseen = true},
    {.name = "copy and lookup, not waited for", .drafts = Drafts::copy, .lookup = true, .adapt = false, .unseen = true},
    {.name = "copy, always 3", .drafts = Drafts::copy, .adapt = false, .most = 3, .reuse = false},
    {.name = "copy with a third of the tokens", .drafts = Drafts::copy, .adapt = false, .short_head = true},
    {.name = "view with a third of the tokens, not waited for",
     .drafts = Drafts::view,
     .adapt = false,
     .unseen = true,
     .short_head = true},
    {.name = "lookup", .lookup = true, .adapt = false, .most = 8},
    {.name = "view by rejection",
     .drafts = Drafts::view,
     .lookup = true,
     .adapt = false,
     .acceptance = Acceptance::rejection},
    {.name = "copy with a third of the tokens by rejection",
     .drafts = Drafts::copy,
     .adapt = false,
     .acceptance = Acceptance::rejection,
     .short_head = true},
};

void ask_in_every_way(const std::string& model, int64_t pages, int64_t requests) {
  const World world(FIDELIO_SOURCE_DIR "/" + model, pages);
  int64_t cancelled = 0, compared = 0, preempted = 0, reused = 0;
  for (size_t i = 0; i < kWays.size(); ++i) {
    SCOPED_TRACE(kWays[i].name);
    Crowd crowd(world, kWays[i], 100'000 * i);
    crowd.ask(requests / static_cast<int64_t>(kWays.size()) + 1);
    if (testing::Test::HasFailure()) return;
    crowd.fill();
    const EngineCounters counters = crowd.engine().counters();
    cancelled += crowd.cancelled();
    compared += crowd.compared();
    preempted += counters.preemptions;
    reused += counters.reused_tokens;
    if (!kWays[i].reuse) {
      EXPECT_EQ(counters.reused_tokens, 0);
    }
  }
  EXPECT_GT(cancelled, requests / 10);
  EXPECT_LT(cancelled, requests / 2);
  EXPECT_GT(compared, requests / 12);
  EXPECT_GT(preempted, requests / 200);
  EXPECT_GT(reused, requests / 2);
}

TEST(Requests, AreAnsweredOnceWhateverTheOthersDo) { ask_in_every_way("tests/models/llama2", 13, 300); }

// The next tests ask ten thousand requests, which takes some minutes with sanitizers, and a thousand of a model that
// writes texts:
//   build-asan/engine_test --gtest_also_run_disabled_tests --gtest_filter='Requests.*'
TEST(Requests, DISABLED_AreAnsweredOnceInFull) { ask_in_every_way("tests/models/llama2", 13, 10'000); }
TEST(Requests, DISABLED_AreAnsweredOnceInWords) { ask_in_every_way("models/quill-1m", 20, 1'000); }

}  // namespace
}  // namespace fidelio
