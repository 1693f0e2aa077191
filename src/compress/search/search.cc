#include "compress/search/search.h"

#include <algorithm>
#include <cmath>

#include "compress/certificate/judge.h"

namespace fidelio {
namespace {

// A plan that is quantised as a whole has only this share of the KL of its candidates put together: .75 was measured on
// quill-1m, .90 to .92 on quill-26m. Only the first trial depends on it, later ones use what was measured.
constexpr double kBuiltRatio = 0.8;
// Tuning leaves this share of a plan's KL. It is used until a plan of this model was tuned: 25% less at 4 bits, more
// below.
constexpr double kTunedRatio = 0.75;
double foreseen_ratio(const Job& job) { return kBuiltRatio * (job.tune ? kTunedRatio : 1); }

// Returns how many times its KL a plan could have and still meet the target. 1 - EAR goes by the square root of KL.
double room(const Measurement& m, const Target& t) {
  return std::min({t.kl ? *t.kl / m.kl.ci95.high : 1e300,
                   t.ear ? std::pow((1 - *t.ear) / (1 - m.ear.ci95.low), 2) : 1e300,
                   t.top1 ? std::pow((1 - *t.top1) / (1 - m.top1.ci95.low), 2) : 1e300});
}

}  // namespace

std::vector<Plan> plans_to_try(Desk& desk, const SensitivityTable& table, PlanEvolution& evolution, const Pace& pace) {
  if (pace.asked()) return pace.front(desk.targets.front());
  if (desk.job.search != SearchKind::evolve) return pareto_front(table, desk.job.allocate_by);
  double loosest = 0;
  for (const Target& t : desk.targets) loosest = std::max(loosest, t.allowed_kl(table.ear_constant));
  return evolution.front(loosest / foreseen_ratio(desk.job));
}

Search::Search(Desk& desk, Runners& runners, const SensitivityTable& table, PlanEvolution& evolution, Builder& builder,
               Pace& pace)
    : desk_(desk),
      runners_(runners),
      measurer_(desk, runners),
      table_(table),
      pace_(pace),
      front_(plans_to_try(desk, table, evolution, pace)),
      evolution_(evolution),
      builder_(builder),
      ratio_(foreseen_ratio(desk.job)) {}

Found Search::run(const Target& target) {
  found_ = {};
  found_.target = target;
  pace_.begin();
  if (!desk_.job.plan_file.empty()) {
    found_.plan = given();
  } else if (desk_.budget.given() || desk_.job.rate_alone()) {
    found_.plan = within_budget();
  } else if (desk_.job.accuracy_drop == 0) {
    found_.plan = choose();
  } else {
    const std::unique_ptr<TaskJudge> judge = desk_.world.make_judge(desk_.job.out + ".journal");
    found_.plan = keep_accuracy(*judge);
  }
  found_.rate = pace_.measured();
  return found_;
}

// Measures a plan on the documents of adjustment, judged as the promise says. It returns what the test on the
// certificate's documents is foreseen to say.
Measurement Search::trial(const Plan& plan, const std::string& what) {
  const Built& built = builder_.build(plan);
  if (desk_.job.tune) {
    ratio_ = kBuiltRatio * built.gain();
    desk_.note(fmt::format("tuned: KL {:+.1f}% on text of the tuning's own", 100 * (built.gain() - 1)));
  }
  const std::vector<DocumentFidelity> documents = documents_of(measurer_.adjustment(), desk_.texts.adjustment);
  const Judged judged = judge(documents, desk_.job.promise);
  const Measurement& m = judged.measured;
  const double predicted = predicted_ear(table_, plan, ratio_);
  desk_.note(
      fmt::format("{} {:.3f} bits a weight: EAR {:.5f} [{:.5f}, {:.5f}] ({}), KL {:.6f}; EAR {:.5f} was predicted",
                  what, bits_per_parameter(table_, plan), m.ear.value, m.ear.ci95.low, m.ear.ci95.high, judged.worst,
                  m.kl.value, predicted));
  found_.trials.push_back({bits_per_parameter(table_, plan), m.kl.value, m.ear, predicted});
  return foreseen(documents, desk_.job.promise, confidence_at(kExpectedLevel), desk_.texts.certificate.counts());
}

// Tests the plan in force on the documents of the certificate.
Measurement Search::test(const Plan& plan, double level) {
  found_.certified = measurer_.certificate(!desk_.job.has_target());  // The last plan of a ladder is certified later.
  const Judged judged =
      judge(documents_of(found_.certified, desk_.texts.certificate), desk_.job.promise, confidence_at(level));
  const Measurement& m = judged.measured;
  const double bits = bits_per_parameter(table_, plan);
  const bool met = meets(m, found_.target), asked = desk_.job.has_target();
  if (asked) found_.ladder.push_back({bits, m.ear, m.kl, m.top1, met, level});
  desk_.note(fmt::format("certificate {}{:.3f} bits a weight: EAR {:.5f} [{:.5f}, {:.5f}] ({}), KL {:.6f}{}",
                         asked ? fmt::format("test {} at {:g}%, ", found_.ladder.size(), 100 * level) : "", bits,
                         m.ear.value, m.ear.ci95.low, m.ear.ci95.high, judged.worst, m.kl.value,
                         !asked ? ""
                         : met  ? ": holds"
                                : ": does not hold"));
  return m;
}

// Finds the plan for a target of fidelity. Plans are tried on the documents of adjustment. The one that is found begins
// the ladder of plans that are tested on the certificate's documents.
Plan Search::choose() {
  for (;;) {
    const Plan plan =
        desk_.job.search == SearchKind::evolve ? found_by_evolution(found_.target) : found_on_front(found_.target);
    builder_.build(plan);
    if (pace_.keeps(plan)) return descend(plan);
    front_ = pace_.front(found_.target);
  }
}

Plan Search::found_on_front(const Target& aim) {
  const int most = desk_.job.max_trials, enough = known_.empty() ? kTrialsBeforeLadder : kTrialsOfOthers;
  const int trials = pace_.asked() ? most : std::min(most, enough);
  const SearchResult found = search_to_target(
      table_, front_, aim, {.max_trials = trials, .rho = ratio_, .resolution = kPlanResolution, .known = known_},
      [&](const Plan& plan) { return trial(plan, "trial"); });
  known_.insert(known_.end(), found.trials.begin(), found.trials.end());
  if (pace_.asked()) {  // The source is too slow to be taken, and another front uses what was measured.
    const Trial& last = found.best >= 0 ? found.trials[static_cast<size_t>(found.best)] : found.trials.back();
    ratio_ = last.measured.kl.value / std::max(last.plan.kl, 1e-300);
    if (found.best < 0) pace_.refuse(found_.target, ratio_);
  }
  // The source itself is the widest plan, which is taken if no other is foreseen to meet the target. With a rate there
  // is no ladder downwards, and the plan is one that was tried.
  const Plan plan = pace_.asked() && found.best >= 0 ? found.trials[static_cast<size_t>(found.best)].plan
                                                     : found.predicted.value_or(front_.back());
  if (desk_.job.search == SearchKind::ilp) return plan;
  // The plan that evolution makes of it is kept if it is smaller, or of the same size and better where plans are tried.
  const Plan other = evolution_.onwards(plan);
  if (other.choice == plan.choice) return plan;
  const Measurement m = trial(other, "evolved");
  if (!meets(m, aim)) return plan;
  const bool better = other.bytes < plan.bytes || found.best < 0 ||
                      m.kl.value < found.trials[static_cast<size_t>(found.best)].measured.kl.value;
  return better ? other : plan;
}

// Runs evolution to the KL at which the target is foreseen to be met, and builds and tries the plan that it ends with.
// The trial says how much KL there may be. Evolution goes on to that KL from the last plan on its way that has no more.
// This ends when the gain that is left is within what plans differ by.
Plan Search::found_by_evolution(const Target& aim) {
  Plan best = front_.back();  // It is the source itself.
  double limit = aim.allowed_kl(table_.ear_constant) / ratio_, failing = 1e300;
  for (int i = 0; i < desk_.job.max_trials; ++i) {
    const auto start = std::find_if(front_.begin(), front_.end() - 1, [&](const Plan& p) { return p.kl <= limit; });
    const Plan plan = evolution_.onwards(*start, limit);
    if (plan.choice == best.choice) break;  // Nothing smaller is left.
    const Measurement m = trial(plan, "trial");
    const double may_grow = room(m, aim);
    if (!meets(m, aim)) {
      failing = std::min(failing, plan.kl);
    } else if (plan.bytes < best.bytes) {
      best = plan;
      if (may_grow < std::pow(4, kPlanResolution * bits_per_parameter(table_, plan)))
        break;  // KL grows fourfold a bit.
    }
    const double next = std::min(plan.kl * may_grow, 0.97 * failing);
    if (best.bytes < front_.back().bytes && next <= best.kl) break;
    limit = next;
  }
  return best;
}

// Tests the one plan there is.
Plan Search::given() {
  builder_.build(front_.front());
  desk_.note(fmt::format("the plan: {:.3f} bits a weight", bits_per_parameter(table_, front_.front())));
  test(front_.front());
  return front_.front();
}

Plan Search::largest_within_budget() const {
  const auto fits = [&](const Plan& p) {
    return !desk_.budget.given() || desk_.budget.fits(p.bytes, desk_.quantised_formats(table_, p));
  };
  const auto plan = std::find_if(front_.rbegin(), front_.rend(), fits);
  check(plan != front_.rend(), "no plan of these formats that could be of use fits {} bytes{}; the smallest takes {}",
        desk_.budget.bytes(), pace_.asked() ? " and is fast enough" : "",
        front_.front().bytes + desk_.budget.header_bytes(desk_.quantised_formats(table_, front_.front())));
  return *plan;
}

// Finds the best fidelity within a size, or a time, or both. It is one plan, which is tested once.
Plan Search::within_budget() {
  for (;;) {
    const Plan plan = largest_within_budget();
    builder_.build(plan);
    desk_.note(fmt::format("the plan: {:.3f} bits a weight", bits_per_parameter(table_, plan)));
    if (pace_.keeps(plan)) {
      test(plan);
      return plan;
    }
    front_ = pace_.front(found_.target);
  }
}

}  // namespace fidelio
