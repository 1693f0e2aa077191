#include "compress/table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/progress.h"
#include "eval/statistics/clusters.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

// Measures every format everywhere and, if activations are coarse, what those cost with the source's weights. Dense
// weights read finer activations than codes in that mode (kernels/cpu), so most of the cost is measured with each
// group's codes, as the model will be served.
std::vector<MeterResult> measure_uniform(Desk& desk, Players& players, const CandidateSet& candidates,
                                         Journal& journal) {
  const auto reset = [&desk](Game& game) {
    for (const LinearGroup& g : desk.groups)
      for (LinearId id : g.linears) game.restore(id);
  };
  journal.begin_stage(desk.stage("uniform"));
  const int64_t place = players.reserve(static_cast<int64_t>(desk.job.formats.size()) + 1);
  std::vector<GameJob> jobs;
  for (size_t f = 0; f < desk.job.formats.size(); ++f)
    jobs.push_back({place + static_cast<int64_t>(f), [&, f](Game& game) {
                      if (!game.knows())
                        for (const CandidateGroup& g : candidates.groups()) assign(game, g, desk.job.formats[f]);
                      const MeterResult found = game.measure();
                      reset(game);
                      return std::vector{found};
                    }});
  if (desk.table_mode() != Activations::f32)
    jobs.push_back({place + static_cast<int64_t>(desk.job.formats.size()),
                    [](Game& game) { return std::vector{game.measure()}; }});
  std::vector<MeterResult> found;
  for (const std::vector<MeterResult>& one : players.play(jobs)) found.push_back(one.front());
  return found;
}

// Returns the format in which the method `single` measures every group. It is the one of those that a plan may use that
// is nearest to the target when it is given to all groups, since costs near it follow from it best. `uniform` holds the
// measurements by format.
FormatSpec measured_format(const Desk& desk, const Measured& measured, const std::vector<MeterResult>& uniform,
                           const std::vector<CandidateGroup>& useful, double base_kl, double wanted) {
  const double bits = desk.budget.given() ? 8.0 * static_cast<double>(desk.budget.bytes()) /
                                                static_cast<double>(desk.source.parameters())
                                          : desk.job.calibration_bits;
  const bool by_size = !desk.job.has_target();
  FormatSpec nearest;
  double least = std::numeric_limits<double>::infinity();
  for (size_t f = 0; f < desk.job.formats.size(); ++f) {
    const auto offers = [&](const CandidateGroup& g) {
      return std::any_of(g.candidates.begin(), g.candidates.end(),
                         [&](const Candidate& c) { return c.format == desk.job.formats[f]; });
    };
    if (!std::all_of(useful.begin(), useful.end(), offers)) continue;
    const double distance =
        by_size ? std::abs(measured.uniform[f].bits - bits)
                : std::abs(std::log(std::max(uniform[f].kl - base_kl, 1e-300) / std::max(wanted, 1e-300)));
    if (distance < least) {
      least = distance;
      nearest = desk.job.formats[f];
    }
  }
  return nearest;
}

// Tells the user about every format everywhere, and keeps it with its size.
void note_uniform(Desk& desk, const CandidateSet& candidates, const std::vector<MeterResult>& uniform,
                  Measured& measured) {
  for (size_t f = 0; f < desk.job.formats.size(); ++f) {
    desk.note(fmt::format("every weight in {:<12} KL {:.6f}  EAR {:.5f}  (search text)", to_string(desk.job.formats[f]),
                          uniform[f].kl, 1 - uniform[f].loss));
    int64_t bytes = shared_bytes(desk.job.formats[f]), parameters = 0;
    for (const CandidateGroup& g : candidates.groups()) {
      parameters += g.parameters;
      for (const Candidate& c : g.candidates)
        if (c.format == desk.job.formats[f]) bytes += c.bytes;
    }
    measured.uniform.push_back({to_string(desk.job.formats[f]),
                                8.0 * static_cast<double>(bytes) / static_cast<double>(parameters), uniform[f].kl,
                                1 - uniform[f].loss});
  }
}

// Allowed is the KL that the targets allow beside the cost of activations.
struct Allowed {
  double strictest = 1e300, loosest = 0;
  double wanted() const { return strictest > 0 && loosest < 1e300 ? std::sqrt(strictest * loosest) : strictest; }
};

Allowed allowed_by(const std::vector<Target>& targets, double ear_constant, double base_kl) {
  Allowed a;
  for (const Target& t : targets) {
    const double allowed = t.allowed_kl(ear_constant) - base_kl;
    a.strictest = std::min(a.strictest, allowed);
    a.loosest = std::max(a.loosest, allowed);
  }
  return a;
}

// Returns the candidates whose KL is within reach of a target, and the smallest format that meets the strictest target
// by itself. It stays however far below the target it is. Without it a plan would have nothing between formats that
// fall short and the source's weights.
std::vector<CandidateGroup> useful_candidates(Desk& desk, const CandidateSet& candidates, const Measured& measured,
                                              const std::vector<MeterResult>& uniform, const Allowed& allowed,
                                              double base_kl) {
  size_t enough = uniform.size();
  for (size_t f = 0; f < uniform.size(); ++f)
    if (uniform[f].kl - base_kl <= allowed.strictest &&
        (enough == uniform.size() || measured.uniform[f].bits < measured.uniform[enough].bits))
      enough = f;
  // A factor of 64 is three bits either way, since KL falls fourfold a bit. The cost of activations is in every format.
  std::vector<CandidateGroup> useful = candidates.groups();
  for (CandidateGroup& g : useful)
    std::erase_if(g.candidates, [&](const Candidate& candidate) {
      const auto at = static_cast<size_t>(
          std::find(desk.job.formats.begin(), desk.job.formats.end(), candidate.format) - desk.job.formats.begin());
      const double kl = uniform[at].kl - base_kl;
      if (std::any_of(desk.job.rules.begin(), desk.job.rules.end(),
                      [&](const FormatRule& r) { return r.format == candidate.format; }))
        return false;
      if (at == enough) return false;
      return kl > 64 * allowed.loosest || kl < allowed.strictest / 64;
    });
  const bool open = !desk.job.has_target();  // No distance is asked for.
  if (open || useful.front().candidates.empty()) useful = candidates.groups();
  return useful;
}

std::string names_of(const std::vector<CandidateGroup>& useful) {
  std::string offered;
  for (const CandidateGroup& g : useful) {
    offered += "\n" + g.group.name;
    for (const Candidate& c : g.candidates) offered += " " + to_string(c.format);
  }
  return offered;
}

void describe(Desk& desk, const EstimateOptions& options, double ear_constant, Estimation& e) {
  e.table.activations = name_of(desk.table_mode());
  e.table.ear_constant = ear_constant;
  e.table.fixed_bytes = fixed_bytes(desk.source, desk.groups);
  nlohmann::json about = {{"source_sha256", desk.source.sha256()},
                          {"text_sha256", desk.texts.search.sha256},
                          {"tokens", desk.texts.search.tokens},
                          {"passes", e.passes},
                          {"measured_in", desk.job.method == SensitivityMethod::single ? to_string(options.measured)
                                                                                       : std::string("all formats")},
                          {"seed", desk.job.seed}};
  // The method `linear` fits lines through the origin, KL against a group's relative noise power. The provenance says
  // how straight they are, with alpha's 95% interval by Student's t.
  const double reach = options.noise_levels > 1 ? student_quantile(0.975, options.noise_levels - 1) : 0;
  for (size_t g = 0; g < e.kl_fits.size(); ++g) {
    const LinearFit& fit = e.kl_fits[g];
    const Estimate alpha{fit.alpha, {fit.alpha - reach * fit.alpha_se, fit.alpha + reach * fit.alpha_se}};
    about["fits"].push_back({{"group", e.table.groups[g].name}, {"alpha", to_json(alpha)}, {"r2", fit.r2}});
  }
  e.table.provenance = about.dump();
}

}  // namespace

Measured measure_table(Desk& desk, Runners& runners, const CandidateSet& candidates, Journal& journal) {
  Measured measured;
  Runners::InForce in_force(runners, Runners::Which::reference);
  Runner& reference = in_force.runner();
  FidelityMeter played(reference, desk.texts.search.sequences, desk.pool, desk.table_mode());
  JournaledGame game(played, journal);
  Players players(game, desk.ranks);
  EstimateOptions options;
  std::vector<MeterResult> uniform = measure_uniform(desk, players, candidates, journal);
  if (desk.table_mode() != Activations::f32) {
    options.base_kl = uniform.back().kl;
    options.base_loss = uniform.back().loss;
    uniform.pop_back();
    desk.note(fmt::format("activations {} with the source's own dense weights: KL {:.6f}  EAR {:.5f}  (search text)",
                          name_of(desk.table_mode()), options.base_kl, 1 - options.base_loss));
  }
  note_uniform(desk, candidates, uniform, measured);
  const double c = ear_constant(uniform);
  const Allowed allowed = allowed_by(desk.targets, c, options.base_kl);
  const std::vector<CandidateGroup> useful =
      useful_candidates(desk, candidates, measured, uniform, allowed, options.base_kl);

  std::unique_ptr<Progress> progress;
  // Evolution alone measures whole plans.
  options.method = desk.job.search == SearchKind::evolve ? "none" : name_of(desk.job.method);
  options.measured = measured_format(desk, measured, uniform, useful, options.base_kl, allowed.wanted());
  options.permutations = desk.job.permutations;
  options.target_se = desk.job.target_se;
  options.seed = desk.job.seed;
  journal.begin_stage(desk.stage(fmt::format(
      "table {} in {} permutations {} error {} seed {}{}", name_of(desk.job.method), to_string(options.measured),
      desk.job.permutations, desk.job.target_se, desk.job.seed, names_of(useful))));
  int64_t before = 0;
  Estimation e = estimate(
      players, useful, options,
      [&](LinearId id, double sigma, uint64_t stream, bool flat) {
        return reference.pack_noisy(desk.source.linear(id), sigma, stream, flat);
      },
      [&](int64_t done, int64_t total) {
        if (!desk.ranks.first()) return;
        if (!progress) progress = std::make_unique<Progress>("sensitivity", total);
        progress->advance(done - std::exchange(before, done));
      });
  measured.next_place = players.reserve(0);
  describe(desk, options, c, e);
  make_monotone(e.table);
  offer_source(desk.source, desk.groups, e.table);
  measured.table = std::move(e.table);
  return measured;
}

}  // namespace fidelio
