// The ladder of plans that are tested on the certificate's documents, and its two levels (certificate/ladder_step.h).
//
// It is fixed when trials have found a plan, before the first of its own tests:
//
//   the plan    found by trials, which aim at what nine certificates of ten will hold
//   smaller     steps of kRung bits a weight down the front: what the trials left out of caution is won back, until a
//               plan fails
//   larger      a plan that surely holds, one that most likely does and one that may, for where the trials' documents
//               were too kind; in most runs they are neither built nor tested
#include <algorithm>
#include <cmath>
#include <span>

#include "compress/search/search.h"

namespace fidelio {
namespace {

constexpr double kSure = 1, kLikely = 0.25, kMaybe = 0.1, kRung = 0.05;  // bits a weight
constexpr int kMostRungs = 12;
// Building a plan takes long on a CPU, and tuning one takes longer than all the rest: such ladders have fewer plans.
constexpr double kSlowRung = 0.1;
constexpr int kMostSlowRungs = 3;

}  // namespace

Ladder ladder_of(const std::vector<Plan>& front, const Plan& start, int64_t parameters, const LadderShape& shape) {
  const auto bytes_of = [&](double bits) { return static_cast<int64_t>(bits * static_cast<double>(parameters) / 8); };
  Ladder ladder;
  for (const double bits : shape.larger) {
    const auto larger = std::find_if(front.begin(), front.end(), [&](const Plan& p) {
      return p.bytes > start.bytes && p.bytes >= start.bytes + bytes_of(bits);
    });
    const Plan& plan = larger != front.end() ? *larger : front.back();
    if (plan.bytes > start.bytes && (ladder.larger.empty() || plan.bytes < ladder.larger.back().bytes))
      ladder.larger.push_back(plan);
  }
  ladder.expected.push_back(start);
  for (int i = 1; i <= shape.most; ++i) {
    std::optional<Plan> smaller = best_within_bytes(front, start.bytes - bytes_of(i * shape.step));
    if (!smaller) break;
    if (smaller->bytes < ladder.expected.back().bytes) ladder.expected.push_back(std::move(*smaller));
  }
  return ladder;
}

Ladder Search::ladder(const Plan& start) {
  int64_t parameters = 0;
  for (const Group& g : table_.groups) parameters += g.parameters;
  LadderShape shape{{kSure, kLikely, kMaybe}, kRung, kMostRungs};
  if (desk_.job.tune || !desk_.job.on_gpu) shape.step = kSlowRung, shape.most = kMostSlowRungs;
  if (pace_.asked()) shape.most = 0;  // the front has plans that are foreseen to be fast enough; these were not timed
  return ladder_of(front_, start, parameters, shape);
}

// Tests the plan and smaller ones, or larger ones where it fails, and returns the last that held. With a rate a larger
// plan than the one that was found may be too slow, by a clock that has not seen the documents; it is then left out.
Plan Search::descend(const Plan& start) {
  const Ladder plans = ladder(start);
  std::optional<Plan> held;
  FidelityReport certified;
  Measurement last;
  const auto go_down = [&](std::span<const Plan> rungs, double level) {
    for (const Plan& plan : rungs) {
      builder_.build(plan);
      if (plan.bytes > start.bytes && !pace_.keeps(plan)) continue;
      last = test(plan, level);
      if (!meets(last, found_.target)) return;
      held = plan;
      certified = std::move(found_.certified);
    }
  };
  go_down(plans.expected, kExpectedLevel);
  if (!held) go_down(plans.larger, kLargerLevel);
  check(held.has_value(),
        "the plan that met the target where plans are tried does not on the certificate's documents, nor does a larger "
        "one (EAR {:.5f}, lower bound {:.5f}). Give more documents (--text), so that both sets know more, or ask less",
        last.ear.value, last.ear.ci95.low);
  builder_.build(*held);
  found_.certified = measurer_.recommended() ? measurer_.certificate(true) : std::move(certified);
  return *held;
}

}  // namespace fidelio
