#include "eval/studies/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/rng.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

EvalText random_document(int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  EvalText text{fmt::format("text{}", seed), fmt::format("digest{}", seed), {}};
  for (int64_t i = 0; i < tokens; ++i) text.ids.push_back(static_cast<int32_t>(rng.below(23)));
  return text;
}

FakeRunner noisy_runner(double noise, int64_t max_rows = 64, int64_t max_logit_rows = 16, int vocabulary = 23) {
  RunnerOptions options;
  options.max_rows = max_rows;
  options.max_logit_rows = max_logit_rows;
  return FakeRunner({.vocabulary = vocabulary, .noise = noise}, options);
}

const std::vector<EvalText>& compared_texts() {
  static const std::vector<EvalText> all = {random_document(400, 1), random_document(300, 2)};
  return all;
}

FidelityReport compare(double noise, const CompareOptions& options = {.windows = {.context = 20}}, int64_t rows = 64,
                       int64_t logit_rows = 16, int threads = 2) {
  FakeRunner reference = noisy_runner(0), candidate = noisy_runner(noise, rows, logit_rows);
  ThreadPool pool(threads);
  return compare_models(reference, candidate, compared_texts(), options, pool);
}

TEST(Compare, OfAModelWithItselfIsPerfect) {
  const FidelityReport report = compare(0);
  EXPECT_EQ(report.positions(), 35 * 19);
  EXPECT_EQ(report.ear().value, 1);
  EXPECT_EQ(report.ear().ci95.low, 1);
  EXPECT_EQ(report.kl().value, 0);
  EXPECT_EQ(report.perplexity_ratio().value, 1);
  // None of 665 positions differs, and a share of .55% would be missed with a chance of 2.5%.
  EXPECT_EQ(report.top1().value, 1);
  EXPECT_EQ(report.top1().ci95.high, 1);
  EXPECT_NEAR(std::pow(report.top1().ci95.low, 665), 0.025, 1e-9);
  double positions = 0;
  for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin) {
    double here = 0;
    for (const WindowFidelity& w : report.windows) here += w.sums.bin_positions[bin];
    positions += here;
    if (here > 0) {
      EXPECT_EQ(report.flips(bin).value, 0);
      EXPECT_NEAR(std::pow(1 - report.flips(bin).ci95.high, here), 0.025, 1e-9);
    }
  }
  EXPECT_EQ(positions, 665);
  const nlohmann::json j = to_json(report);
  EXPECT_TRUE(j["margin"]["value"].is_null());  // no position disagrees
  EXPECT_TRUE(j["ear_constant"].is_null());
}

TEST(Compare, EqualsTheComparisonOfRowsOneByOne) {
  const FidelityReport report = compare(0.3);
  FakeRunner reference = noisy_runner(0), candidate = noisy_runner(0.3);
  RowComparer comparer;
  double kl = 0, ear = 0, nll = 0;
  int64_t n = 0;
  for (const EvalText& text : compared_texts())
    for (const TextWindow& w : text_windows(static_cast<int64_t>(text.ids.size()), report.options.windows))
      for (int64_t i = w.first_scored; i < w.end; ++i, ++n) {
        const auto history =
            std::span(text.ids).subspan(static_cast<size_t>(w.begin), static_cast<size_t>(i - w.begin));
        const auto p = reference.logits_after(history), q = candidate.logits_after(history);
        const PositionFidelity f = comparer.compare(p, q);
        kl += f.kl;
        ear += f.ear;
        nll += f.log_sum_exp_q - static_cast<double>(q[static_cast<size_t>(text.ids[static_cast<size_t>(i)])]);
      }
  const auto count = static_cast<double>(n);
  EXPECT_EQ(report.positions(), n);
  EXPECT_NEAR(report.kl().value, kl / count, 1e-12);  // the same terms are added in another order
  EXPECT_NEAR(report.ear().value, ear / count, 1e-12);
  EXPECT_NEAR(report.perplexity().value, std::exp(nll / count), 1e-9);
}

TEST(Compare, DoesNotDependOnBatchingOrThreads) {
  const FidelityReport a = compare(0.3), b = compare(0.3, {.windows = {.context = 20}}, 7, 3, 1);
  ASSERT_EQ(a.windows.size(), b.windows.size());
  for (size_t i = 0; i < a.windows.size(); ++i) {
    EXPECT_EQ(a.windows[i].sums.kl, b.windows[i].sums.kl);
    EXPECT_EQ(a.windows[i].nll_candidate, b.windows[i].nll_candidate);
  }
  EXPECT_EQ(to_json(a).dump(), to_json(b).dump());
}

TEST(Compare, RunsTheReferenceInFp32AndTheCandidateAsServed) {
  FakeRunner reference = noisy_runner(0), candidate = noisy_runner(0.1);
  ThreadPool pool(1);
  compare_models(reference, candidate, compared_texts(),
                 {.windows = {.context = 20}, .candidate_mode = Activations::a8}, pool);
  EXPECT_THAT(reference.readings, testing::Each(Reading(Activations::f32)));
  EXPECT_THAT(candidate.readings, testing::Each(Reading(Activations::a8)));
}

TEST(Compare, MoreNoiseIsLessFidelityAndTheLawsHold) {
  double previous_kl = 0, previous_ear = 1;
  for (double noise : {0.01, 0.1, 0.5, 2.0}) {
    const FidelityReport r = compare(noise);
    EXPECT_GT(r.kl().value, previous_kl);
    EXPECT_LT(r.ear().value, previous_ear);
    EXPECT_GE(r.ear().value, 1 - std::sqrt(r.kl().value / 2));
    EXPECT_LE(r.kl().ci95.low, r.kl().value);
    EXPECT_GE(r.kl().ci95.high, r.kl().value);
    previous_kl = r.kl().value;
    previous_ear = r.ear().value;
  }
}

TEST(Compare, ReportHasEveryFigureAndCanBeSplitByText) {
  const FidelityReport report = compare(2.0);
  const nlohmann::json j = to_json(report);
  for (const char* name :
       {"kl", "ear", "kl_topk_raw", "ear_topk_raw", "kl_topk_renormalised", "ear_topk_renormalised", "topk_mass",
        "top1", "margin", "margin_candidate", "entropy", "perplexity", "reference_perplexity", "perplexity_ratio"}) {
    EXPECT_TRUE(j[name]["value"].is_number()) << name;
    EXPECT_TRUE(j[name]["ci95"][0].is_number() && j[name]["ci95"][1].is_number()) << name;
  }
  EXPECT_EQ(j["settings"]["reference_activations"], "f32");
  EXPECT_EQ(j["settings"]["activations"], "a16");
  EXPECT_EQ(j["texts"][1]["sha256"], "digest2");
  EXPECT_EQ(j["tokens"], report.positions());
  const FidelityReport first = report.of_text(0), second = report.of_text(1);
  EXPECT_EQ(first.positions() + second.positions(), report.positions());
  EXPECT_EQ(j["texts"][1]["kl"]["value"].get<double>(), second.kl().value);
  EXPECT_THROW(report.of_text(2), Error);
  // There are two texts and 35 windows. The value does not depend on which of them the interval is made by.
  const Estimate by_text = report.perplexity_ratio_by_text();
  EXPECT_NEAR(by_text.value, report.perplexity_ratio().value, 1e-12);
  const auto [low, high] =
      // Two units can only resample to values between these.
      std::minmax(first.perplexity_ratio().value, second.perplexity_ratio().value);
  EXPECT_GE(by_text.ci95.low, low);
  EXPECT_LE(by_text.ci95.high, high);

  double flips = 0, disagreements = 0;
  for (const nlohmann::json& bin : j["flips_by_entropy"])
    if (bin["positions"] != 0) flips += bin["positions"].get<double>() * bin["flips"]["value"].get<double>();
  for (const WindowFidelity& w : report.windows) disagreements += w.sums.disagreements;
  EXPECT_GT(disagreements, 0);
  EXPECT_NEAR(flips, disagreements, 1e-9);
  EXPECT_NEAR(j["top1"]["value"].get<double>(), 1 - disagreements / static_cast<double>(report.positions()), 1e-12);
}

TEST(Compare, TailsAreOfEveryPosition) {
  const FidelityReport report = compare(2.0);
  const Tails& tails = report.tails;
  EXPECT_EQ(tails.positions, report.positions());
  EXPECT_GT(tails.kl_largest, report.kl().value);
  EXPECT_LT(tails.ear_lowest, report.ear().value);
  for (const auto* bands : {&tails.by_confidence, &tails.by_position}) {
    double kl = 0;
    for (const TailBand& b : *bands)
      if (b.positions > 0) kl += b.kl * static_cast<double>(b.positions);
    EXPECT_NEAR(kl / static_cast<double>(report.positions()), report.kl().value, 1e-12);
  }
  ASSERT_EQ(tails.by_position.size(), 5u);  // windows of 20 tokens have bands from 1, 2, 4, 8 and 16 preceding tokens
  EXPECT_EQ(tails.by_position[4].positions, 35 * 4);  // 16 to 19 preceding tokens
  EXPECT_EQ(to_json(report)["tails"], to_json(tails));
}

TEST(Compare, SomePositionsAreSummedApartToo) {
  std::vector<EvalText> texts = compared_texts();
  texts[1].apart = {{0, 3}, {25, 45}};  // the first token of a window is no position
  FakeRunner reference = noisy_runner(0), candidate = noisy_runner(0.3);
  ThreadPool pool(2);
  const FidelityReport report = compare_models(reference, candidate, texts, {.windows = {.context = 20}}, pool);
  const FidelityReport whole = compare(0.3);
  EXPECT_EQ(report.kl().value, whole.kl().value);
  std::vector<int64_t> apart;
  for (const WindowFidelity& w : report.windows) apart.push_back(w.apart.positions);
  ASSERT_EQ(apart.size(), 35u);
  EXPECT_EQ(std::vector<int64_t>(apart.begin() + 20, apart.begin() + 24), (std::vector<int64_t>{2, 15, 4, 0}));
  EXPECT_EQ(std::count(apart.begin(), apart.end(), 0), 32);
  EXPECT_GT(report.windows[21].apart.kl, 0);
  EXPECT_LT(report.windows[21].apart.kl, report.windows[21].sums.kl);
}

TEST(Compare, RefusesModelsThatCannotBeCompared) {
  FakeRunner a = noisy_runner(0), other = noisy_runner(0, 64, 16, 24);
  ThreadPool pool(1);
  EXPECT_THROW(compare_models(a, other, compared_texts(), {.windows = {.context = 20}}, pool), Error);
  EXPECT_THROW(compare_models(a, a, compared_texts(), {.windows = {.context = 20}}, pool), Error);
  FakeRunner b = noisy_runner(0);
  EXPECT_THROW(compare_models(a, b, compared_texts(), {.windows = {.context = 20}, .top_k = 0}, pool), Error);
}

}  // namespace
}  // namespace fidelio
