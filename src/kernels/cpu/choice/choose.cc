#include "kernels/cpu/choice/choose.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/cpu/choice/choose_kernels.h"
#include "step/choice_race.h"

namespace fidelio {

float log_probability(const Choice& choice) {
  const double sum = std::ldexp(static_cast<double>(choice.total), -choice::kWeightBits);
  return static_cast<float>(static_cast<double>(choice.logit) - static_cast<double>(choice.top) - std::log(sum));
}

namespace cpu {
namespace {

// Tokens at most so many halvings below the best are near; kNearest is the smallest such limit.
constexpr float kNear = 16, kNearest = 4;
constexpr int64_t kMostNear = 8192;  // tokens
constexpr float kFlat = 24;          // halvings: a row with all tokens within this distance has too many near ones

struct Token {
  uint64_t rank, weight;
};
bool is_better(const Token& a, const Token& b) { return a.rank > b.rank; }
uint64_t weight_of(std::span<const Token> tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), uint64_t{0},
                         [](uint64_t sum, const Token& t) { return sum + t.weight; });
}

// A Prefix is a prefix of the order: its weight, and the rank of its last token.
struct Prefix {
  uint64_t weight, last;
};

// Returns the shortest prefix of these tokens that, with the weight of those before them, reaches the weight wanted.
// All of them together must reach it.
Prefix shortest(std::span<Token> tokens, uint64_t before, uint64_t wanted) {
  constexpr size_t kFew = 16;
  while (tokens.size() > kFew) {
    const size_t half = tokens.size() / 2;
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(half) - 1, tokens.end(), is_better);
    const uint64_t weight = weight_of(tokens.first(half));
    if (before + weight >= wanted) {
      tokens = tokens.first(half);
    } else {
      before += weight;
      tokens = tokens.subspan(half);
    }
  }
  std::sort(tokens.begin(), tokens.end(), is_better);
  size_t last = 0;
  for (before += tokens[0].weight; before < wanted;) before += tokens[++last].weight;
  return {before, tokens[last].rank};
}

const ChoiceKernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return kChoiceAvx512;
  if (isa == Isa::avx2) return kChoiceAvx2;
#endif
  return kChoicePortable;
}

}  // namespace

struct Chooser::Scratch {
  explicit Scratch(const ChoiceKernels& of) : kernels(of) {}

  const ChoiceKernels& kernels;
  ChoiceBins bins{};
  std::vector<float> changed, near;
  std::vector<int32_t> near_ids, found;
  std::vector<Token> tokens;

  // These describe the row under work, after its changes, and its rule.
  std::span<const float> row;
  Distances distances{};
  float lowest = 0;
  uint64_t total = 0;

  // These are the tokens that are ranked: all of the row, or those near the best.
  std::span<const float> ranked;
  const int32_t* ids = nullptr;  // null if their places are their ids
  float reach = 0;               // halvings: the ranked tokens are all those at most so far below the best

  bool begin(std::span<const float> logits, const ChoiceRule& rule);
  bool rank_near();
  void rank_all();
  void fill_bins(float farthest);
  std::span<Token> tokens_of_bin(int32_t bin);
  std::optional<Prefix> of_weight(uint64_t wanted);
  std::optional<Prefix> of_count(int64_t count);
  std::optional<Prefix> kept_by(const ChoiceRule& rule);
  int32_t sample(const ChoiceRule& rule);
};

Chooser::Chooser(Isa isa) : scratch_(new Scratch(kernels_of(isa))) {}
Chooser::~Chooser() = default;
Chooser::Chooser(Chooser&&) noexcept = default;

// Prepares a row; returns false if it has no best token.
bool Chooser::Scratch::begin(std::span<const float> logits, const ChoiceRule& rule) {
  row = logits;
  if (!rule.changes.empty()) {
    changed.assign(logits.begin(), logits.end());
    for (const LogitChange& c : rule.changes) {
      float& x = changed[static_cast<size_t>(c.id)];
      x = choice::changed(x, c.repeated, rule.repetition, c.less, c.more);
    }
    row = changed;
  }
  const RowRange range = kernels.range(row.data(), static_cast<int64_t>(row.size()));
  distances = {range.top, rule.scale};
  lowest = range.lowest;
  return range.orderable && range.top > -INFINITY;
}

// Sums all weights and ranks the tokens near the best; returns false if those are too many.
bool Chooser::Scratch::rank_near() {
  if (choice::distance(distances.top, lowest, distances.scale) < kFlat && static_cast<int64_t>(row.size()) > kMostNear)
    return false;
  found.resize(static_cast<size_t>(kMostNear + kChoiceSlack));
  NearTokens nearest{kNear, kNearest, kMostNear, 0};
  total = kernels.weigh(row.data(), static_cast<int64_t>(row.size()), distances, &nearest, found.data());
  if (nearest.cut < 0) return false;
  near_ids.assign(found.begin(), found.begin() + nearest.count);
  near.resize(near_ids.size());
  std::transform(near_ids.begin(), near_ids.end(), near.begin(),
                 [&](int32_t id) { return row[static_cast<size_t>(id)]; });
  ranked = near;
  ids = near_ids.data();
  reach = nearest.cut;
  fill_bins(reach);
  return true;
}

void Chooser::Scratch::rank_all() {
  ranked = row;
  ids = nullptr;
  reach = INFINITY;
  const float farthest = choice::distance(distances.top, lowest, distances.scale);
  fill_bins(std::min(farthest, choice::kFarthest));
  total = std::accumulate(bins.weight, bins.weight + kChoiceBins, uint64_t{0});
}

// Fills bins that are as fine as the tokens' distances allow.
void Chooser::Scratch::fill_bins(float farthest) {
  constexpr float kLeast = 1e-6f;  // halvings: tokens that lie closer together are as good as equal
  bins = {};
  bins.per_halving = static_cast<float>(kChoiceBins) / std::max(farthest, kLeast);
  kernels.fill(ranked.data(), static_cast<int64_t>(ranked.size()), distances, &bins);
}

std::span<Token> Chooser::Scratch::tokens_of_bin(int32_t bin) {
  found.resize(ranked.size() + kChoiceSlack);
  const int64_t count = kernels.gather(ranked.data(), static_cast<int64_t>(ranked.size()), distances, bins.per_halving,
                                       bin, found.data());
  tokens.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = found[static_cast<size_t>(i)];
    const float x = ranked[static_cast<size_t>(place)];
    tokens.push_back({choice::rank_of(x, ids ? ids[place] : place),
                      choice::weight_at(choice::distance(distances.top, x, distances.scale))});
  }
  return tokens;
}

// Returns the shortest prefix that has this weight, or nothing if the ranked tokens do not reach it.
std::optional<Prefix> Chooser::Scratch::of_weight(uint64_t wanted) {
  uint64_t before = 0;
  for (int32_t bin = 0; bin < kChoiceBins; ++bin) {
    if (before + bins.weight[bin] >= wanted) return shortest(tokens_of_bin(bin), before, wanted);
    before += bins.weight[bin];
  }
  return std::nullopt;
}

// Returns the prefix of `count` tokens, or nothing if there are fewer ranked tokens.
std::optional<Prefix> Chooser::Scratch::of_count(int64_t count) {
  uint64_t weight = 0;
  for (int32_t bin = 0; bin < kChoiceBins; ++bin) {
    if (count <= bins.count[bin]) {
      const auto last = static_cast<size_t>(count) - 1;
      const std::span<Token> here = tokens_of_bin(bin);
      std::nth_element(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(last), here.end(), is_better);
      return Prefix{weight + weight_of(here.first(last + 1)), here[last].rank};
    }
    count -= bins.count[bin];
    weight += bins.weight[bin];
  }
  return std::nullopt;
}

// Returns what top-k and top-p leave, or nothing if the ranked tokens do not tell.
std::optional<Prefix> Chooser::Scratch::kept_by(const ChoiceRule& rule) {
  Prefix kept{total, 0};
  const auto keep = [&](const std::optional<Prefix>& prefix) {
    if (prefix) kept = *prefix;
    return prefix.has_value();
  };
  if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(row.size()) && !keep(of_count(rule.top_k)))
    return std::nullopt;
  if (rule.top_p < 1 && !keep(of_weight(choice::part_of(rule.top_p, kept.weight)))) return std::nullopt;
  return kept;
}

int32_t Chooser::Scratch::sample(const ChoiceRule& rule) {
  Starters starters{std::min(rule.farthest, choice::kLastStarter), -INFINITY, -1};
  ranked = row;
  ids = nullptr;
  const bool all = rule.top_p >= 1 && (rule.top_k <= 0 || rule.top_k >= static_cast<int64_t>(row.size()));
  if (!all) {
    std::optional<Prefix> kept;
    if (rank_near()) kept = kept_by(rule);
    if (!kept) {
      rank_all();
      kept = kept_by(rule);
    }
    starters.last_id = choice::id_of(kept->last);
    starters.last = row[static_cast<size_t>(starters.last_id)];
  }
  return kernels.race(ranked.data(), ids, static_cast<int64_t>(ranked.size()), distances, starters, rule.random);
}

Choice Chooser::choose(std::span<const float> logits, const ChoiceRule& rule) {
  Scratch& s = *scratch_;
  Choice choice;
  if (!s.begin(logits, rule)) return choice;
  const auto n = static_cast<int64_t>(logits.size());
  choice.id = rule.greedy ? static_cast<int32_t>(s.kernels.find(s.row.data(), n, s.distances.top)) : s.sample(rule);
  if (!rule.wants_probability) return choice;
  choice.logit = logits[static_cast<size_t>(choice.id)];
  choice.top = rule.changes.empty() ? s.distances.top : s.kernels.range(logits.data(), n).top;
  s.found.resize(kChoiceSlack);
  NearTokens none{-1, 0, 0, 0};
  choice.total = s.kernels.weigh(logits.data(), n, {choice.top, choice::kNaturalScale}, &none, s.found.data());
  return choice;
}

TokenDistribution Chooser::distribution(std::span<const float> logits, const ChoiceRule& rule) {
  Scratch& s = *scratch_;
  TokenDistribution left;
  if (!s.begin(logits, rule)) return left;
  const auto add = [&](int32_t id, uint64_t weight) {
    if (weight == 0) return;
    left.ids.push_back(id);
    left.logits.push_back(s.row[static_cast<size_t>(id)]);
    left.weights.push_back(weight);
    left.total += weight;
  };
  const auto n = static_cast<int64_t>(logits.size());
  if (rule.greedy) {
    add(static_cast<int32_t>(s.kernels.find(s.row.data(), n, s.distances.top)), 1);
    return left;
  }
  std::optional<Prefix> kept;
  if (s.rank_near()) kept = s.kept_by(rule);
  if (!kept) {
    s.rank_all();
    kept = s.kept_by(rule);
  }
  const float last =
      kept->last == 0
          ? INFINITY
          : choice::distance(s.distances.top, s.row[static_cast<size_t>(choice::id_of(kept->last))], s.distances.scale);
  s.found.resize(static_cast<size_t>(n + kChoiceSlack));
  NearTokens kept_ones{std::min({last, rule.farthest, choice::kFarthest}), 0, n, 0};
  s.kernels.weigh(s.row.data(), n, s.distances, &kept_ones, s.found.data());
  for (int64_t i = 0; i < kept_ones.count; ++i) {
    const int32_t id = s.found[static_cast<size_t>(i)];
    const float x = s.row[static_cast<size_t>(id)];
    if (choice::rank_of(x, id) >= kept->last)
      add(id, choice::weight_at(choice::distance(s.distances.top, x, s.distances.scale)));
  }
  return left;
}

void choose_rows(ThreadPool& pool, std::span<Chooser> choosers, std::span<const float> logits,
                 std::span<const ChoiceRule> rules, std::span<Choice> choices) {
  const size_t v = rules.empty() ? 0 : logits.size() / rules.size();
  pool.run(static_cast<int64_t>(rules.size()), [&](int64_t row, int thread) {
    const auto i = static_cast<size_t>(row);
    choices[i] = choosers[static_cast<size_t>(thread)].choose(logits.subspan(i * v, v), rules[i]);
  });
}

}  // namespace cpu
}  // namespace fidelio
