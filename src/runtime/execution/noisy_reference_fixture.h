// NoisyReference runs a program in double, once exactly and a few times with noise on the result of every operation, as
// large as what FP32 rounds away there. It tells how far a sound executor in FP32 may be from the exact logits.
#pragma once
#include <cmath>
#include <limits>
#include <set>

#include "runtime/execution/random_model_fixture.h"

namespace fidelio {

inline double root_mean_square(std::span<const double> values) {
  double square = 0;
  for (const double v : values) square += v * v;
  return std::sqrt(square / static_cast<double>(std::max<size_t>(1, values.size())));
}
inline double largest_difference(std::span<const double> a, std::span<const double> b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // both are -infinity outside a draft's vocabulary
    const double difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
  }
  return most;
}

// This is a reference executor whose results are disturbed. An operation that sums n terms rounds n times, each time by
// up to u = 2^-24 of the sum so far: together by about u sqrt(n) of the size of the row of sums. Its result is rounded
// once more, by u of itself. The disturbance has that size and a random sign.
class NoisyExecutor {
 public:
  // `product_rounding`: by how many u a product of the backend rounds a sum.
  NoisyExecutor(const Program& program, const ref::Weights& weights, int64_t pages, int64_t slots,
                double product_rounding, uint64_t seed)
      : program_(program), product_rounding_(product_rounding), runs_(program, weights, pages, slots), rng_(seed) {}

  void begin(const Batch& batch) {
    runs_.begin(batch);
    positions_.clear();
    for (const Segment& s : batch.segments)
      for (int32_t i = 0; i < s.rows; ++i) positions_.push_back(s.position + i);
  }
  std::vector<double>& value(ValueId id) { return runs_.value(id); }
  void run(int32_t index) {
    index_ = index;
    std::visit([this](const auto& o) { run(o); }, program_.ops[static_cast<size_t>(index)]);
  }

 private:
  static constexpr double kUnit = 0x1p-24;
  // The functions of gates, and the factors of norms, round that many times.
  static constexpr double kFunctionTerms = 4;

  void run_exactly() { runs_.run(OpRange{index_, index_ + 1}); }
  const Value& value_of(ValueId id) const { return program_.values[static_cast<size_t>(id)]; }
  // Disturbs rows of a value that was `before`, to which the operation added sums of `terms` terms.
  void disturb(ValueId id, double terms, std::span<const double> before = {}, double rounding = 1) {
    std::vector<double>& after = value(id);
    if (after.empty()) return;
    const size_t columns = id == program_.draft_logits ? after.size() : static_cast<size_t>(value_of(id).columns);
    for (size_t first = 0; first < after.size(); first += columns) {
      std::vector<double> sums(after.begin() + static_cast<int64_t>(first),
                               after.begin() + static_cast<int64_t>(first + columns));
      for (size_t i = 0; i < columns && !before.empty(); ++i) sums[i] -= before[first + i];
      const double of_sums = kUnit * rounding * std::sqrt(terms) * root_mean_square(sums);
      for (size_t i = first; i < first + columns; ++i) after[i] += (kUnit * std::abs(after[i]) + of_sums) * sign();
    }
  }
  int sign() {
    if (signs_left_ == 0) signs_ = rng_.next(), signs_left_ = 64;
    return (signs_ >> --signs_left_ & 1) != 0 ? 1 : -1;
  }
  void run_product(std::span<const ValueId> outputs, double terms, bool adds) {
    std::vector<std::vector<double>> before;
    for (const ValueId to : outputs) before.push_back(adds ? value(to) : std::vector<double>());
    run_exactly();
    for (size_t i = 0; i < outputs.size(); ++i) disturb(outputs[i], terms, before[i], product_rounding_);
  }
  void run_adding(ValueId to, double terms) {
    const std::vector<double> before = value(to);
    run_exactly();
    disturb(to, terms, before);
  }

  void run(const op::Embed& o) { run_exactly(), disturb(o.to, 1); }
  void run(const op::Norm& o) { run_exactly(), disturb(o.to, kFunctionTerms); }
  void run(const op::AddNorm& o) { run_adding(o.to, kFunctionTerms); }
  void run(const op::Product& o) {
    std::vector<ValueId> outputs;
    for (const op::Output& output : o.outputs) outputs.push_back(output.to);
    run_product(outputs, static_cast<double>(value_of(o.from).columns), o.adds);
  }
  // Keys are disturbed before they are turned and kept, which makes no difference. The scores, sums of e terms, are
  // disturbed by the queries.
  void run(const op::Heads& o) {
    disturb(o.k, kFunctionTerms);
    run_exactly();
    disturb(o.q, kFunctionTerms + program_.attention.head_dim_of(o.layer));
  }
  void run(const op::Queries& o) {
    run_exactly();
    disturb(o.q, kFunctionTerms + program_.attention.head_dim_of(o.layer));
  }
  void run(const op::NormHeads& o) {
    if (o.adds) return run_adding(o.to, kFunctionTerms);
    run_exactly(), disturb(o.to, kFunctionTerms);
  }
  void run(const op::Columns&) { run_exactly(); }
  void run(const op::Clear&) { run_exactly(); }
  void run(const op::Scale& o) { run_exactly(), disturb(o.to, 1); }
  void run(const op::Softcap& o) { run_exactly(), disturb(o.to, kFunctionTerms); }
  void run(const op::Attend& o) {
    run_exactly();
    disturb(o.to, kFunctionTerms + static_cast<double>(*std::ranges::max_element(positions_)));
  }
  void run(const op::GateHeads& o) { run_exactly(), disturb(o.to, kFunctionTerms); }
  void run(const op::SplitGate&) { run_exactly(); }
  void run(const op::Convolve& o) { run_exactly(), disturb(o.to, kFunctionTerms + program_.state.rows + 1); }
  // A state is rounded at each row, in the sums over a column of it too. Its errors are those of the rows that are
  // written to it, and last.
  void run(const op::DeltaRule& o) {
    const double terms = kFunctionTerms + program_.state.key_dim;
    disturb(o.from, terms), disturb(o.b, kFunctionTerms), disturb(o.a, kFunctionTerms);
    run_exactly();
    disturb(o.to, terms + static_cast<double>(*std::ranges::max_element(positions_)));
  }
  void run(const op::GatedNorm& o) { run_exactly(), disturb(o.to, 2 * kFunctionTerms); }
  void run(const op::AddShared& o) { run_adding(o.to, kFunctionTerms); }
  void run(const op::Before&) { run_exactly(); }
  void run(const op::Carry&) { run_exactly(); }
  void run(const op::Join&) { run_exactly(); }
  void run(const op::Gated& o) { run_exactly(), disturb(o.to, kFunctionTerms); }
  void run(const op::Turn& o) {
    run_exactly();
    disturb(o.to, static_cast<double>(program_.hadamards[static_cast<size_t>(o.hadamard)].order));
  }
  void run(const op::Reorder&) { run_exactly(); }
  void run(const op::Route& o) {
    const ValueId outputs[] = {o.logits};
    run_product(outputs, static_cast<double>(value_of(o.from).columns), false);
  }
  void run(const op::Take&) { run_exactly(); }
  void run(const op::RoutedProduct& o) {
    std::vector<ValueId> outputs;
    for (const op::RoutedOutput& output : o.outputs) outputs.push_back(output.to);
    run_product(outputs, static_cast<double>(value_of(o.from).columns), false);
  }
  void run(const op::Combine& o) { run_adding(o.to, program_.routing.per_row); }
  void run(const op::Spread&) { run_exactly(); }

  const Program& program_;
  const double product_rounding_;
  ref::Executor runs_;
  Rng rng_;
  uint64_t signs_ = 0;
  int signs_left_ = 0;
  std::vector<int32_t> positions_;
  int32_t index_ = 0;
};

// Holds the logits of a step, row by row, and how far noise moved them.
struct ReferenceRow {
  std::vector<double> logits;
  double noise = 0;  // the largest deviation of a logit in any of the runs with noise
  bool is_decided =
      true;  // no noise is near to changing the experts of this row, nor those of one before it in its sequence
};

class NoisyReference {
 public:
  // `margin`: an executor may deviate by so many times what the noise does.
  NoisyReference(const Program& program, const ref::Weights& weights, int64_t pages, int64_t slots,
                 double product_rounding, double margin)
      : program_(program), weights_(weights), margin_(margin), exact_(program, weights, pages, slots) {
    for (uint64_t run = 0; run < kNoisyRuns; ++run)
      noisy_.emplace_back(program, weights, pages, slots, product_rounding, run);
  }

  std::vector<ReferenceRow> step(const Batch& batch, bool reads_draft_head) {
    exact_.begin(batch);
    for (NoisyExecutor& noisy : noisy_) noisy.begin(batch);
    undecided_.assign(static_cast<size_t>(batch.rows()), false);
    run({0, program_.layers.back().last});
    follow_undecided(batch);
    if (!batch.logit_rows.empty()) run(reads_draft_head ? program_.draft_head : program_.head);
    std::vector<ReferenceRow> rows;
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      rows.push_back({logits(exact_, i), 0, !undecided_[static_cast<size_t>(batch.logit_rows[i])]});
      for (NoisyExecutor& noisy : noisy_)
        rows.back().noise = std::max(rows.back().noise, largest_difference(logits(noisy, i), rows.back().logits));
    }
    return rows;
  }

 private:
  static constexpr uint64_t kNoisyRuns = 4;

  void run(OpRange range) {
    for (int32_t i = range.first; i < range.last; ++i) {
      exact_.run(OpRange{i, i + 1});
      for (NoisyExecutor& noisy : noisy_) noisy.run(i);
      if (const auto* route = std::get_if<op::Route>(&program_.ops[static_cast<size_t>(i)])) find_undecided(*route);
    }
  }
  template <typename E>
  std::vector<double> logits(E& executor, size_t row) {
    return row_of(executor.value(program_.logits), row, program_.values[static_cast<size_t>(program_.logits)].columns);
  }
  static std::vector<double> row_of(const std::vector<double>& matrix, size_t row, int64_t columns) {
    const auto first = matrix.begin() + static_cast<int64_t>(row) * columns;
    return {first, first + columns};
  }
  // A row's choice is undecided where the last expert that is chosen and the first that is not are as near as they may
  // move, or the last group and the first that is not.
  void find_undecided(const op::Route& route) {
    const RoutingRule& rule = program_.routing;
    const std::vector<double>& adjustments = weights_.adjustments[static_cast<size_t>(route.router)];
    for (size_t row = 0; row < undecided_.size(); ++row) {
      const auto choice = [&](auto& executor) {
        return ref::choice_scores(row_of(executor.value(route.logits), row, rule.experts), rule, adjustments);
      };
      std::vector<double> by = choice(exact_);
      double noise = 0;
      for (NoisyExecutor& noisy : noisy_) noise = std::max(noise, largest_difference(choice(noisy), by));
      if (rule.groups > 1) {
        const std::vector<double> groups = ref::group_scores(by, rule);
        if (gap_after(groups, rule.groups_per_row) <= 4 * margin_ * noise) undecided_[row] = true;
        by = of_kept_groups(by, groups);
      }
      if (gap_after(by, rule.per_row) <= 2 * margin_ * noise) undecided_[row] = true;
    }
  }
  // Returns how far the last of the `count` largest is above the next.
  static double gap_after(std::vector<double> values, int count) {
    if (count == std::ssize(values)) return std::numeric_limits<double>::infinity();
    std::ranges::sort(values, std::greater());
    return values[static_cast<size_t>(count - 1)] - values[static_cast<size_t>(count)];
  }
  std::vector<double> of_kept_groups(std::span<const double> by, const std::vector<double>& groups) const {
    std::vector<double> sorted = groups, kept;
    std::ranges::sort(sorted, std::greater());
    const size_t each = by.size() / groups.size();
    for (size_t i = 0; i < by.size(); ++i)
      if (groups[i / each] >= sorted[static_cast<size_t>(program_.routing.groups_per_row - 1)]) kept.push_back(by[i]);
    return kept;
  }
  // The rows of a sequence behind an undecided one attend to it, or to the state that it changed.
  void follow_undecided(const Batch& batch) {
    for (const Segment& s : batch.segments) {
      const int32_t sequence = batch.pages_of(s)[0];
      bool is_undecided = undecided_sequences_.contains(sequence);
      for (int32_t row = s.first_row; row < s.first_row + s.rows; ++row) {
        is_undecided = is_undecided || undecided_[static_cast<size_t>(row)];
        undecided_[static_cast<size_t>(row)] = is_undecided;
      }
      if (is_undecided) undecided_sequences_.insert(sequence);
    }
  }

  const Program& program_;
  const ref::Weights& weights_;
  const double margin_;
  ref::Executor exact_;
  std::vector<NoisyExecutor> noisy_;
  std::vector<bool> undecided_;            // by row of the step
  std::set<int32_t> undecided_sequences_;  // by their first page
};

}  // namespace fidelio
