// This file tests drafts: rejection sampling, the cost of steps, the controller, and drafts looked up in the text.
#include "engine/drafts/controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/drafts/lookup.h"
#include "engine/drafts/rejection.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

TokenDistribution distribution(std::vector<int32_t> ids, std::vector<uint64_t> weights) {
  TokenDistribution d;
  d.total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  d.ids = std::move(ids);
  d.weights = std::move(weights);
  return d;
}

// Draws a million tokens and compares them with the model's distribution by chi-square. The drafts are close to the
// model, far from it, have tokens that the model lacks, lack tokens that it has, or are certain. The acceptance is
// compared with sum min(p, q).
TEST(Rejection, GivesTheModelsDistributionWhateverWasDrafted) {
  const TokenDistribution p = distribution({0, 2, 3, 5, 7, 8}, {400, 50, 300, 5, 200, 45});
  const TokenDistribution qs[] = {p, distribution({0, 2, 3, 5, 7, 8}, {350, 90, 280, 20, 230, 30}),
                                  distribution({1, 2, 3, 9}, {10, 500, 300, 190}), distribution({4}, {1})};
  constexpr int kDraws = 1000000;
  for (int which = 0; which < 5; ++which) {
    const TokenDistribution* q = which < 4 ? &qs[which] : nullptr;
    Rng random(static_cast<uint64_t>(which) + 1);
    std::vector<int64_t> seen(10);
    int64_t accepted = 0;
    for (int i = 0; i < kDraws; ++i) {
      int32_t drafted = 3;
      if (q) {
        uint64_t at = random.below(q->total);
        size_t k = 0;
        while (at >= q->weights[k]) at -= q->weights[k++];
        drafted = q->ids[k];
      }
      const Judgement j = judge(p, q, drafted, random);
      EXPECT_EQ(j.accepted ? j.id : drafted, drafted);
      accepted += j.accepted;
      ++seen[static_cast<size_t>(j.id)];
    }
    double chi = 0;
    for (size_t i = 0; i < p.ids.size(); ++i) {
      const double expected = kDraws * static_cast<double>(p.weights[i]) / static_cast<double>(p.total);
      const double off = static_cast<double>(std::exchange(seen[static_cast<size_t>(p.ids[i])], 0)) - expected;
      chi += off * off / expected;
    }
    EXPECT_LT(chi, 20.5) << which;  // with 5 degrees of freedom this is exceeded once in a thousand times
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), 0) << which;  // no token is drawn that p lacks
    const double ear = overlap(p, q, 3);
    EXPECT_NEAR(static_cast<double>(accepted) / kDraws, ear, 4 * std::sqrt(ear * (1 - ear) / kDraws) + 1e-9) << which;
  }
}

TEST(StepCost, FindsFixedAndRowCostsOfNoisySteps) {
  StepCost cost;
  EXPECT_FALSE(cost.known());
  Rng rng(2);
  for (int i = 0; i < 400; ++i) {
    const double rows = 1 + static_cast<double>(rng.below(9));
    cost.add(rows, 0.010 + 0.001 * rows + 0.0005 * rng.normal());
  }
  // There are 143 effective steps, whose rows have a variance of 6.7. The slope's standard error is .0005 / sqrt(143
  // x 6.7), and the tolerance is four of those.
  EXPECT_NEAR(cost.per_row(), 0.001, 7e-5);
  EXPECT_NEAR(cost.of(5), 0.015, 2e-4);
}

// A ninth row needs other kernels, which take a quarter longer. Eight rows more cost almost nothing.
TEST(StepCost, KnowsTheStairsOfWhatItHasSeen) {
  StepCost cost;
  const auto took = [](double rows) { return rows <= 8 ? 0.010 : 0.0125 + 1e-5 * rows; };
  for (int i = 0; i < 40; ++i)
    // The first step of each kind is slow, as if it were recorded.
    for (const double rows : {1.0, 8.0, 9.0, 16.0}) cost.add(rows, i == 0 ? 0.1 : took(rows));
  for (const double rows : {1.0, 8.0, 9.0, 16.0}) EXPECT_NEAR(cost.of(rows), took(rows), 1e-12) << rows;
  EXPECT_FALSE(cost.seen(12));
  EXPECT_GE(cost.of(12), took(9));
  EXPECT_FALSE(cost.seen(1e6));
}

// There are eight sequences. One or two of them find something by lookup that is right half of the time. A line
// fitted to the costs would predict that verifying it pays.
TEST(Controller, RefusesDraftsThatDoNotPayTogether) {
  SpeculationOptions options;
  options.lookup = true;
  Controller controller(options, 1);
  Rng rng(5);
  double seconds = 0;
  int64_t tokens = 0;
  const auto took = [](int64_t rows) { return rows <= 8 ? 0.010 : 0.0125; };
  for (int cycle = 0; cycle < 4000; ++cycle) {
    controller.begin_cycle(8, 8);
    const auto drafts = static_cast<int64_t>(rng.below(3));
    const int64_t kept = controller.worth_together(std::vector<double>(static_cast<size_t>(drafts), 0.5));
    int64_t made = 8;
    for (int64_t i = 0; i < kept; ++i) made += rng.uniform() < 0.5;
    controller.verified(8 + kept, took(8 + kept), true);
    controller.end_cycle(made);
    seconds += took(8 + kept);
    tokens += made;
  }
  EXPECT_GT(static_cast<double>(tokens) / seconds * took(8) / 8, 0.99);
}

// Returns the speedup over plain steps for eight sequences that find up to `most` tokens by lookup. The first two
// steps with each number of rows take nine steps' time, as if they were recorded.
double speedup_with_recording(int64_t most, double right) {
  SpeculationOptions options;
  options.lookup = true;
  Controller controller(options, 1);
  Rng rng(6);
  std::vector<int> seen(100);
  double steps = 0, tokens = 0;
  for (int cycle = 0; cycle < 4000; ++cycle) {
    controller.begin_cycle(8, 8);
    const std::vector<double> reached(rng.below(static_cast<uint64_t>(most) + 1), right);
    const int64_t kept = controller.worth_together(reached);
    int64_t made = 8;
    for (int64_t i = 0; i < kept; ++i) made += rng.uniform() < right;
    const double took = 1 + 0.002 * static_cast<double>(kept) + (seen[static_cast<size_t>(kept)]++ < 2 ? 8 : 0);
    controller.verified(8 + kept, 0.001 * took, true);
    controller.end_cycle(made);
    steps += took, tokens += static_cast<double>(made) / 8;
  }
  return tokens / steps;
}

// The accounts hold 16 steps at first and earn a hundredth a cycle, which is 40 in all. The last steps may overdraw
// them by nine each, and the first two plain steps, which are not due to drafting, take 16. Drafts that pay in the
// end are still made: twelve rows on average, of which half are right, give 1.75 tokens in 1.024 steps, less 24
// numbers of rows that cost 16 steps each.
TEST(Controller, LosesNoMoreThanItsAccountOnStepsThatAreRecorded) {
  EXPECT_GT(speedup_with_recording(70, 0.02), 1 - (56 + 18 + 16) / 4000.0);
  EXPECT_GT(speedup_with_recording(24, 0.5), 0.95 * 1.75 / (1.024 + 24 * 16 / 4000.0));
}

TEST(Lookup, ProposesWhatFollowedTheNewestOccurrence) {
  Lookup lookup;
  int64_t matched = 0;
  std::vector<int32_t> history = {9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 6, 7, 1, 2};
  EXPECT_TRUE(lookup.propose(history, 4, matched).empty());
  history.push_back(3);
  const auto found = lookup.propose(history, 4, matched);
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), (std::vector<int32_t>{6, 7, 1, 2}));
  EXPECT_EQ(matched, 3);
  EXPECT_EQ(lookup.propose(history, 1, matched).size(), 1u);
}

// A simulation with its own clock. A draft step costs `share` of a plain step, and each verified row `row` of one. A
// draft is right with probability `right`, except for the first `wrong_at_first` drafts. Steps take twice as long in
// the first `slow_at_first` cycles, and the first plain step after a draft takes `cold` times as long. One step in
// twenty is delayed by `held_up` plain steps. The thirtieth cycle with drafts is delayed once by `stopped` plain
// steps, which are reported to the controller but not counted in the result. With `end_one_by_one`, all sequences run
// for 200 cycles; then one ends after every four cycles, and only that phase counts. The result is the number of
// tokens made in the time of a plain step.
struct Simulated {
  double share = 0.5, right = 0.8, row = 0.02;
  int64_t outputs = 1, slow_at_first = 0, wrong_at_first = 0;
  double cold = 1;
  bool end_one_by_one = false;
  double held_up = 0, stopped = 0;

  static constexpr int64_t kWhole = 200, kEach = 4;
  int64_t cycles() const { return end_one_by_one ? kWhole + kEach * (outputs - 1) : 4000; }
  int64_t first_that_counts() const { return end_one_by_one ? kWhole : slow_at_first; }
  int64_t outputs_in(int64_t cycle) const {
    return end_one_by_one && cycle >= kWhole ? outputs - 1 - (cycle - kWhole) / kEach : outputs;
  }
};
double simulated_speedup(const Simulated& s, uint64_t seed = 3) {
  int64_t judged = 0, with_drafts = 0;
  RunnerOptions runner_options;
  FakeRunner runner({}, runner_options);
  SpeculationOptions options;
  options.draft = &runner;
  options.most = 8;
  Controller controller(options, s.share);
  Rng rng(seed), delays(seed + 100);
  double seconds = 0, plain_seconds = 0;
  double pace = 0.01;
  bool after_drafts = false;
  const auto cost = [&](double of, double rows) { return of * (1 - s.row + s.row * rows) * pace; };
  for (int64_t cycle = 0; cycle < s.cycles(); ++cycle) {
    pace = cycle < s.slow_at_first ? 0.02 : 0.01;
    if (cycle == s.first_that_counts()) seconds = 0, plain_seconds = 0;
    const int64_t outputs = s.outputs_in(cycle);
    controller.begin_cycle(outputs, outputs);
    std::vector<Controller::Output> all(static_cast<size_t>(outputs));
    std::vector<std::vector<double>> reached(all.size());
    for (int step = 0; step < options.most && controller.continues(all); ++step) {
      int64_t rows = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].drafts) continue;
        ++rows;
        all[i].reached *= controller.rate(Controller::Source::draft, false, 0.8);
        reached[i].push_back(all[i].reached);
      }
      if (rows == 0) break;
      const double took = cost(s.share, static_cast<double>(rows));
      controller.drafted(rows, took);
      seconds += took;
    }
    int64_t rows = 0, made = 0;
    for (auto& r : reached) {
      const int64_t drafts = controller.worth_verifying(r);
      rows += drafts + 1;
      ++made;
      for (int64_t i = 0; i < drafts; ++i) {
        const bool accepted = judged++ >= s.wrong_at_first && rng.uniform() < s.right;
        controller.judged(Controller::Source::draft, false, 0.8, accepted);
        if (!accepted) break;
        ++made;
      }
    }
    double took = cost(rows == outputs && after_drafts ? s.cold : 1, static_cast<double>(rows));
    if (delays.uniform() < 0.05) took += s.held_up * pace;
    after_drafts = rows > outputs;
    with_drafts += after_drafts;
    controller.verified(rows, took + (after_drafts && with_drafts == 30 ? s.stopped * pace : 0), true);
    controller.end_cycle(made);
    seconds += took;
    const auto n = static_cast<double>(outputs);
    plain_seconds += static_cast<double>(made) / n * cost(1, n);
  }
  return plain_seconds / seconds;
}

TEST(Controller, DraftsWhereItPaysAndCostsNothingWhereItDoesNot) {
  // The best fixed length gives (1 - a^(g+1)) / (1 - a) / (g r + 1 + .02 g): 2.08 for .95 at r = .3, and 1.33 for .8
  // at .4.
  EXPECT_GT(simulated_speedup({.share = 0.3, .right = 0.95}), 1.7);
  EXPECT_GT(simulated_speedup({.share = 0.4, .right = 0.80}), 1.2);
  EXPECT_GT(simulated_speedup({.share = 0.4, .right = 0.80, .outputs = 8}), 1.0);
  for (const int64_t outputs : {1, 8})
    for (const auto& [share, right] : {std::pair{0.9, 0.5}, {0.95, 0.8}, {0.5, 0.1}})
      EXPECT_GT(simulated_speedup({.share = share, .right = right, .outputs = outputs}), 0.98)
          << share << " " << right << " " << outputs;
}

// A draft that pays is found even if the model's first steps take long, or if its own first tries fail. A draft that
// does not pay is not made merely because plain steps once took long.
TEST(Controller, DoesNotJudgeByWhatWasOnlyAtFirst) {
  // Two drafts give 2.57 tokens in 2.04 steps, which is 1.26, the most of all fixed numbers.
  EXPECT_GT(simulated_speedup({.share = 0.5, .right = 0.85, .slow_at_first = 100}), 1.2);
  EXPECT_GT(simulated_speedup({.share = 0.5, .right = 0.85, .wrong_at_first = 5}), 1.15);
  // This is 1.5 tokens in 1 + .5 + .3 steps: .83 of plain decoding, and 1.67 of a plain step that takes twice as
  // long.
  EXPECT_GT(simulated_speedup({.share = 0.5, .right = 0.5, .row = 0.3, .slow_at_first = 6}), 0.98);
  // The same holds if the plain steps between drafts take longer than those that follow other plain steps.
  EXPECT_GT(simulated_speedup({.share = 0.5, .right = 0.6, .row = 0.3, .slow_at_first = 6, .cold = 1.5}), 0.98);
}

// A draft for two of two sequences gives 1.9 tokens in .64 steps, which pays. If four run, two of them still reading
// prompts, it costs more than their plain steps will later, when they make 2.45 tokens in that time.
TEST(Controller, SparesThoseWhosePromptsAreReadBeside) {
  RunnerOptions runner_options;
  FakeRunner runner({}, runner_options);
  SpeculationOptions options;
  options.draft = &runner;
  Controller controller(options, 0.6);
  for (int cycle = 0; cycle < 40; ++cycle)
    for (const int64_t n : {2, 4}) {
      controller.begin_cycle(n, n);
      controller.verified(n, 0.01 * (1 + 0.015 * static_cast<double>(n)), true);
      controller.end_cycle(n);
      controller.drafted(n, 0.006 * (1 + 0.015 * static_cast<double>(n)));
      controller.judged(Controller::Source::draft, false, 0.8, true);
    }
  for (const int64_t running : {2, 4}) {
    controller.begin_cycle(2, running);
    std::vector<Controller::Output> outputs(2);
    EXPECT_EQ(controller.continues(outputs), running == 2) << running;
    controller.verified(2, 0.0103, true);
    controller.end_cycle(2);
  }
}

// The best number of drafts gives 7.46 tokens in 5.2 steps for .98 (seven drafts) and 2.77 in 2.19 for .92 (two):
// 1.435 and 1.264. If one step in twenty takes 1.7 times as long, plain decoding loses 3.5% of its speed, and a
// longer cycle loses less.
TEST(Controller, GoesOnWhereStepsAreHeldUp) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6})
    for (const double held_up : {0.0, 0.7})
      for (const double stopped : {0.0, 500.0}) {
        const auto speedup = [&](double right) {
          return simulated_speedup(
              {.share = 0.58, .right = right, .row = 0.015, .held_up = held_up, .stopped = stopped}, seed);
        };
        EXPECT_GT(speedup(0.98), 0.97 * 1.435 * (1 - .05 * held_up)) << seed << " " << held_up << " " << stopped;
        EXPECT_GT(speedup(0.92), 0.97 * 1.264 * (1 - .05 * held_up)) << seed << " " << held_up << " " << stopped;
      }
}

// Drafts that pay for sixteen sequences go on while fifteen, fourteen and thirteen are left, although no plain step
// of so many was ever timed. (With twelve and fewer, some plain steps are timed first, and these sequences end too
// soon to gain from it.)
TEST(Controller, GoesOnAsSequencesEndOneByOne) {
  const double all = simulated_speedup({.share = 0.4, .right = 0.9, .outputs = 16});
  const double ending = simulated_speedup({.share = 0.4, .right = 0.9, .outputs = 16, .end_one_by_one = true});
  EXPECT_GT(ending, 1 + 0.2 * (all - 1)) << all;
}

}  // namespace
}  // namespace fidelio
