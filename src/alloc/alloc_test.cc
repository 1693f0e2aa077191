// This file tests the solvers, plans, the search by certificates, the calibration by tasks, and the evolutionary
// search.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "alloc/evolve.h"
#include "alloc/search.h"
#include "alloc/solve.h"
#include "alloc/task_calibration.h"
#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// The table has groups of random sizes. Each bit more divides the cost by about four, as measured on real models.
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

// Returns the plan that gives every group this width.
Plan uniform_plan(const SensitivityTable& t, int bits) {
  std::vector<int> choice;
  for (const Group& g : t.groups) {
    const auto found =
        std::find_if(g.options.begin(), g.options.end(), [&](const Option& o) { return o.format.bits == bits; });
    choice.push_back(static_cast<int>(found - g.options.begin()));
  }
  return evaluate(t, std::move(choice));
}

// Visits every plan of a small table.
template <typename Visit>
void for_every_plan(const SensitivityTable& t, const Visit& visit) {
  std::vector<int> choice(t.groups.size(), 0);
  for (size_t g = 0; g < choice.size();) {
    visit(evaluate(t, choice));
    for (g = 0; g < choice.size() && ++choice[g] == static_cast<int>(t.groups[g].options.size()); ++g) choice[g] = 0;
  }
}

TEST(Solve, FrontLeastAndBruteForceAgree) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SensitivityTable t = random_table(seed, 5, {2, 3, 4, 8});
    const auto front = pareto_front(t, Cost::kl);
    const int64_t low = front.front().bytes, high = front.back().bytes;
    for (int step = 0; step <= 6; ++step) {
      const int64_t budget = low + (high - low) * step / 6;
      double best = 1e300;
      for_every_plan(t, [&](const Plan& p) {
        if (p.bytes <= budget) best = std::min(best, p.kl);
      });
      const Limit limit{Quantity::bytes, static_cast<double>(budget)};
      const auto exact = best_within_bytes(front, budget);
      const auto least = least_within(t, Quantity::kl, std::span(&limit, 1));
      ASSERT_TRUE(exact && least);
      EXPECT_LE(least->plan.bytes, budget);
      // Sums of the same five numbers in another order differ by a few units in the last place.
      EXPECT_NEAR(exact->kl, best, 1e-14 * best);
      EXPECT_NEAR(least->plan.kl, best, 1e-14 * best);
      EXPECT_EQ(least->bound, least->plan.kl);
    }
    EXPECT_FALSE(best_within_bytes(front, low - 1));
    const Limit limit{Quantity::bytes, static_cast<double>(low - 1)};
    EXPECT_FALSE(least_within(t, Quantity::kl, std::span(&limit, 1)));
  }
}

// Formats share a codebook of 2 or 32 kB in tables whose groups have a few hundred bytes. It depends on the whole
// plan whether a codebook is worth its bytes.
TEST(Solve, SharedCodebooksArePaidOnce) {
  int with_one = 0, with_both = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SensitivityTable t = random_table(seed, 5, {2, 3, 8});
    Rng rng(100 + seed);
    for (Group& g : t.groups) {
      g.parameters *= seed % 3 == 0 ? 64 : 8;
      for (Option& o : g.options) o.bytes = g.parameters * o.format.bits / 8;
      for (const char* name : {"vq8k16s8m", "vq8k20s8m", "vq8k20s8m+r2.2"}) {
        const FormatSpec f = parse_format(name);
        const double bits = f.bits / 8.0 + f.sparse / 1000.0;
        g.options.push_back({f, static_cast<int64_t>(static_cast<double>(g.parameters) * bits / 8),
                             g.options[0].kl * std::pow(4.0, 2 - bits) * (0.4 + 0.2 * rng.uniform()), 0, 0.1, 0});
      }
    }
    const auto front = pareto_front(t, Cost::kl);
    for (size_t i = 1; i < front.size(); ++i) {
      EXPECT_LT(front[i - 1].bytes, front[i].bytes);
      EXPECT_GT(front[i - 1].kl, front[i].kl);
    }
    const int64_t low = front.front().bytes, high = front.back().bytes;
    for (int step = 0; step <= 6; ++step) {
      const int64_t budget = low + (high - low) * step / 6;
      Plan best;
      best.kl = 1e300;
      for_every_plan(t, [&](const Plan& p) {
        if (p.bytes <= budget && p.kl < best.kl) best = p;
      });
      int64_t summed = t.fixed_bytes;
      std::map<std::string, int64_t> codebooks;
      for (size_t g = 0; g < t.groups.size(); ++g) {
        const Option& o = t.groups[g].options[static_cast<size_t>(best.choice[g])];
        summed += o.bytes;
        if (o.format.shared) codebooks[shared_name(o.format)] = shared_bytes(o.format);
      }
      for (const auto& [name, bytes] : codebooks) summed += bytes;
      EXPECT_EQ(best.bytes, summed);
      with_one += codebooks.size() == 1, with_both += codebooks.size() == 2;
      const Limit limit{Quantity::bytes, static_cast<double>(budget)};
      const auto exact = best_within_bytes(front, budget);
      const auto least = least_within(t, Quantity::kl, std::span(&limit, 1));
      ASSERT_TRUE(exact && least);
      EXPECT_LE(exact->bytes, budget);
      EXPECT_LE(least->plan.bytes, budget);
      // Sums of the same five numbers in another order differ by a few units in the last place.
      EXPECT_NEAR(exact->kl, best.kl, 1e-14 * best.kl);
      EXPECT_NEAR(least->plan.kl, best.kl, 1e-14 * best.kl);
    }
    EXPECT_FALSE(best_within_bytes(front, low - 1));
  }
  EXPECT_GT(with_one, 0);
  EXPECT_GT(with_both, 0);
}

TEST(Solve, FrontIsStrictlyOrderedAndAWiderCandidateSetIsNeverWorse) {
  const SensitivityTable t = random_table(3, 30, {2, 3, 4, 5, 6, 7, 8});
  SensitivityTable narrow = t;
  for (Group& g : narrow.groups)
    std::erase_if(g.options, [](const Option& o) { return o.format.bits != 4 && o.format.bits != 8; });
  const auto full = pareto_front(t, Cost::kl), some = pareto_front(narrow, Cost::kl);
  for (size_t i = 1; i < full.size(); ++i) {
    EXPECT_LT(full[i - 1].bytes, full[i].bytes);
    EXPECT_GT(full[i - 1].kl, full[i].kl);
  }
  for (const Plan& p : some) EXPECT_LE(best_within_bytes(full, p.bytes)->kl, p.kl * (1 + 1e-12));
}

// Times resemble those of kernels: they grow with bytes, but some formats are slow for their size. Groups of one
// shape have the same time, as layers do.
SensitivityTable timed_table(uint64_t seed, int groups, const std::vector<int>& widths) {
  SensitivityTable t = random_table(seed, groups, widths);
  Rng rng(seed + 1000);
  std::vector<std::vector<double>> slow(4, std::vector<double>(widths.size()));
  for (auto& shape : slow)
    for (double& factor : shape) factor = 0.5 + rng.uniform();
  t.decode = {1e-3, 512, "test"};
  for (Group& g : t.groups)
    for (size_t o = 0; o < g.options.size(); ++o)
      g.options[o].seconds =
          1e-9 * static_cast<double>(g.options[o].bytes) * slow[static_cast<size_t>(g.parameters / 1024)][o];
  return t;
}

// Returns the least amount of a quantity among the plans within all limits, or infinity if there is no such plan.
double brute_force(const SensitivityTable& t, Quantity least, std::span<const Limit> limits) {
  double best = std::numeric_limits<double>::infinity();
  for_every_plan(t, [&](const Plan& p) {
    for (const Limit& l : limits)
      if (amount(p, l.quantity) > l.most) return;
    best = std::min(best, amount(p, least));
  });
  return best;
}

// The solver finds the true minimum of any quantity within two limits at a time, says that it is proven, and finds
// nothing if no plan is within the limits.
TEST(Solve, TwoLimitsAgreeWithBruteForce) {
  int within = 0, without = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const SensitivityTable t = timed_table(seed, 5, {2, 3, 4, 8});
    Rng rng(seed);
    // The limits lie a little above the amounts of some random plan, which is not the best one.
    const auto limit = [&](Quantity q, double room) {
      std::vector<int> choice;
      for (size_t g = 0; g < t.groups.size(); ++g) choice.push_back(static_cast<int>(rng.below(4)));
      return Limit{q, amount(evaluate(t, choice), q) * (1 + room * rng.uniform())};
    };
    for (const auto& [least, first, second] :
         std::vector<std::tuple<Quantity, Quantity, Quantity>>{{Quantity::kl, Quantity::bytes, Quantity::seconds},
                                                               {Quantity::bytes, Quantity::kl, Quantity::seconds},
                                                               {Quantity::seconds, Quantity::kl, Quantity::bytes}}) {
      const Limit limits[] = {limit(first, 0.3), limit(second, 0.3)};
      const double best = brute_force(t, least, limits);
      const auto found = least_within(t, least, limits);
      ASSERT_EQ(found.has_value(), best < 1e300) << seed;
      ++(found ? within : without);
      if (!found) continue;
      // Weights are counted in units of 2^-40 of the range that they can have.
      for (const Limit& l : limits) EXPECT_LE(amount(found->plan, l.quantity), l.most * (1 + 1e-11));
      EXPECT_NEAR(amount(found->plan, least), best, 1e-13 * best);
      EXPECT_EQ(found->bound, amount(found->plan, least));
    }
  }
  EXPECT_GT(within, 50);
  EXPECT_GT(without, 5);
}

// When only few partial plans are kept, the answer may be worse, but it is still within the limits and its bound
// holds.
TEST(Solve, TheBoundHoldsWherePartialPlansAreLeftOut) {
  int unproven = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const SensitivityTable t = timed_table(seed, 6, {2, 3, 4, 5});
    const Plan middle = evaluate(t, {1, 2, 1, 2, 1, 2});
    const Limit limits[] = {{Quantity::bytes, static_cast<double>(middle.bytes)}, {Quantity::seconds, middle.seconds}};
    const double best = brute_force(t, Quantity::kl, limits);
    const auto found = least_within(t, Quantity::kl, limits, 2);
    ASSERT_TRUE(found);
    EXPECT_LE(found->plan.bytes, middle.bytes);
    EXPECT_LE(found->plan.seconds, middle.seconds * (1 + 1e-11));
    EXPECT_GE(found->plan.kl, best * (1 - 1e-13));
    EXPECT_LE(found->bound, best * (1 + 1e-13));
    unproven += found->bound < found->plan.kl;
  }
  EXPECT_GT(unproven, 0);
}

// The front holds every plan that is fast enough and that no other such plan beats in bytes and KL.
TEST(Solve, FrontWithinATimeAgreesWithBruteForce) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const SensitivityTable t = timed_table(seed, 5, {2, 3, 4, 8});
    const double slowest = evaluate(t, std::vector<int>(5, 3)).seconds;
    for (double share : {0.2, 0.4, 0.7, 2.0}) {
      const double seconds = t.decode->seconds + share * (slowest - t.decode->seconds);
      std::map<int64_t, double> least;  // by bytes
      for_every_plan(t, [&](const Plan& p) {
        if (p.seconds > seconds) return;
        double& kl = least.try_emplace(p.bytes, p.kl).first->second;
        kl = std::min(kl, p.kl);
      });
      std::vector<std::pair<int64_t, double>> expected;
      for (const auto& [bytes, kl] : least)
        if (expected.empty() || kl < expected.back().second * (1 - 1e-13)) expected.emplace_back(bytes, kl);
      const FrontWithin front = front_within(t, Cost::kl, seconds, 0);
      EXPECT_EQ(front.gap, 0);
      ASSERT_EQ(front.plans.size(), expected.size()) << seed << " " << share;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(front.plans[i].bytes, expected[i].first);
        EXPECT_NEAR(front.plans[i].kl, expected[i].second, 1e-13 * expected[i].second);
      }
      // A coarser front is a part of the full one and includes its ends.
      const FrontWithin coarse = front_within(t, Cost::kl, seconds, 0.1);
      if (expected.empty()) continue;
      EXPECT_EQ(coarse.plans.front().bytes, expected.front().first);
      EXPECT_EQ(coarse.plans.back().bytes, expected.back().first);
    }
    EXPECT_TRUE(front_within(t, Cost::kl, t.decode->seconds / 2, 0).plans.empty());
  }
}

// A table with as many groups and formats as a real model is solved to proven optimality, within a moment.
TEST(Solve, ATableOfAModelsSizeIsSolvedExactly) {
  const SensitivityTable t = timed_table(7, 200, {2, 3, 4, 5, 6, 7, 8});
  const Limit half{Quantity::seconds,
                   t.decode->seconds + 0.5 * (evaluate(t, std::vector<int>(200, 6)).seconds - t.decode->seconds)};
  const auto fastest = least_within(t, Quantity::kl, std::span(&half, 1));
  ASSERT_TRUE(fastest);
  EXPECT_EQ(fastest->bound, fastest->plan.kl);
  const FrontWithin front = front_within(t, Cost::kl, half.most, 0.01);
  EXPECT_EQ(front.gap, 0);
  // If the time limit binds, more bytes than the best plan's buy nothing. Below that, the front is no better than the
  // front without a time limit.
  EXPECT_EQ(front.plans.back().bytes, fastest->plan.bytes);
  const std::vector<Plan> free = pareto_front(t, Cost::kl);
  for (const Plan& p : front.plans) EXPECT_GE(p.kl, best_within_bytes(free, p.bytes)->kl * (1 - 1e-12));
}

TEST(Plan, JsonRoundTripsAndRefusesNonsense) {
  const SensitivityTable t = random_table(1, 4, {2, 4, 8});
  EXPECT_EQ(to_json(table_from_json(to_json(t))), to_json(t));
  const SensitivityTable timed = timed_table(1, 4, {2, 4, 8});
  EXPECT_EQ(to_json(table_from_json(to_json(timed))), to_json(timed));
  const Plan p = uniform_plan(t, 4);
  const nlohmann::json plan = to_json(t, p);
  for (const Group& g : t.groups) EXPECT_EQ(plan["groups"][g.name], "int4g128z");
  EXPECT_EQ(plan["groups"].size(), t.groups.size());
  EXPECT_EQ(plan["bytes"], p.bytes);
  EXPECT_THROW(table_from_json(nlohmann::json::object()), Error);
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

// This simulates measurements: the true KL is 1.3 times the predicted one, EAR is 1 - 0.5 sqrt(KL), and intervals are
// +-2%.
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

  // If the search is told the ratio of measured to predicted KL, its first trial is nearly right. It also does not
  // try to beat a plan by less than a tenth of its size.
  const Target target{0.9, std::nullopt};
  const SearchResult exact = search_to_target(t, front, target, {.max_trials = 12}, world),
                     rough =
                         search_to_target(t, front, target, {.max_trials = 12, .rho = 1.3, .resolution = 0.1}, world);
  ASSERT_GE(rough.best, 0);
  EXPECT_LT(rough.trials.size(), exact.trials.size());
  EXPECT_DOUBLE_EQ(rough.trials.front().rho, 1.3);

  // Trials for another target say the same: the first trial is then chosen by them, and one is enough.
  const SearchResult other = search_to_target(t, front, {0.8, std::nullopt}, {.max_trials = 2}, world),
                     informed = search_to_target(t, front, target, {.max_trials = 1, .known = other.trials}, world);
  ASSERT_EQ(informed.trials.size(), 1u);
  EXPECT_NEAR(informed.trials.front().rho, 1.3, 1e-12);
  ASSERT_TRUE(informed.predicted.has_value());
  EXPECT_EQ(informed.predicted->bytes, exact.trials[static_cast<size_t>(exact.best)].plan.bytes);
  EXPECT_LE(static_cast<double>(rough.trials[static_cast<size_t>(rough.best)].plan.bytes),
            1.12 * static_cast<double>(exact.trials[static_cast<size_t>(exact.best)].plan.bytes));
}

// The point lost a tenth of 300 questions, and its alpha is known within a factor of 1.5. The check asks twice as
// many questions.
const TaskCalibration kPoint{{0.02, {0.018, 0.022}}, 0.016, {0.9, {0.87, 0.93}}, 0.004, 2};

TEST(TaskCalibration, AlphaCarriesBothIntervals) {
  const Estimate alpha = kPoint.alpha();
  EXPECT_NEAR(alpha.value, 5, 1e-12);
  EXPECT_NEAR(kPoint.rho(), 1.25, 1e-12);
  // Alpha's interval is wider than the recovery's interval alone would make it, and narrower than with both
  // quantities at their worst ends.
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
    EXPECT_LT(kl, drop / kPoint.alpha().value);  // the paper's line alone would allow more
  }
  EXPECT_EQ(kPoint.reach(0), kPoint.unchanged);
  EXPECT_NEAR(kPoint.reach(0.1), 0.03 / std::sqrt(2.0), 1e-12);
}

TEST(TaskCalibration, RefusesWhatTheQuestionsCannotShow) {
  // This number of questions is too small to show the drop even for an unchanged model.
  EXPECT_THROW(kl_allowed(kPoint, 0.004, 600), Error);
  EXPECT_THROW(kl_allowed(kPoint, 0.3, 600), Error);  // this drop lies beyond the calibration point
  TaskCalibration same = kPoint;
  same.recovery = {0.99, {0.97, 1.01}};
  EXPECT_THROW(kl_allowed(same, 0.05, 600), Error);
  same = kPoint;
  same.kl = {0, {0, 0}};
  EXPECT_THROW(kl_allowed(same, 0.05, 600), Error);
}

TEST(Evolve, NeverBreaksTheLimitAndShrinks) {
  const SensitivityTable t = random_table(11, 20, {2, 3, 4, 5, 6, 7, 8});
  const Plan start = uniform_plan(t, 8);
  EvolveOptions o;
  o.kl_limit = uniform_plan(t, 5).kl;
  o.generations = 150;
  int calls = 0;
  const Evolution e = evolve(t, start, o, [&](const Plan& p, double) { return ++calls, p.kl; });
  EXPECT_EQ(calls, e.measurements);
  EXPECT_LE(e.kl, o.kl_limit);
  EXPECT_LT(e.best.bytes, start.bytes);
  // The exact optimum is a lower bound for any search.
  const std::vector<Plan> front = pareto_front(t, Cost::kl);  // ascending bytes
  const auto smallest = std::find_if(front.begin(), front.end(), [&](const Plan& p) { return p.kl <= o.kl_limit; });
  ASSERT_NE(smallest, front.end());
  EXPECT_GE(e.best.bytes, smallest->bytes);
  // The path leads from the start to the best plan. No plan is larger than the one before, and one of the same size
  // has a lower KL.
  EXPECT_EQ(e.path.front().choice, start.choice);
  EXPECT_EQ(e.path.back().choice, e.best.choice);
  for (size_t i = 1; i < e.path.size(); ++i) {
    EXPECT_LE(e.path[i].bytes, e.path[i - 1].bytes);
    if (e.path[i].bytes == e.path[i - 1].bytes) {
      EXPECT_LT(e.path[i].kl, e.path[i - 1].kl);
    }
    EXPECT_DOUBLE_EQ(e.path[i].kl, evaluate(t, e.path[i].choice).kl);
  }
}

// The search takes the same path if every KL is a hundred thousand times smaller, because it does not depend on the
// scale of the KL.
TEST(Evolve, KnowsNoScale) {
  SensitivityTable t = random_table(12, 20, {2, 3, 4, 5, 6, 7, 8});
  const Plan start = uniform_plan(t, 8);
  EvolveOptions o;
  o.kl_limit = uniform_plan(t, 5).kl;
  const Evolution large = evolve(t, start, o, [&](const Plan& p, double) { return p.kl; });
  o.kl_limit *= 1e-5;
  const Evolution small = evolve(t, start, o, [&](const Plan& p, double) { return p.kl * 1e-5; });
  EXPECT_EQ(large.best.choice, small.best.choice);
  EXPECT_EQ(large.measurements, small.measurements);
}

// If no smaller plan keeps the limit, the search ends by itself with the best arrangement that swaps can find: of two
// groups of the same size and two formats, the group that costs less gets the narrow format.
TEST(Evolve, EndsByItselfAndKeepsImprovementsOfTheSameSize) {
  const FormatSpec narrow{Kind::integer, 4, 128, false, ScaleKind::f16},
      wide{Kind::integer, 8, 128, false, ScaleKind::f16};
  SensitivityTable t;
  for (double cost : {0.3, 0.1})
    t.groups.push_back(
        {"g", {"x"}, 1000, {{.format = narrow, .bytes = 500, .kl = cost}, {.format = wide, .bytes = 1000}}});
  EvolveOptions o;
  o.kl_limit = 0.35;
  o.generations = 1000;
  const Evolution e = evolve(t, evaluate(t, {0, 1}), o, [&](const Plan& p, double) { return p.kl; });
  EXPECT_EQ(e.best.choice, (std::vector<int>{1, 0}));
  EXPECT_LT(e.generations, 20);
}

}  // namespace
}  // namespace fidelio
