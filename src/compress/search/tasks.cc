// This file is the search for a target of tasks, which says how much of the reference's accuracy may be lost (SLQ
// appendix A.3, Algorithm 2).
//
//   calibration   A plan of few bits answers one question of three. Its KL on their text says how much accuracy a nat
//                 costs.
//   search        Plans are tried by that KL, which the table predicts up to the ratio rho. The search looks for the
//                 smallest plan that stays below the KL that the drop allows.
//   check         That plan answers the other questions. The lower end of the accuracy that it keeps must be what was
//                 asked for. If it is not, a larger plan is checked with twice the caution. After four failures the
//                 target is refused.
//
// SLQ calibrates with all questions, takes the point without an interval, and has no check. A line through one point
// promised too much (docs/results/algorithm-2.json).
#include <algorithm>
#include <cmath>

#include "compress/certificate/judge.h"
#include "compress/search/search.h"
#include "eval/statistics/clusters.h"

namespace fidelio {

// OwnText is the questions with the reference's answers, and what the reference makes of that text.
struct Search::OwnText {
  std::vector<AnsweredText> texts;
  std::vector<ScoredSequence> sequences;
  KeptStreams kept;
};

// Builds the plan and measures it on the questions' own text. Intervals are made by question.
Measurement Search::trial_on(OwnText& text, const Plan& plan, const std::string& what) {
  builder_.build(plan);
  CompareOptions how;
  how.candidate_mode = desk_.job.served();
  std::vector<double> kl, loss, tokens;
  for (const WindowFidelity& w :
       compare_sequences(runners_.reference(), runners_.served(), text.sequences, how, desk_.pool, {}, &text.kept)) {
    tokens.push_back(static_cast<double>(w.sums.positions));
    kl.push_back(w.sums.kl);
    loss.push_back(tokens.back() - w.sums.ear);
  }
  const Estimate lost = cluster_mean(loss, tokens);
  const Measurement m{complement(lost), cluster_mean(kl, tokens)};
  const double bits = bits_per_parameter(table_, plan);
  desk_.note(fmt::format("{} {:.3f} bits a weight: on the questions' own text KL {:.6f} [{:.6f}, {:.6f}], EAR {:.5f}",
                         what, bits, m.kl.value, m.kl.ci95.low, m.kl.ci95.high, m.ear.value));
  found_.trials.push_back({bits, m.kl.value, m.ear, std::nan("")});
  return m;
}

TaskCalibration Search::calibrate(TaskJudge& judge, OwnText& text) {
  int64_t parameters = 0;
  for (const Group& g : table_.groups) parameters += g.parameters;
  const std::optional<Plan> plan = best_within_bytes(
      front_,
      table_.fixed_bytes + static_cast<int64_t>(desk_.job.calibration_bits * static_cast<double>(parameters) / 8));
  check(plan.has_value(), "--calibration-bits {}: the smallest plan of these formats has {:.3f}",
        desk_.job.calibration_bits, bits_per_parameter(table_, front_.front()));
  TaskCalibration point;
  point.kl = trial_on(text, *plan, "calibration").kl;
  point.kl_predicted = plan->kl;
  point.recovery = judge.recovery(
      QuestionSet::calibration, to_json(table_, *plan).dump(), [&](Runner& r) { builder_.serve(r); }, 0.95);
  const Estimate unchanged = judge.unchanged(QuestionSet::check, confidence_of_test(1));
  point.unchanged = unchanged.value - unchanged.ci95.low;
  const int64_t asked = judge.questions(QuestionSet::calibration);
  point.share = static_cast<double>(judge.questions(QuestionSet::check)) / static_cast<double>(asked);
  desk_.note(fmt::format("calibration on {} questions: recovery {:.4f} [{:.4f}, {:.4f}]", asked, point.recovery.value,
                         point.recovery.ci95.low, point.recovery.ci95.high));
  check_calibration(point);
  const Estimate alpha = point.alpha();
  desk_.note(fmt::format("alpha {:.4f} [{:.4f}, {:.4f}] (loss of accuracy per nat), rho {:.4f}", alpha.value,
                         alpha.ci95.low, alpha.ci95.high, point.rho()));
  CertifiedTasks tasks;
  tasks.asked = judge.asked();
  tasks.accuracy_drop = desk_.job.accuracy_drop;
  tasks.calibration_bits = bits_per_parameter(table_, *plan);
  tasks.calibration_kl = point.kl;
  tasks.calibration_recovery = point.recovery;
  tasks.alpha = alpha;
  tasks.rho = point.rho();
  found_.tasks = tasks;
  return point;
}

Plan Search::keep_accuracy(TaskJudge& judge) {
  const PassLimits limits = limits_of(runners_.reference());
  OwnText text{judge.own_text(std::min(limits.max_positions, limits.cache_pages * kPageTokens)), {}, KeptStreams()};
  for (const AnsweredText& t : text.texts) text.sequences.push_back({t.ids, t.first_scored});
  const TaskCalibration point = calibrate(judge, text);
  const double drop = desk_.job.accuracy_drop;
  const int64_t asked = judge.questions(QuestionSet::check);
  double allowed = kl_allowed(point, drop, asked);
  for (int number = 1;; ++number) {
    desk_.note(fmt::format("KL up to {:.6f} allowed", allowed));
    std::vector<Measurement> measured;
    const SearchResult found = search_to_target(
        table_, front_, {{}, allowed},
        {.max_trials = desk_.job.max_trials, .rho = point.rho(), .resolution = kPlanResolution}, [&](const Plan& plan) {
          measured.push_back(trial_on(text, plan, "trial"));
          return measured.back();
        });
    // The source itself is the widest plan, which is taken if the trials end before any plan met the target.
    const Plan plan = found.best >= 0 ? found.trials[static_cast<size_t>(found.best)].plan : front_.back();
    const Measurement m = found.best >= 0 ? measured[static_cast<size_t>(found.best)] : trial_on(text, plan, "widest");
    builder_.build(plan);
    const double confidence = confidence_of_test(number);
    const Estimate kept = judge.recovery(
        QuestionSet::check, to_json(table_, plan).dump(), [&](Runner& r) { builder_.serve(r); }, confidence);
    const Estimate predicted = point.predicted(m.kl.value);
    desk_.note(
        fmt::format("check {} on {} other questions: recovery {:.4f} [{:.4f}, {:.4f}] at {:g}%, predicted {:.4f} "
                    "[{:.4f}, {:.4f}]",
                    number, asked, kept.value, kept.ci95.low, kept.ci95.high, 100 * confidence, predicted.value,
                    predicted.ci95.low, predicted.ci95.high));
    found_.tasks->kl_allowed = allowed;
    found_.tasks->kl = m.kl;
    found_.tasks->predicted_recovery = predicted;
    found_.tasks->recovery = kept;
    found_.tasks->confidence = confidence;
    found_.tasks->plans_checked = number;
    if (kept.ci95.low >= 1 - drop) {
      test(plan);
      return plan;
    }
    check(
        number < kMostTests && plan.bytes < front_.back().bytes,
        "--accuracy-drop {}: after {} plans the last, with a KL of {:.6f} on the questions' own text, keeps {:.4f} "
        "[{:.4f}, {:.4f}] of the accuracy on {} questions, and the lower end must be {:.4f}. Ask more questions, allow "
        "more, or give --ear",
        drop, number, m.kl.value, kept.value, kept.ci95.low, kept.ci95.high, asked, 1 - drop);
    // A plan near the source loses accuracy by sqrt(KL), as 1 - EAR does, and not by KL as the line through one point
    // says. The last check aims at half of that KL, since a plan that is a little too wide is better than none.
    const double excess = drop / (1 - kept.ci95.low), margin = number + 1 == kMostTests ? 0.5 : 1;
    allowed = std::min(allowed, m.kl.value) * std::clamp(margin * excess * excess, 0.1, 0.8);
  }
}

}  // namespace fidelio
