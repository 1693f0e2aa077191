#include "compress/evolution.h"

#include <algorithm>

namespace fidelio {
Evolution PlanEvolution::from(const Plan& start, std::optional<double> kl_limit, int generations) {
  const std::span<const std::vector<int32_t>> all(desk_.texts.search.sequences);
  const size_t part = std::max<size_t>(all.size() / 4, 1);
  Runners::InForce in_force(runners_, Runners::Which::reference);
  Runner& reference = in_force.runner();
  journal_.begin_stage(desk_.stage(fmt::format("evolution from {} to {} seed {}", to_json(table_, start).dump(),
                                               kl_limit.value_or(0), desk_.job.seed)));
  FidelityMeter whole(reference, desk_.texts.search.sequences, desk_.pool, desk_.table_mode());
  FidelityMeter quarter(reference, {all.begin(), all.begin() + static_cast<int64_t>(part)}, desk_.pool,
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
  options.generations = generations;
  options.seed = desk_.job.seed;
  options.kl_limit = kl_limit ? *kl_limit : measure_kl(start, 1);
  Evolution found = evolve(table_, start, options, measure_kl);
  desk_.note(
      fmt::format("evolution: {} generations, {} measurements, {:.3f} -> {:.3f} bits, KL {:.6f} -> {:.6f} (search "
                  "text of the sensitivities)",
                  found.generations, found.measurements, bits_per_parameter(table_, start),
                  bits_per_parameter(table_, found.best), found.path.front().kl, found.kl));
  return found;
}

Plan PlanEvolution::widest(bool of_source) const {
  std::vector<int> choice;
  for (const Group& g : table_.groups) {
    const auto own = [&](const Option& o) {
      const LinearId id = parse_linear_id(g.linears.front());
      return o.format == desk_.source.format(id);
    };
    // An option of the wanted kind comes first, then the larger one.
    const auto best = std::max_element(g.options.begin(), g.options.end(), [&](const Option& a, const Option& b) {
      return std::pair(own(a) == of_source, a.bytes) < std::pair(own(b) == of_source, b.bytes);
    });
    choice.push_back(static_cast<int>(best - g.options.begin()));
  }
  return evaluate(table_, std::move(choice));
}

std::vector<Plan> PlanEvolution::front(double kl_limit) {
  Evolution found = from(widest(false), kl_limit, desk_.job.most_generations());
  if (found.path.front().kl > kl_limit) found = from(widest(true), kl_limit, desk_.job.most_generations());
  std::vector<Plan> front;  // The last of several plans of one size is the best.
  for (auto plan = found.path.rbegin(); plan != found.path.rend(); ++plan)
    if (front.empty() || plan->bytes > front.back().bytes) front.push_back(*plan);
  const Plan source = widest(true);
  if (source.bytes > front.back().bytes) front.push_back(source);
  return front;
}

Plan PlanEvolution::onwards(const Plan& start, std::optional<double> kl_limit) {
  return from(start, kl_limit, std::min(desk_.job.most_generations(), Job::kGenerationsAfter)).best;
}

}  // namespace fidelio
