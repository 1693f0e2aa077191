#include "compress/search.h"

#include <algorithm>
#include <cmath>

#include "alloc/evolve.h"

namespace fidelio {
namespace {

// A plan built for itself has so much of the KL that its candidates put together have: .75 was measured on quill-1m,
// .90 to .92 on quill-26m (docs/results.md). Only the first trial depends on it; later ones go by what was measured.
constexpr double kBuiltRatio = 0.8;
// What tuning leaves of a plan's KL, before any plan of this model has been tuned: -25% at 4 bits, more below.
constexpr double kTunedRatio = 0.75;

}  // namespace

Search::Search(Desk& desk, const Measured& measured, const std::vector<Plan>& front, const CandidateSet& candidates,
               Builder& builder, Journal& journal)
    : desk_(desk),
      table_(measured.table),
      front_(front),
      candidates_(candidates),
      builder_(builder),
      journal_(journal),
      next_place_(measured.next_place),
      ratio_(kBuiltRatio * (desk.job.tune ? kTunedRatio : 1)) {}

Found Search::run(const Target& target) {
  found_ = {};
  found_.target = target;
  if (!desk_.job.plan_file.empty()) {
    found_.plan = given();
  } else if (desk_.budget() > 0) {
    found_.plan = within_budget();
  } else if (desk_.job.accuracy_drop == 0) {
    found_.plan = choose();
  } else {
    const std::unique_ptr<TaskJudge> judge = desk_.world.make_judge(desk_.job.out + ".journal");
    found_.plan = keep_accuracy(*judge);
  }
  return found_;
}

// A plan served on the documents of adjustment, judged as the promise says; what it returns is what the certificate's
// look is foreseen to be.
Measurement Search::trial(const Plan& plan, const std::string& what) {
  const Built& built = builder_.build(plan);
  if (desk_.job.tune) {
    ratio_ = kBuiltRatio * built.gain;
    desk_.note(fmt::format("tuned: KL {:+.1f}% on text of the tuning's own", 100 * (built.gain - 1)));
  }
  const std::vector<DocumentFidelity> documents = documents_of(desk_.measure_adjustment(), desk_.adjustment);
  const Judged judged = judge(documents, desk_.job.promise);
  const Measurement& m = judged.measured;
  const double predicted = predicted_ear(table_, plan, ratio_);
  desk_.note(fmt::format("{} {:.3f} bits: EAR {:.5f} [{:.5f}, {:.5f}] ({}), KL {:.6f}, predicted EAR {:.5f}", what,
                         bits_per_parameter(table_, plan), m.ear.value, m.ear.ci95.low, m.ear.ci95.high, judged.worst,
                         m.kl.value, predicted));
  found_.trials.push_back({bits_per_parameter(table_, plan), m.kl.value, m.ear, predicted});
  return foreseen(documents, desk_.job.promise, confidence_of_look(found_.looks + 1), desk_.certificate.counts());
}

// The plan in force on the documents of the certificate.
Measurement Search::look() {
  found_.certified = desk_.measure_certificate();
  ++found_.looks;
  const double confidence = confidence_of_look(found_.looks);
  const Judged judged = judge(documents_of(found_.certified, desk_.certificate), desk_.job.promise, confidence);
  const Measurement& m = judged.measured;
  desk_.note(fmt::format("look {} at the certificate's documents: EAR {:.5f} [{:.5f}, {:.5f}] at {:g}% ({}), KL {:.6f}",
                         found_.looks, m.ear.value, m.ear.ci95.low, m.ear.ci95.high, 100 * confidence, judged.worst,
                         m.kl.value));
  return m;
}

// Plans are tried on the documents of adjustment; the one found is then looked at on those of the certificate. If it
// fails there, the target is raised by what was missing and the search goes on, the next look's level being half of the
// last's (certificate.h); every look is counted in the certificate.
Plan Search::choose() {
  Target aim = found_.target;
  for (;;) {
    const SearchResult found = search_to_target(
        table_, front_, aim, {.max_trials = desk_.job.max_trials, .rho = ratio_, .resolution = kPlanResolution},
        [&](const Plan& plan) { return trial(plan, "trial"); });
    // The source itself is the widest plan; where the trials end before anything met the target, it is left.
    Plan plan = found.best >= 0 ? found.trials[static_cast<size_t>(found.best)].plan : front_.back();
    if (desk_.job.search == SearchKind::evolve) {
      const Plan smaller = evolved(plan);
      if (smaller.bytes < plan.bytes && meets(trial(smaller, "evolved"), aim)) plan = smaller;
    }
    builder_.build(plan);
    const Measurement m = look();
    if (meets(m, found_.target)) return plan;
    check(found_.looks < kMostLooks && plan.bytes < front_.back().bytes,
          "the plan that met the target where plans are tried does not on the certificate's documents (EAR {:.5f}, "
          "lower bound {:.5f}), "
          "after {} looks",
          m.ear.value, m.ear.ci95.low, found_.looks);
    if (aim.ear) *aim.ear += std::max(*found_.target.ear - m.ear.ci95.low, 0.05 * (1 - *found_.target.ear));
    if (aim.kl) *aim.kl *= std::min(*found_.target.kl / m.kl.ci95.high, 0.95);
  }
}

// Fewer bytes at no more distance than the start's, as measured on the sensitivities' text (SLQ Algorithm 3).
Plan Search::evolved(const Plan& start) {
  const std::span<const std::vector<int32_t>> all(desk_.search.sequences);
  const size_t part = std::max<size_t>(all.size() / 4, 1);
  desk_.restore_reference();
  journal_.begin_stage(
      desk_.stage(fmt::format("evolution from {} seed {}", to_json(table_, start).dump(), desk_.job.seed)));
  FidelityMeter whole(*desk_.reference, desk_.search.sequences, desk_.pool, desk_.table_mode());
  FidelityMeter quarter(*desk_.reference, {all.begin(), all.begin() + static_cast<int64_t>(part)}, desk_.pool,
                        desk_.table_mode());
  JournaledGame whole_game(whole, journal_), quarter_game(quarter, journal_);
  const auto measure_kl = [&](const Plan& plan, double share) {
    Game& game = share < 1 ? static_cast<Game&>(quarter_game) : whole_game;
    for (LinearId id : linears_of(desk_.source.config())) game.restore(id);
    const std::map<LinearId, FormatSpec> formats = desk_.quantised_formats(table_, plan);
    for (const CandidateGroup& g : candidates_.groups())
      if (const auto found = formats.find(g.group.linears.front()); found != formats.end())
        assign(game, g, found->second);
    game.place(next_place_++);
    return game.measure().kl;
  };
  EvolveOptions options;
  options.generations = desk_.job.generations;
  options.seed = desk_.job.seed;
  options.kl_limit = measure_kl(start, 1);
  const Evolution found = evolve(table_, start, options, measure_kl);
  desk_.restore_reference();
  desk_.note(
      fmt::format("evolution: {} generations, {} measurements, {:.3f} -> {:.3f} bits, KL {:.6f} -> {:.6f} (search "
                  "text of the sensitivities)",
                  desk_.job.generations, found.measurements, bits_per_parameter(table_, start),
                  bits_per_parameter(table_, found.best), options.kl_limit, found.kl));
  return found.best;
}

// The one plan there is, looked at once.
Plan Search::given() {
  builder_.build(front_.front());
  desk_.note(fmt::format("the plan: {:.3f} bits", bits_per_parameter(table_, front_.front())));
  look();
  return front_.front();
}

// The best fidelity within a size: one plan, looked at once.
Plan Search::within_budget() {
  const auto fits = [&](const Plan& p) {
    return p.bytes + desk_.header_bytes(desk_.quantised_formats(table_, p)) <= desk_.budget();
  };
  const auto plan = std::find_if(front_.rbegin(), front_.rend(), fits);
  check(plan != front_.rend(), "no plan of these formats that could be of use fits {} bytes; the smallest takes {}",
        desk_.budget(), front_.front().bytes + desk_.header_bytes(desk_.quantised_formats(table_, front_.front())));
  builder_.build(*plan);
  desk_.note(fmt::format("the plan: {:.3f} bits", bits_per_parameter(table_, *plan)));
  look();
  return *plan;
}

}  // namespace fidelio
