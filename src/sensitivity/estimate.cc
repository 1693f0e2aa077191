#include "sensitivity/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// Moments sums up samples for their mean and standard error.
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

void restore(Game& game, const CandidateGroup& group) {
  for (LinearId id : group.group.linears) game.restore(id);
}

SensitivityTable empty_table(const std::vector<CandidateGroup>& groups, const std::string& method) {
  SensitivityTable table;
  table.method = method;
  for (const CandidateGroup& g : groups) {
    Group row{g.group.name, {}, g.parameters, {}};
    for (LinearId id : g.group.linears) row.linears.push_back(to_string(id));
    for (const Candidate& c : g.candidates) row.options.push_back({.format = c.format, .bytes = c.bytes});
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
  Estimator(Players& players, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
            const EstimateProgress& progress)
      : players_(players), groups_(groups), options_(options), progress_(progress) {
    result_.table = empty_table(groups, options.method);
    result_.table.base_kl = options.base_kl;
    result_.table.base_loss = options.base_loss;
  }

  Estimation none() {
    for (Group& g : result_.table.groups)
      for (Option& o : g.options) o.measured = false;
    return std::move(result_);
  }

  Estimation every() {
    return one_at_a_time([](const CandidateGroup& group) {
      std::vector<size_t> all(group.candidates.size());
      std::iota(all.begin(), all.end(), size_t{0});
      return all;
    });
  }

  Estimation single() {
    // A group may lose nothing in the measured format (it is zeros, or its inputs never occur). That would say
    // nothing about its other formats, so the format with the largest error is measured then. If none has an error,
    // every format costs the same.
    const auto measured = [&](const CandidateGroup& group) {
      const auto found = std::find_if(group.candidates.begin(), group.candidates.end(),
                                      [&](const Candidate& c) { return c.format == options_.measured; });
      check(found != group.candidates.end(), "sensitivity: {} does not offer {}, the format to measure it in",
            group.group.name, to_string(options_.measured));
      const auto most =
          std::max_element(group.candidates.begin(), group.candidates.end(),
                           [](const Candidate& a, const Candidate& b) { return a.output_error < b.output_error; });
      return static_cast<size_t>((found->output_error > 0 ? found : most) - group.candidates.begin());
    };
    Estimation e = one_at_a_time([&](const CandidateGroup& group) { return std::vector{measured(group)}; });
    for (size_t g = 0; g < groups_.size(); ++g) {
      const size_t from = measured(groups_[g]);
      std::vector<Option>& options = e.table.groups[g].options;
      for (size_t c = 0; c < options.size(); ++c) {
        if (c == from) continue;
        const double whole = groups_[g].candidates[from].output_error;
        const double error = whole > 0 ? groups_[g].candidates[c].output_error / whole : 1;
        options[c].measured = false;
        options[c].kl = options[from].kl * error;
        options[c].kl_se = options[from].kl_se * error;
        options[c].loss = options[from].loss * std::sqrt(error);
        options[c].loss_se = options[from].loss_se * std::sqrt(error);
      }
    }
    return e;
  }

  Estimation linear(const NoisyWeight& noisy) {
    // The relative noise powers are half octaves below 4^-4. That is about what rounding to 4 bits makes, where the
    // regime is linear.
    const auto sigma = [](int level) { return std::pow(2.0, -4 - level * 0.5); };
    std::vector<GameJob> jobs;
    for (size_t g = 0; g < groups_.size(); ++g)
      jobs.push_back({expect(options_.noise_levels), [&, g](Game& game) {
                        std::vector<MeterResult> found;
                        for (int level = 0; level < options_.noise_levels; ++level) {
                          for (LinearId id : groups_[g].group.linears)
                            game.assign(id,
                                        noisy(id, sigma(level), options_.seed + 1000 * g + static_cast<uint64_t>(level),
                                              options_.uniform_noise));
                          found.push_back(measure(game));
                        }
                        restore(game, groups_[g]);
                        return found;
                      }});
    const auto found = players_.play(jobs);
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<double> power, kl, loss;
      for (int level = 0; level < options_.noise_levels; ++level) {
        const MeterResult& m = found[g][static_cast<size_t>(level)];
        power.push_back(sigma(level) * sigma(level));
        kl.push_back(m.kl - options_.base_kl);
        loss.push_back(m.loss - options_.base_loss);
        ++result_.passes;
      }
      result_.kl_fits.push_back(fit(power, kl));
      result_.loss_fits.push_back(fit(power, loss));
      for (size_t c = 0; c < groups_[g].candidates.size(); ++c) {
        const double e = groups_[g].candidates[c].relative_error;
        Option& option = result_.table.groups[g].options[c];
        option.measured = false;
        option.kl = e * result_.kl_fits.back().alpha;
        option.kl_se = e * result_.kl_fits.back().alpha_se;
        option.loss = e * result_.loss_fits.back().alpha;
        option.loss_se = e * result_.loss_fits.back().alpha_se;
      }
    }
    return std::move(result_);
  }

  Estimation shapley() {
    const size_t levels = common_levels();
    std::vector<std::vector<Moments>> kl(groups_.size(), std::vector<Moments>(levels)), loss = kl;
    const MeterResult base = best_everywhere();
    for (size_t level = 0; level + 1 < levels; ++level) {
      std::vector<std::pair<double, double>> values;
      walk_permutations(
          groups_.size(), base,
          [&](Game& game, size_t group, size_t) { assign(game, groups_[group], groups_[group].candidates[level]); },
          [&] {
            values.assign(groups_.size(), {0.0, 0.0});
          },
          [&](size_t group, size_t, double kl_step, double loss_step) {
            values[group].first += kl_step / 2;
            values[group].second += loss_step / 2;
          },
          [&] {
            for (size_t g = 0; g < groups_.size(); ++g) {
              kl[g][level].add(values[g].first);
              loss[g][level].add(values[g].second);
            }
            return settled(kl, level);
          });
    }
    finish(kl, loss, base);
    return std::move(result_);
  }

  // A step is "group i goes one level down". An order is a shuffled multiset of groups, in which each group occurs as
  // often as it has levels below the best.
  Estimation unified() {
    const size_t levels = common_levels();
    std::vector<std::vector<Moments>> kl(groups_.size(), std::vector<Moments>(levels)), loss = kl;
    const MeterResult base = best_everywhere();
    std::vector<std::vector<std::pair<double, double>>> sums;
    walk_permutations(
        groups_.size() * (levels - 1), base,
        [&](Game& game, size_t group, size_t before) {
          assign(game, groups_[group], groups_[group].candidates[levels - 2 - before]);
        },
        [&] { sums.assign(groups_.size(), std::vector<std::pair<double, double>>(levels)); },
        [&](size_t group, size_t before, double kl_step, double loss_step) {
          auto& sum = sums[group][levels - 2 - before];
          sum.first += kl_step / 2;
          sum.second += loss_step / 2;
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
        });
    finish(kl, loss, base);
    return std::move(result_);
  }

 private:
  // Measures one group after the other in those of its candidates that `which` returns.
  template <typename Which>
  Estimation one_at_a_time(const Which& which) {
    std::vector<GameJob> jobs;
    for (const CandidateGroup& group : groups_) {
      const std::vector<size_t> wanted = which(group);
      jobs.push_back({expect(static_cast<int64_t>(wanted.size())), [this, &group, wanted](Game& game) {
                        std::vector<MeterResult> found;
                        for (size_t c : wanted) {
                          if (!game.knows()) assign(game, group, group.candidates[c]);
                          found.push_back(measure(game));
                        }
                        restore(game, group);
                        return found;
                      }});
    }
    const auto found = players_.play(jobs);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<size_t> wanted = which(groups_[g]);
      for (size_t i = 0; i < wanted.size(); ++i) {
        const MeterResult& m = found[g][i];
        Option& option = result_.table.groups[g].options[wanted[i]];
        option.kl = m.kl - options_.base_kl;
        option.loss = m.loss - options_.base_loss;
        option.kl_se = standard_error(m.sequence_kl);
        option.loss_se = standard_error(m.sequence_loss);
        ++result_.passes;
      }
    }
    return std::move(result_);
  }

  // Reserves numbers for this many measurements, and adds them to the total that progress reports.
  int64_t expect(int64_t measurements) {
    total_ += measurements;
    return players_.reserve(measurements);
  }

  MeterResult measure(Game& game) {
    MeterResult m = game.measure();
    ++done_;
    progress_(done_, std::max(done_, total_ / players_.size()));
    return m;
  }

  size_t common_levels() const {
    const size_t levels = groups_.front().candidates.size();
    for (const CandidateGroup& g : groups_)
      check(g.candidates.size() == levels,
            "{}: every group must offer the same number of formats; {} offers {}, {} offers {}", options_.method,
            g.group.name, g.candidates.size(), groups_.front().group.name, levels);
    return levels;
  }

  void start_at_best(Game& game) const {
    for (const CandidateGroup& g : groups_) assign(game, g, g.candidates.back());
  }

  MeterResult best_everywhere() {
    ++result_.passes;
    return players_
        .play({{expect(1),
                [&](Game& game) {
                  start_at_best(game);
                  return std::vector{measure(game)};
                }}})
        .front()
        .front();
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

  // Walks from the best formats down one order of steps. The result includes the measurement at the start.
  template <typename Switch>
  std::vector<MeterResult> walk(Game& game, const std::vector<size_t>& order, const Switch& change) {
    start_at_best(game);
    std::vector<MeterResult> found = {game.measure()};
    game.commit();
    std::vector<size_t> before(groups_.size());
    for (size_t step : order) {
      const size_t group = step % groups_.size();
      change(game, group, before[group]++);
      found.push_back(measure(game));
      game.commit();
    }
    return found;
  }

  // Walks through pairs of an order and its reverse. Every step is measured and committed. After each pair `take`
  // reads what was gathered and says whether that is enough. Step s switches group s modulo the number of groups;
  // `change` and `step` are told how often the walk has switched that group before. Each walk is a job. If the errors
  // decide when to stop, only as many pairs are walked before each check as give every rank a walk. Walks beyond the
  // end are ignored, so the result is that of one rank.
  template <typename Switch, typename Begin, typename Step, typename Take>
  void walk_permutations(size_t steps, const MeterResult& base, const Switch& change, const Begin& begin,
                         const Step& step, const Take& take) {
    const int pairs = std::max(1, options_.permutations / 2);
    Rng rng(options_.seed, 77);
    std::vector<std::vector<size_t>> orders;
    for (int pair = 0; pair < pairs; ++pair) {
      orders.push_back(shuffled(steps, rng));
      orders.emplace_back(orders.back().rbegin(), orders.back().rend());
    }
    const int64_t length = static_cast<int64_t>(steps) + 1, place = expect(2 * pairs * length);
    const int wave = options_.target_se > 0 ? (players_.size() + 1) / 2 : pairs;
    for (int first = 0; first < pairs; first += wave) {
      std::vector<GameJob> jobs;
      for (int walk_number = 2 * first; walk_number < 2 * std::min(first + wave, pairs); ++walk_number)
        jobs.push_back({place + walk_number * length, [&, walk_number](Game& game) {
                          return walk(game, orders[static_cast<size_t>(walk_number)], change);
                        }});
      const auto found = players_.play(jobs);
      for (size_t w = 0; w < found.size(); ++w) {
        if (w % 2 == 0) begin();
        const std::vector<size_t>& order = orders[2 * static_cast<size_t>(first) + w];
        std::vector<size_t> before(groups_.size());
        double kl = base.kl, loss = base.loss;
        for (size_t i = 0; i < order.size(); ++i) {
          const MeterResult& m = found[w][i + 1];
          const size_t group = order[i] % groups_.size();
          step(group, before[group]++, m.kl - kl, m.loss - loss);
          kl = m.kl;
          loss = m.loss;
        }
        result_.passes += static_cast<int64_t>(order.size());
        if (w % 2 == 1 && take()) return;
      }
    }
  }

  // Values are relative to the best format. The cost of the best formats themselves is divided among the groups by
  // their relative errors.
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
        option.kl = (base.kl - options_.base_kl) * share + (best ? 0 : kl[g][level].mean());
        option.loss = (base.loss - options_.base_loss) * share + (best ? 0 : loss[g][level].mean());
        option.kl_se = best ? 0 : kl[g][level].error();
        option.loss_se = best ? 0 : loss[g][level].error();
      }
    }
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

  Players& players_;
  const std::vector<CandidateGroup>& groups_;
  const EstimateOptions& options_;
  const EstimateProgress& progress_;
  Estimation result_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

void assign(Game& game, const CandidateGroup& group, const Candidate& candidate) {
  for (LinearId id : group.group.linears) game.assign(id, candidate.packed(id));
}

void assign(Game& game, const CandidateGroup& group, const FormatSpec& format) {
  for (const Candidate& c : group.candidates)
    if (c.format == format) assign(game, group, c);
}

Estimation estimate(Players& players, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
                    const NoisyWeight& noisy, const EstimateProgress& progress) {
  check(!groups.empty(), "sensitivity: no groups to measure");
  Estimator e(players, groups, options, progress);
  if (options.method == "none") return e.none();
  if (options.method == "single") return e.single();
  if (options.method == "every") return e.every();
  if (options.method == "linear") return e.linear(noisy);
  if (options.method == "shapley") return e.shapley();
  if (options.method == "unified") return e.unified();
  throw Error("sensitivity method {}: expected none, single, every, linear, shapley or unified", options.method);
}

double ear_constant(const std::vector<MeterResult>& plans) {
  double square = 0;
  int64_t n = 0;
  for (const MeterResult& m : plans) {
    if (m.kl <= 0) continue;
    square += m.loss * m.loss / m.kl;
    ++n;
  }
  check(n > 0,
        "no format offered changes what the model says on the search text: there is nothing to choose between. Offer "
        "narrower ones (--formats)");
  return std::sqrt(square / static_cast<double>(n));
}

}  // namespace fidelio
