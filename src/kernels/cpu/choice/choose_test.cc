#include "kernels/cpu/choice/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "step/choice_race.h"

namespace fidelio::cpu {
namespace {

// Returns a row like those of models: a few good tokens, normally distributed others, ties, tokens that may not be
// chosen, both zeros.
std::vector<float> random_row(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  const double spread = std::exp(rng.uniform() * 6 - 3);
  for (float& v : x) v = static_cast<float>(spread * rng.normal());
  const auto any = [&]() -> float& { return x[rng.below(x.size())]; };
  for (uint64_t i = rng.below(8); i > 0; --i) any() += static_cast<float>(10 * rng.uniform());
  if (rng.below(4) == 0)
    for (float& v : x) v = std::round(v * 4) / 4;
  for (uint64_t i = rng.below(4); i > 0; --i) any() = any();
  if (rng.below(4) == 0) any() = -INFINITY, any() = -0.0f, any() = 0.0f;
  if (rng.below(16) == 0) std::fill(x.begin(), x.end(), 2.5f);
  if (!(*std::max_element(x.begin(), x.end()) > -INFINITY)) x[0] = 0;
  return x;
}

struct RandomRule {
  std::vector<LogitChange> changes;
  ChoiceRule rule;
  RandomRule(Rng& rng, int64_t n) {
    rule.greedy = rng.below(8) == 0;
    rule.scale = static_cast<float>(1.4426950408889634 / std::exp(rng.uniform() * 5 - 3));
    if (rng.below(3) == 0) rule.top_k = static_cast<int64_t>(1 + rng.below(static_cast<uint64_t>(n + 10)));
    if (rng.below(3) == 0) rule.top_k = static_cast<int64_t>(1 + rng.below(50));
    if (rng.below(2) == 0) rule.top_p = 1 - rng.uniform();
    if (rng.below(3) == 0) rule.farthest = static_cast<float>(-std::log2(1 - rng.uniform()));
    rule.random = rng.next();
    rule.wants_probability = rng.below(2) == 0;
    if (rng.below(3) == 0) {
      rule.repetition = 1.3;
      std::vector<int32_t> ids(static_cast<size_t>(n));
      std::iota(ids.begin(), ids.end(), 0);
      for (int i = 0; i < 20 && i < n; ++i) {
        std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(i) + rng.below(static_cast<uint64_t>(n - i))]);
        changes.push_back({ids[static_cast<size_t>(i)], rng.below(2) == 0, static_cast<float>(rng.normal()),
                           static_cast<float>(rng.normal())});
      }
      rule.changes = changes;
    }
  }
};

// A Twin is the definition: all tokens are sorted, and one filter follows the other.
struct Twin {
  std::vector<float> row;
  std::vector<int32_t> order;
  std::vector<uint64_t> weights;  // of the order
  size_t kept = 0;
  float scale;

  Twin(std::vector<float> logits, const ChoiceRule& rule)
      : row(std::move(logits)), order(row.size()), scale(rule.scale) {
    for (const LogitChange& c : rule.changes) {
      float& x = row[static_cast<size_t>(c.id)];
      if (c.repeated) x = static_cast<float>(x > 0 ? x / rule.repetition : x * rule.repetition);
      x = x - c.less + c.more;
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    for (int32_t id : order)
      weights.push_back(choice::weight_at(choice::distance(logit(order[0]), logit(id), rule.scale)));
    kept = order.size();
    if (rule.top_k > 0) kept = std::min(kept, static_cast<size_t>(rule.top_k));
    if (rule.top_p < 1) {
      const uint64_t wanted = choice::part_of(rule.top_p, sum());
      uint64_t weight = weights[0];
      for (kept = 1; weight < wanted; ++kept) weight += weights[kept];
    }
    while (choice::distance(logit(order[0]), logit(order[kept - 1]), rule.scale) > rule.farthest) --kept;
    if (rule.greedy) kept = 1;
  }
  float logit(int32_t id) const { return row[static_cast<size_t>(id)]; }
  uint64_t sum() const {
    return std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), uint64_t{0});
  }
  int32_t choose(uint64_t random) const {
    uint64_t first = ~uint64_t{0};
    for (size_t i = 0; i < kept; ++i) {
      const float t = choice::distance(logit(order[0]), logit(order[i]), scale);
      if (weights[i] > 0) first = std::min(first, choice::finish_of(choice::arrival(order[i], random, t), order[i]));
    }
    return static_cast<int32_t>(static_cast<uint32_t>(first));
  }
};

TEST(Choose, EqualsTheDefinitionOnEveryInstructionSet) {
  for (Isa isa : supported_isas()) {
    Rng rng(7);
    Chooser chooser(isa);
    for (int round = 0; round < 600; ++round) {
      const int64_t sizes[] = {1, 2, 7, 8, 9, 23, 64, 257, 1000, 4099, 20011};
      const int64_t n = sizes[rng.below(round % 20 == 0 ? 11 : 10)];
      const std::vector<float> row = random_row(rng, n);
      const RandomRule with(rng, n);
      const Twin twin(row, with.rule);
      const Choice choice = chooser.choose(row, with.rule);
      const int32_t expected = twin.choose(with.rule.random);
      ASSERT_EQ(choice.id, expected) << name_of(isa) << " round " << round << " of " << n;

      const TokenDistribution left = chooser.distribution(row, with.rule);
      EXPECT_TRUE(std::is_sorted(left.ids.begin(), left.ids.end()));
      std::vector<std::pair<int32_t, uint64_t>> by_id;
      for (size_t i = 0; i < twin.kept; ++i)
        if (twin.weights[i] > 0) by_id.emplace_back(twin.order[i], with.rule.greedy ? 1 : twin.weights[i]);
      std::sort(by_id.begin(), by_id.end());
      ASSERT_EQ(left.ids.size(), by_id.size());
      for (size_t i = 0; i < by_id.size(); ++i)
        ASSERT_EQ(std::make_pair(left.ids[i], left.weights[i]), by_id[i]) << round;
      EXPECT_EQ(left.total, std::accumulate(left.weights.begin(), left.weights.end(), uint64_t{0}));

      if (!with.rule.wants_probability) continue;
      const ChoiceRule natural{.changes = {}, .greedy = false, .scale = choice::kNaturalScale};
      const Twin own(row, natural);
      EXPECT_EQ(choice.total, own.sum());
      EXPECT_EQ(choice.logit, row[static_cast<size_t>(choice.id)]);
      EXPECT_EQ(choice.top, own.logit(own.order[0]));
    }
  }
}

// This is the bound of choice_arithmetic.h. Here t itself is exact. The polynomial's error is 2.1e-9, each of the
// last two of its operations rounds by 2^-25 of a value that is at least 1/2, and those before round by less
// together; then one unit of the mantissa and one of the weight are cut off.
TEST(Choose, WeightsArePowersOfTwo) {
  for (int i = 0; i < 1 << 20; ++i) {
    const float t = static_cast<float>(i) * 0x1p-15f;  // up to 32
    const double exact = std::ldexp(std::exp2(-static_cast<double>(t)), choice::kWeightBits);
    EXPECT_NEAR(static_cast<double>(choice::weight_at(t)), exact, exact * 0x1p-22 + 1) << t;
  }
  EXPECT_EQ(choice::weight_at(0), uint64_t{1} << choice::kWeightBits);
  EXPECT_EQ(choice::weight_at(INFINITY), 0u);
}

// This is the bound of choice_race.h: an exponential number made of 55 bits is compared with a double from the same
// bits.
TEST(Race, ExponentialNumbersAreLogarithms) {
  Rng rng(5);
  for (int i = 0; i < 1 << 20; ++i) {
    choice::RandomWords<uint32_t> words = choice::random_words(static_cast<uint32_t>(i), rng.next());
    if (i % 4 == 0) words.coarse >>= rng.below(32);
    if (i % 4 == 1) words.coarse = 0x7fffffffu - (words.coarse >> rng.below(32));
    const double part = std::ldexp(words.fine + 0.5, -23), v = std::ldexp(words.coarse + part, -31),
                 rest = std::ldexp(0x7fffffffu - words.coarse + (1 - part), -31);  // 1 - v, exactly
    const double exact = -(v < 0.5 ? std::log1p(-v) : std::log(rest)) / std::log(2.0);
    EXPECT_NEAR(choice::exponential<choice::OneLane>(words), exact, exact * 0x1p-20);
  }
}

// A choice among few tokens has the right chi-square: 20 degrees of freedom leave 56.3 with probability .999972. The
// positions of one seed are neighbours, as in a text.
TEST(Race, ChoosesByWeight) {
  Rng rng(6);
  Chooser chooser;
  constexpr int kDraws = 1000000;
  constexpr size_t kTokens = 21;
  std::vector<float> row(kTokens);
  for (float& x : row) x = static_cast<float>(rng.normal());
  ChoiceRule rule{.changes = {}, .greedy = false, .scale = choice::kNaturalScale};
  const TokenDistribution exact = chooser.distribution(row, rule);
  std::vector<int> counts(kTokens);
  for (int i = 0; i < kDraws; ++i) {
    rule.random = Rng(17, static_cast<uint64_t>(i)).next();
    ++counts[static_cast<size_t>(chooser.choose(row, rule).id)];
  }
  double chi = 0;
  for (size_t i = 0; i < kTokens; ++i) {
    const double expected = kDraws * static_cast<double>(exact.weights[i]) / static_cast<double>(exact.total);
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi, 56.3);
}

// A draft and its verifier with the same random numbers agree at least as often as theory says, EAR / (2 - EAR). The
// mean of 200 pairs of rows, of 500 numbers each, has a standard error below sqrt(1 / 4 / 100000) = .0016.
TEST(Race, SharedNumbersChooseTheSameToken) {
  Rng rng(8);
  Chooser chooser;
  double agreed = 0, bound = 0;
  constexpr int kPairs = 200, kNumbers = 500;
  for (int pair = 0; pair < kPairs; ++pair) {
    std::vector<float> p(300), q(300);
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = static_cast<float>(3 * rng.normal());
      q[i] = p[i] + static_cast<float>(0.4 * rng.normal());
    }
    ChoiceRule rule{.changes = {}, .greedy = false, .scale = choice::kNaturalScale};
    const TokenDistribution a = chooser.distribution(p, rule), b = chooser.distribution(q, rule);
    double ear = 0;
    for (size_t i = 0; i < p.size(); ++i)
      ear += std::min(static_cast<double>(a.weights[i]) / static_cast<double>(a.total),
                      static_cast<double>(b.weights[i]) / static_cast<double>(b.total));
    bound += ear / (2 - ear) / kPairs;
    for (int i = 0; i < kNumbers; ++i) {
      rule.random = rng.next();
      agreed += chooser.choose(p, rule).id == chooser.choose(q, rule).id ? 1.0 / (kPairs * kNumbers) : 0;
    }
  }
  EXPECT_GT(agreed, bound - 4 * 0.0016);
  EXPECT_LT(bound, 0.9);
}

// This test compares log p in FP32 with double. t = (top - x) log2(e) has three roundings of 2^-24 relative, so a
// weight is wrong by t 3 ln(2) 2^-24 + 2^-22, of which the sum takes the mean; the result is rounded once more.
TEST(Choose, LogProbabilityIsTheModels) {
  Rng rng(3);
  Chooser chooser;
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> row = random_row(rng, 5000);
    const ChoiceRule rule{.changes = {}, .greedy = false, .scale = 2, .random = rng.next(), .wants_probability = true};
    const Choice choice = chooser.choose(row, rule);
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0, spread = 0;
    for (float x : row) sum += std::exp(x - top), spread += x > -INFINITY ? (top - x) * std::exp(x - top) : 0;
    const double exact = row[static_cast<size_t>(choice.id)] - top - std::log(sum);
    EXPECT_NEAR(log_probability(choice), exact,
                3 * 0x1p-24 * spread / sum + 0x1p-22 + 5000 * 0x1p-40 + std::abs(exact) * 0x1p-24);
  }
}

TEST(Choose, RowsInParallelAreRowsAlone) {
  ThreadPool pool(3);
  std::vector<Chooser> choosers(3);
  Rng rng(9);
  constexpr int64_t kRows = 40, kColumns = 3000;
  std::vector<float> logits;
  std::vector<RandomRule> with;
  std::vector<ChoiceRule> rules;
  with.reserve(kRows);
  for (int64_t i = 0; i < kRows; ++i) {
    const std::vector<float> row = random_row(rng, kColumns);
    logits.insert(logits.end(), row.begin(), row.end());
    with.emplace_back(rng, kColumns);
    rules.push_back(with.back().rule);
  }
  std::vector<Choice> choices(kRows);
  choose_rows(pool, choosers, logits, rules, choices);
  for (size_t i = 0; i < kRows; ++i)
    EXPECT_EQ(choices[i].id, Chooser().choose(std::span(logits).subspan(i * kColumns, kColumns), rules[i]).id);
}

}  // namespace
}  // namespace fidelio::cpu
