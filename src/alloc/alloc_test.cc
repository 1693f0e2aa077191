#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "alloc/evolve.h"
#include "alloc/search.h"
#include "alloc/solve.h"
#include "alloc/task_calibration.h"
#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// Groups of random sizes; each bit multiplies the cost by about a quarter, as measured on real models.
SensitivityTable random_table(uint64_t seed, int groups, const std::vector<int>& widths) {
  Rng rng(seed);
  SensitivityTable t;
  t.method = "test";
  t.fixed_bytes = 1000;
  t.ear_constant = 0.4;
  for (int i = 0; i < groups; ++i) {
    Group g{"g" + std::to_string(i), {"l" + std::to_string(i)}, static_cast<int64_t>(1024 * (1 + rng.below(3))), {}};
    const double sensitivity = 0.01 * std::exp(rng.normal());
    for (int b : widths) {
      const FormatSpec f{Kind::integer, b, 128, false, ScaleKind::f16};
      const double kl = sensitivity * std::pow(4.0, 4 - b) * (0.9 + 0.2 * rng.uniform());
      g.options.push_back({f, g.parameters * b / 8, kl, 0, std::sqrt(kl), 0});
    }
    t.groups.push_back(std::move(g));
  }
  return t;
}

TEST(Solve, FrontIlpAndBruteForceAgree) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SensitivityTable t = random_table(seed, 5, {2, 3, 4, 8});
    const auto front = pareto_front(t, Cost::kl);
    const int64_t low = front.front().bytes, high = front.back().bytes;
    for (int step = 0; step <= 6; ++step) {
      const int64_t budget = low + (high - low) * step / 6;
      double best = 1e300;
      for (int code = 0; code < 1024; ++code) {
        std::vector<int> choice;
        for (int g = 0, c = code; g < 5; ++g, c /= 4) choice.push_back(c % 4);
        const Plan p = evaluate(t, choice);
        if (p.bytes <= budget) best = std::min(best, p.kl);
      }
      const auto exact = best_within_bytes(front, budget);
      const auto ilp = solve_ilp(t, Cost::kl, budget);
      ASSERT_TRUE(exact && ilp);
      EXPECT_LE(ilp->bytes, budget);
      // Sums of the same five numbers in another order differ by a few units in the last place.
      EXPECT_NEAR(exact->kl, best, 1e-14 * best);
      // CBC works with feasibility tolerances of 1e-7 on costs scaled to 1.
      EXPECT_NEAR(ilp->kl, best, 1e-6 * front.front().kl);
    }
    EXPECT_FALSE(best_within_bytes(front, low - 1));
    EXPECT_FALSE(solve_ilp(t, Cost::kl, low - 1));
  }
}

TEST(Solve, FrontIsStrictlyOrderedAndAWiderCandidateSetIsNeverWorse) {
  const SensitivityTable t = random_table(3, 30, {2, 3, 4, 5, 6, 7, 8});
  const SensitivityTable narrow = restrict_formats(
      t, {{Kind::integer, 4, 128, false, ScaleKind::f16}, {Kind::integer, 8, 128, false, ScaleKind::f16}});
  const auto full = pareto_front(t, Cost::kl), some = pareto_front(narrow, Cost::kl);
  for (size_t i = 1; i < full.size(); ++i) {
    EXPECT_LT(full[i - 1].bytes, full[i].bytes);
    EXPECT_GT(full[i - 1].kl, full[i].kl);
  }
  for (const Plan& p : some) EXPECT_LE(best_within_bytes(full, p.bytes)->kl, p.kl * (1 + 1e-12));
}

TEST(Solve, SideConstraintBinds) {
  const SensitivityTable t = random_table(5, 8, {2, 4, 8});
  SideConstraint only_two_wide{{}, 2};
  for (const Group& g : t.groups) {
    only_two_wide.weight.emplace_back();
    for (const Option& o : g.options) only_two_wide.weight.back().push_back(o.format.bits == 8 ? 1 : 0);
  }
  const auto plan = solve_ilp(t, Cost::kl, int64_t{1} << 40, {only_two_wide});
  ASSERT_TRUE(plan);
  int wide = 0;
  for (size_t g = 0; g < t.groups.size(); ++g)
    wide += t.groups[g].options[static_cast<size_t>(plan->choice[g])].format.bits == 8;
  EXPECT_EQ(wide, 2);
}

TEST(Plan, JsonRoundTripsAndRefusesNonsense) {
  const SensitivityTable t = random_table(1, 4, {2, 4, 8});
  EXPECT_EQ(to_json(table_from_json(to_json(t))), to_json(t));
  const Plan p = uniform_plan(t, {Kind::integer, 4, 128, false, ScaleKind::f16});
  EXPECT_EQ(plan_from_json(t, to_json(t, p)).choice, p.choice);
  EXPECT_THROW(table_from_json(nlohmann::json::object()), Error);
  EXPECT_THROW(plan_from_json(t, nlohmann::json{{"groups", {{"g0", "int4g128z"}}}}), Error);
  EXPECT_THROW(uniform_plan(t, {Kind::integer, 5, 128, false, ScaleKind::f16}), Error);
}

TEST(Plan, MonotoneRepairPoolsViolatorsOnly) {
  SensitivityTable t = random_table(1, 1, {2, 3, 4});
  auto& o = t.groups[0].options;
  o[0].kl = 4, o[1].kl = 1, o[2].kl = 2;
  o[0].kl_se = o[1].kl_se = o[2].kl_se = 0.1;
  make_monotone(t);
  EXPECT_DOUBLE_EQ(t.groups[0].options[0].kl, 4);
  EXPECT_DOUBLE_EQ(t.groups[0].options[1].kl, 1.5);
  EXPECT_DOUBLE_EQ(t.groups[0].options[2].kl, 1.5);
}

// A measured world: true KL is 1.3 times the predicted one, EAR follows 1 - 0.5 sqrt(KL), intervals of +-2%.
Measurement world(const Plan& p) {
  const double kl = 1.3 * p.kl, loss = 0.5 * std::sqrt(kl);
  return {{1 - loss, {1 - 1.02 * loss, 1 - 0.98 * loss}}, {kl, {0.98 * kl, 1.02 * kl}}, p.bytes};
}

TEST(Search, FindsTheSmallestPlanThatMeetsTheTargetInFewMeasurements) {
  const SensitivityTable t = random_table(9, 40, {2, 3, 4, 5, 6, 7, 8});
  const auto front = pareto_front(t, Cost::kl);
  for (double ear : {0.7, 0.8, 0.9}) {
    const Target target{ear, std::nullopt};
    const SearchResult r = search_to_target(t, front, target, {.max_trials = 12}, world);
    ASSERT_GE(r.best, 0);
    const Plan* smallest = nullptr;
    for (const Plan& p : front)
      if (meets(world(p), target)) {
        smallest = &p;
        break;
      }
    ASSERT_NE(smallest, nullptr);
    EXPECT_EQ(r.trials[static_cast<size_t>(r.best)].plan.bytes, smallest->bytes);
    EXPECT_LE(r.trials.size(), 6u);
  }
  EXPECT_EQ(search_to_target(t, front, {1.0, std::nullopt}, {.max_trials = 12}, world).best, -1);

  // Told what to expect, the first trial is nearly right; and what passes need not be told from what is a tenth
  // smaller.
  const Target target{0.9, std::nullopt};
  const SearchResult exact = search_to_target(t, front, target, {.max_trials = 12}, world),
                     rough =
                         search_to_target(t, front, target, {.max_trials = 12, .rho = 1.3, .resolution = 0.1}, world);
  ASSERT_GE(rough.best, 0);
  EXPECT_LT(rough.trials.size(), exact.trials.size());
  EXPECT_DOUBLE_EQ(rough.trials.front().rho, 1.3);
  EXPECT_LE(static_cast<double>(rough.trials[static_cast<size_t>(rough.best)].plan.bytes),
            1.12 * static_cast<double>(exact.trials[static_cast<size_t>(exact.best)].plan.bytes));
}

// 300 questions of which a tenth was lost, alpha known within a factor of 1.5; the check asks twice as many.
const TaskCalibration kPoint{{0.02, {0.018, 0.022}}, 0.016, {0.9, {0.87, 0.93}}, 0.004, 2};

TEST(TaskCalibration, AlphaCarriesBothIntervals) {
  const Estimate alpha = kPoint.alpha();
  EXPECT_NEAR(alpha.value, 5, 1e-12);
  EXPECT_NEAR(kPoint.rho(), 1.25, 1e-12);
  // Wider than by the recovery's interval alone, narrower than with both at their worst ends.
  EXPECT_GT(alpha.ci95.high, 0.13 / 0.02);
  EXPECT_LT(alpha.ci95.high, 0.13 / 0.018);
  EXPECT_LT(alpha.ci95.low, 0.07 / 0.02);
  EXPECT_GT(alpha.ci95.low, 0.07 / 0.022);
  const Estimate predicted = kPoint.predicted(0.004);
  EXPECT_NEAR(predicted.value, 0.98, 1e-12);
  EXPECT_NEAR(predicted.ci95.low, 1 - 0.004 * alpha.ci95.high, 1e-12);
  EXPECT_NEAR(predicted.ci95.high, 1 - 0.004 * alpha.ci95.low, 1e-12);
}

TEST(TaskCalibration, AllowsTheKlAtWhichTheLowerEndIsStillThere) {
  for (double drop : {0.006, 0.02, 0.05}) {
    const double kl = kl_allowed(kPoint, drop, 600), loss = kPoint.alpha().ci95.high * kl;
    EXPECT_NEAR(loss + kPoint.reach(loss), drop, 1e-9);
    EXPECT_LT(kl, drop / kPoint.alpha().value);  // what the paper's line allows
  }
  EXPECT_EQ(kPoint.reach(0), kPoint.unchanged);
  EXPECT_NEAR(kPoint.reach(0.1), 0.03 / std::sqrt(2.0), 1e-12);
}

TEST(TaskCalibration, RefusesWhatTheQuestionsCannotShow) {
  EXPECT_THROW(kl_allowed(kPoint, 0.004, 600), Error);  // they could not show it of an unchanged model
  EXPECT_THROW(kl_allowed(kPoint, 0.3, 600), Error);    // beyond the point
  TaskCalibration same = kPoint;
  same.recovery = {0.99, {0.97, 1.01}};
  EXPECT_THROW(kl_allowed(same, 0.05, 600), Error);
  same = kPoint;
  same.kl = {0, {0, 0}};
  EXPECT_THROW(kl_allowed(same, 0.05, 600), Error);
}

TEST(Evolve, NeverBreaksTheLimitAndShrinks) {
  const SensitivityTable t = random_table(11, 20, {2, 3, 4, 5, 6, 7, 8});
  const Plan start = uniform_plan(t, {Kind::integer, 8, 128, false, ScaleKind::f16});
  EvolveOptions o;
  o.kl_limit = uniform_plan(t, {Kind::integer, 5, 128, false, ScaleKind::f16}).kl;
  o.generations = 150;
  int calls = 0;
  const Evolution e = evolve(t, start, o, [&](const Plan& p, double) { return ++calls, p.kl; });
  EXPECT_EQ(calls, e.measurements);
  EXPECT_LE(e.kl, o.kl_limit);
  EXPECT_LT(e.best.bytes, start.bytes);
  // The exact optimum is a lower bound for any search.
  EXPECT_GE(e.best.bytes, smallest_within_cost(pareto_front(t, Cost::kl), Cost::kl, o.kl_limit)->bytes);
}

}  // namespace
}  // namespace fidelio
