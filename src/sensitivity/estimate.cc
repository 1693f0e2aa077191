#include "sensitivity/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// Mean and standard error of samples.
struct Moments {
  double sum = 0, square = 0;
  int64_t n = 0;
  void add(double x) {
    sum += x;
    square += x * x;
    ++n;
  }
  double mean() const { return n > 0 ? sum / static_cast<double>(n) : 0; }
  double error() const {
    if (n < 2) return 0;
    const double count = static_cast<double>(n), variance = std::max(0.0, square - sum * sum / count) / (count - 1);
    return std::sqrt(variance / count);
  }
};

double standard_error(const std::vector<double>& per_sequence) {
  Moments m;
  for (double x : per_sequence) m.add(x);
  return m.error();
}

void assign(Game& game, const Candidate& candidate) {
  for (const auto& [id, weight] : candidate.weights) game.assign(id, weight);
}
void restore(Game& game, const CandidateGroup& group) {
  for (LinearId id : group.group.linears) game.restore(id);
}

SensitivityTable empty_table(const std::vector<CandidateGroup>& groups, const std::string& method) {
  SensitivityTable table;
  table.method = method;
  for (const CandidateGroup& g : groups) {
    Group row{g.group.name, {}, g.parameters, {}};
    for (LinearId id : g.group.linears) row.linears.push_back(to_string(id));
    for (const Candidate& c : g.candidates) row.options.push_back({c.format, c.bytes, 0, 0, 0, 0});
    table.groups.push_back(std::move(row));
  }
  return table;
}

std::vector<size_t> shuffled(size_t n, Rng& rng) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

class Estimator {
 public:
  Estimator(Game& game, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
            const EstimateProgress& progress)
      : game_(game), groups_(groups), options_(options), progress_(progress) {
    result_.table = empty_table(groups, options.method);
  }

  Estimation single() {
    total_ = 0;
    for (const CandidateGroup& g : groups_) total_ += static_cast<int64_t>(g.candidates.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t c = 0; c < groups_[g].candidates.size(); ++c) {
        assign(game_, groups_[g].candidates[c]);
        const MeterResult m = measure();
        Option& option = result_.table.groups[g].options[c];
        option.kl = m.kl;
        option.loss = m.loss;
        option.kl_se = standard_error(m.sequence_kl);
        option.loss_se = standard_error(m.sequence_loss);
      }
      restore(game_, groups_[g]);
    }
    return std::move(result_);
  }

  Estimation linear(const NoisyWeight& noisy) {
    total_ = static_cast<int64_t>(groups_.size()) * options_.noise_levels;
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<double> power, kl, loss;
      for (int level = 0; level < options_.noise_levels; ++level) {
        // Relative noise powers in octaves below 4^-4, about what 4-bit rounding makes: where the regime is linear.
        const double sigma = std::pow(2.0, -4 - level * 0.5);
        for (LinearId id : groups_[g].group.linears)
          game_.assign(
              id, noisy(id, sigma, options_.seed + 1000 * g + static_cast<uint64_t>(level), options_.uniform_noise));
        const MeterResult m = measure();
        power.push_back(sigma * sigma);
        kl.push_back(m.kl);
        loss.push_back(m.loss);
      }
      restore(game_, groups_[g]);
      result_.kl_fits.push_back(fit(power, kl));
      result_.loss_fits.push_back(fit(power, loss));
      for (size_t c = 0; c < groups_[g].candidates.size(); ++c) {
        const double e = groups_[g].candidates[c].relative_error;
        Option& option = result_.table.groups[g].options[c];
        option.kl = e * result_.kl_fits.back().alpha;
        option.kl_se = e * result_.kl_fits.back().alpha_se;
        option.loss = e * result_.loss_fits.back().alpha;
        option.loss_se = e * result_.loss_fits.back().alpha_se;
      }
    }
    return std::move(result_);
  }

  Estimation shapley() {
    const size_t levels = groups_.front().candidates.size();
    for (const CandidateGroup& g : groups_)
      check(g.candidates.size() == levels,
            "shapley: every group must offer the same number of formats; {} offers {}, {} offers {}", g.group.name,
            g.candidates.size(), groups_.front().group.name, levels);
    total_ = options_.permutations * static_cast<int64_t>(groups_.size() * (levels - 1)) + 1;
    std::vector<std::vector<Moments>> kl(groups_.size(), std::vector<Moments>(levels)), loss = kl;
    const MeterResult base = best_everywhere();
    for (size_t level = 0; level + 1 < levels; ++level)
      walk_permutations(
          groups_.size(), base,
          [&](size_t group, double kl_step, double loss_step, double weight) {
            pending_[group].first += kl_step * weight;
            pending_[group].second += loss_step * weight;
          },
          [&](size_t group) { assign(game_, groups_[group].candidates[level]); },
          [&] {
            for (size_t g = 0; g < groups_.size(); ++g) {
              kl[g][level].add(pending_[g].first);
              loss[g][level].add(pending_[g].second);
            }
            return settled(kl, level);
          });
    finish(kl, loss, base);
    return std::move(result_);
  }

  Estimation unified() {
    const size_t levels = groups_.front().candidates.size();
    std::vector<std::vector<Moments>> kl(groups_.size(), std::vector<Moments>(levels)), loss = kl;
    size_t steps = 0;
    for (const CandidateGroup& g : groups_) {
      check(g.candidates.size() == levels, "unified: every group must offer the same number of formats; {} offers {}",
            g.group.name, g.candidates.size());
      steps += g.candidates.size() - 1;
    }
    total_ = options_.permutations * static_cast<int64_t>(steps) + 1;
    const MeterResult base = best_everywhere();
    // A step is "group i goes one level down": a shuffled multiset of groups, each as often as it has levels below the
    // best.
    std::vector<std::vector<std::pair<double, double>>> sums;
    std::vector<size_t> at(groups_.size());
    const auto owner = [&](size_t step) { return step % groups_.size(); };
    walk_permutations(
        steps, base,
        [&](size_t step, double kl_step, double loss_step, double weight) {
          const size_t g = owner(step);
          auto& sum = sums[g][at[g]];
          sum.first += kl_step * weight;
          sum.second += loss_step * weight;
        },
        [&](size_t step) {
          const size_t g = owner(step);
          assign(game_, groups_[g].candidates[--at[g]]);
        },
        [&] {
          for (size_t g = 0; g < groups_.size(); ++g) {
            double kl_total = 0, loss_total = 0;
            for (size_t level = levels - 1; level-- > 0;) {
              kl[g][level].add(kl_total += sums[g][level].first);
              loss[g][level].add(loss_total += sums[g][level].second);
            }
          }
          bool all = true;
          for (size_t level = 0; level + 1 < levels; ++level) all = all && settled(kl, level);
          return all;
        },
        [&](bool first_of_pair) {
          std::fill(at.begin(), at.end(), levels - 1);
          if (first_of_pair) sums.assign(groups_.size(), std::vector<std::pair<double, double>>(levels));
        });
    finish(kl, loss, base);
    return std::move(result_);
  }

 private:
  MeterResult measure() {
    MeterResult m = game_.measure();
    progress_(++result_.passes, total_);
    return m;
  }

  MeterResult best_everywhere() {
    for (const CandidateGroup& g : groups_) assign(game_, g.candidates.back());
    MeterResult m = measure();
    game_.commit();
    return m;
  }

  bool settled(const std::vector<std::vector<Moments>>& kl, size_t level) const {
    double total = 0, square = 0;
    for (const std::vector<Moments>& group : kl) {
      total += group[level].mean();
      square += group[level].error() * group[level].error();
    }
    return options_.target_se > 0 && kl.front()[level].n >= 3 &&
           std::sqrt(square) <= options_.target_se * std::abs(total);
  }

  // Pairs of an order and its reverse; every step is measured and committed; after a pair `take` reads what was
  // gathered and says whether that is enough.
  template <typename Step, typename Switch, typename Take, typename Begin>
  void walk_permutations(size_t steps, const MeterResult& base, Step&& step, Switch&& change, Take&& take,
                         Begin&& begin) {
    Rng rng(options_.seed, 77);
    for (int pair = 0; pair < std::max(1, options_.permutations / 2); ++pair) {
      std::vector<size_t> order = shuffled(steps, rng);
      pending_.assign(groups_.size(), {0.0, 0.0});
      for (int direction = 0; direction < 2; ++direction) {
        for (const CandidateGroup& g : groups_) assign(game_, g.candidates.back());
        game_.measure();
        game_.commit();
        begin(direction == 0);
        double kl = base.kl, loss = base.loss;
        for (size_t i : order) {
          change(i);
          const MeterResult m = measure();
          game_.commit();
          step(i, m.kl - kl, m.loss - loss, 0.5);
          kl = m.kl;
          loss = m.loss;
        }
        std::reverse(order.begin(), order.end());
      }
      if (take()) break;
    }
  }
  template <typename Step, typename Switch, typename Take>
  void walk_permutations(size_t steps, const MeterResult& base, Step&& step, Switch&& change, Take&& take) {
    walk_permutations(steps, base, step, change, take, [](bool) {});
  }

  // Values relative to the best format; the best formats' own cost is shared out by their relative errors.
  void finish(const std::vector<std::vector<Moments>>& kl, const std::vector<std::vector<Moments>>& loss,
              const MeterResult& base) {
    double errors = 0;
    for (const CandidateGroup& g : groups_) errors += g.candidates.back().relative_error;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const double share = errors > 0 ? groups_[g].candidates.back().relative_error / errors : 0;
      const size_t levels = groups_[g].candidates.size();
      for (size_t level = 0; level < levels; ++level) {
        Option& option = result_.table.groups[g].options[level];
        const bool best = level + 1 == levels;
        option.kl = base.kl * share + (best ? 0 : kl[g][level].mean());
        option.loss = base.loss * share + (best ? 0 : loss[g][level].mean());
        option.kl_se = best ? 0 : kl[g][level].error();
        option.loss_se = best ? 0 : loss[g][level].error();
      }
    }
    for (const CandidateGroup& g : groups_) restore(game_, g);
    game_.measure();
    game_.commit();
  }

  static LinearFit fit(const std::vector<double>& x, const std::vector<double>& y) {
    double xx = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      xx += x[i] * x[i];
      xy += x[i] * y[i];
      yy += y[i] * y[i];
    }
    LinearFit f;
    f.alpha = xy / xx;
    double residual = 0;
    for (size_t i = 0; i < x.size(); ++i) residual += std::pow(y[i] - f.alpha * x[i], 2);
    f.r2 = yy > 0 ? 1 - residual / yy : 1;
    if (x.size() > 1) f.alpha_se = std::sqrt(residual / static_cast<double>(x.size() - 1) / xx);
    return f;
  }

  Game& game_;
  const std::vector<CandidateGroup>& groups_;
  const EstimateOptions& options_;
  const EstimateProgress& progress_;
  Estimation result_;
  std::vector<std::pair<double, double>> pending_;
  int64_t total_ = 0;
};

}  // namespace

Estimation estimate(Game& game, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
                    const NoisyWeight& noisy, const EstimateProgress& progress) {
  check(!groups.empty(), "sensitivity: no groups to measure");
  Estimator e(game, groups, options, progress);
  if (options.method == "single") return e.single();
  if (options.method == "linear") return e.linear(noisy);
  if (options.method == "shapley") return e.shapley();
  if (options.method == "unified") return e.unified();
  throw Error("sensitivity method {}: expected single, linear, shapley or unified", options.method);
}

double ear_constant(const std::vector<MeterResult>& plans) {
  double square = 0;
  int64_t n = 0;
  for (const MeterResult& m : plans) {
    if (m.kl <= 0) continue;
    square += m.loss * m.loss / m.kl;
    ++n;
  }
  check(n > 0, "the EAR constant needs at least one plan with a KL above zero");
  return std::sqrt(square / static_cast<double>(n));
}

}  // namespace fidelio
