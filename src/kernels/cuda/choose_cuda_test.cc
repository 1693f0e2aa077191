// These tests compare the tokens that a GPU chooses with those that the host chooses, bit for bit. Without a GPU they
// are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "kernels/cpu/choice/choose.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"

namespace fidelio {
namespace {

class CudaChoose : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
  }
  // Chooses from rows (rules, v) of logits in both ways, and compares the choices.
  void compare(const std::vector<float>& logits, int64_t v, const std::vector<ChoiceRule>& rules) {
    const auto n = static_cast<int64_t>(rules.size());
    Cuda::Matrix m = backend_->allocate(n, v);
    backend_->upload(logits, m);
    std::vector<Choice> choices(rules.size());
    backend_->choose(m, rules, choices);
    for (size_t i = 0; i < rules.size(); ++i) {
      const auto row = std::span(logits).subspan(i * static_cast<size_t>(v), static_cast<size_t>(v));
      const Choice expected = chooser_.choose(row, rules[i]);
      ASSERT_EQ(choices[i].id, expected.id) << "row " << i << " of " << v;
      ASSERT_EQ(choices[i].total, expected.total) << "row " << i << " of " << v;
      ASSERT_EQ(choices[i].logit, expected.logit) << "row " << i << " of " << v;
      ASSERT_EQ(choices[i].top, expected.top) << "row " << i << " of " << v;
    }
    std::vector<float> after(logits.size());
    backend_->download(m, 0, n, after);
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_TRUE(after[i] == logits[i] || std::isnan(logits[i])) << "logits are left as they were";
  }
  std::unique_ptr<Cuda> backend_;
  cpu::Chooser chooser_;
};

// Appends a row of logits as models make them: a few good tokens and a normal rest, sometimes with ties, with tokens
// that are forbidden, and now and then with no token that is allowed.
void append_row(Rng& rng, int64_t v, std::vector<float>& logits) {
  const size_t first = logits.size();
  const double spread = std::exp(rng.uniform() * 6 - 3);
  const float level = static_cast<float>(20 * rng.normal());
  for (int64_t i = 0; i < v; ++i) logits.push_back(level + static_cast<float>(spread * rng.normal()));
  const auto any = [&]() -> float& { return logits[first + rng.below(static_cast<uint64_t>(v))]; };
  for (uint64_t i = rng.below(8); i > 0; --i) any() += static_cast<float>(10 * rng.uniform());
  if (rng.below(4) == 0)
    for (size_t i = first; i < logits.size(); ++i) logits[i] = std::round(logits[i] * 4) / 4;
  if (rng.below(4) == 0) any() = -INFINITY, any() = -0.0f, any() = 0.0f;
  if (rng.below(16) == 0) std::fill(logits.begin() + static_cast<std::ptrdiff_t>(first), logits.end(), 2.5f);
  if (rng.below(50) == 0) any() = rng.below(2) == 0 ? INFINITY : std::nanf("");
  if (rng.below(100) == 0) std::fill(logits.begin() + static_cast<std::ptrdiff_t>(first), logits.end(), -INFINITY);
}

ChoiceRule random_rule(Rng& rng, int64_t v, std::vector<LogitChange>& changes) {
  ChoiceRule rule;
  rule.greedy = rng.below(8) == 0;
  rule.scale = static_cast<float>(1.4426950408889634 / std::exp(rng.uniform() * 6 - 3));
  if (rng.below(3) == 0) rule.top_k = static_cast<int64_t>(1 + rng.below(static_cast<uint64_t>(v + 10)));
  if (rng.below(3) == 0) rule.top_k = static_cast<int64_t>(1 + rng.below(50));
  if (rng.below(2) == 0) rule.top_p = 1 - rng.uniform();
  if (rng.below(3) == 0) rule.farthest = static_cast<float>(-std::log2(1 - rng.uniform()));
  rule.random = rng.next();
  rule.wants_probability = rng.below(2) == 0;
  changes.clear();
  if (rng.below(3) == 0) {
    rule.repetition = 1.3;
    for (int64_t id = static_cast<int64_t>(rng.below(20)); id < v && changes.size() < 2000;
         id += static_cast<int64_t>(1 + rng.below(40)))
      changes.push_back({static_cast<int32_t>(id), rng.below(2) == 0, static_cast<float>(rng.normal()),
                         static_cast<float>(rng.normal())});
    rule.changes = changes;
  }
  return rule;
}

TEST_F(CudaChoose, TenThousandRowsAreTheHostsBitForBit) {
  Rng rng(11);
  constexpr int64_t kRows = 125;
  std::vector<std::vector<LogitChange>> changes(kRows);
  for (int64_t v : {1, 7, 23, 64, 1000, 1023, 1024, 4096}) {
    for (int round = 0; round < 10; ++round) {
      std::vector<float> logits;
      std::vector<ChoiceRule> rules;
      for (size_t i = 0; i < kRows; ++i) {
        append_row(rng, v, logits);
        rules.push_back(random_rule(rng, v, changes[i]));
      }
      compare(logits, v, rules);
      if (HasFatalFailure()) return;
    }
  }
}

// These are the vocabularies of real models, with rows where thousands of tokens, or all, are near the best.
TEST_F(CudaChoose, RowsOfLargeVocabulariesAreTheHosts) {
  Rng rng(12);
  constexpr int64_t kRows = 24;
  std::vector<std::vector<LogitChange>> changes(kRows);
  for (int64_t v : {49152, 50257, 151936, 262144})
    for (int round = 0; round < 3; ++round) {
      std::vector<float> logits;
      std::vector<ChoiceRule> rules;
      for (size_t i = 0; i < kRows; ++i) {
        append_row(rng, v, logits);
        rules.push_back(random_rule(rng, v, changes[i]));
      }
      compare(logits, v, rules);
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace fidelio
