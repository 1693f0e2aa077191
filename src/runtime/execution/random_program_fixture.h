// This fixture holds an Executor to kernels/ref over random programs, weights and batches ("fast equals slow").
//
// How near is near enough follows from the arithmetic: NoisyReference disturbs every operation as FP32 does, and a row
// of logits may be off by kMargin times the most that this noise moved it.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "runtime/execution/executor.h"
#include "runtime/execution/noisy_reference_fixture.h"
#include "runtime/execution/random_batches_fixture.h"

namespace fidelio {

// The executor's roundings are one more draw of the noise, which is nearly normal, because it sums many. The largest of
// four draws of a normal deviate is 1.5 standard deviations on average; of the test's 6,800 rows it is 3.8, and three
// times 1.5 leaves room for draws that are small.
inline constexpr double kMargin = 3;

// A random model on a backend.
template <Backend B>
class FastModel {
 public:
  // `program`: the model's own, or a damaged one that the test is to find out.
  FastModel(B backend, const RandomModel& m, const Program& program, int64_t pages, int64_t rows, int64_t slots)
      : b_(std::move(backend)),
        program_(program),
        weights_(program),
        executor_(b_, program_, weights_, values_, cache_, states_) {
    pack(m);
    allocate_values(b_, program_, rows, rows, values_);
    weights_.draft_head.logits = b_.allocate(rows, std::ssize(m.draft_tokens));
    executor_.find_values();
    cache_ = b_.allocate_cache(program_.attention, pages, KvFormat::f32);
    states_ = b_.allocate_states(program_.state, slots);
    int64_t widest = 0;
    for (const Value& v : program_.values) widest = std::max(widest, v.columns);
    b_.reserve(rows * slots_per_row(m.config), widest, kRandomContext);
  }

  std::vector<float> step(const Batch& batch, bool reads_draft_head) {
    const auto count = static_cast<int64_t>(batch.logit_rows.size()),
               v = program_.values[static_cast<size_t>(program_.logits)].columns;
    executor_.begin(batch.rows(), reads_draft_head);
    b_.begin(batch, {Activations::f32, 0, reads_draft_head}, program_.attention);
    executor_.run(program_.embedding);
    for (const OpRange& layer : program_.layers) executor_.run(layer);
    std::vector<float> logits(static_cast<size_t>(count * v));
    for (int64_t first = 0; first < count; first += kHeadRows) {
      const int64_t rows = std::min(kHeadRows, count - first);
      executor_.run_head(first, rows);
      b_.download(executor_.matrix(program_.logits), 0, rows,
                  std::span(logits).subspan(static_cast<size_t>(first * v), static_cast<size_t>(rows * v)));
    }
    return logits;
  }

 private:
  typename Weights<B>::Linear packed(const LinearWeight& weight) {
    return std::make_shared<const typename B::Linear>(b_.pack(weight));
  }
  void pack(const RandomModel& m) {
    for (size_t i = 0; i < m.linears.size(); ++i) weights_.linears[i] = packed(m.linears[i]);
    for (const std::vector<float>& norm : m.norms) {
      weights_.norms.push_back(b_.allocate(1, std::ssize(norm)));
      b_.upload(norm, weights_.norms.back());
    }
    for (size_t i = 0; i < m.routers.size(); ++i)
      weights_.routers.push_back(pack_router(b_, m.routers[i], m.adjustments[i]));
    for (const RandomDelta& d : m.deltas)
      weights_.deltas.push_back(upload_delta(b_, m.config.delta, d.convolution, d.log_rate, d.step_bias));
    for (const std::vector<int32_t>& order : m.orders)
      weights_.orders.push_back(b_.make_order(order, m.config.kept_columns));
    load_signs(b_, program_, weights_);
    for (int layer = 0; layer < m.config.L; ++layer) collect_experts(b_, program_, layer, weights_);
    weights_.draft_head.rows = packed(m.draft_head);
    weights_.draft_head.tokens = b_.make_token_set(m.draft_tokens, m.config.v);
  }

  static constexpr int64_t kHeadRows = 4;  // logits are computed so many rows at a time
  B b_;
  const Program program_;
  Weights<B> weights_;
  ValueMemory<B> values_;
  typename B::KvCache cache_;
  typename B::States states_;
  Executor<B> executor_;
};

// Says how a test wants its programs to be run.
template <Backend B>
struct RandomPrograms {
  std::function<B(uint64_t seed, bool is_long)> make;
  ShapeLimits limits;
  double product_rounding = 1;  // by how many u a product rounds a sum (NoisyExecutor)

  struct Result {
    int64_t rows = 0, undecided = 0, deviating = 0;
    double worst = 0;  // the largest deviation over the row's noise
  };

  // Runs the program of one seed. `damage` may change what the executor runs; where it returns false nothing is run.
  Result run(uint64_t seed, const std::function<bool(Program&)>& damage = {}) const {
    const RandomModel m = random_model(seed, limits);
    Program program = m.program;
    if (damage && !damage(program)) return {};
    const bool is_long = seed % 64 == 63;
    Draw draw(seed + 1000000);
    RandomBatches batches(draw, m.config.v, is_long, B::kOneKindAStep, !m.deltas.empty());
    FastModel<B> fast(make(seed, is_long), m, program, batches.pages(), batches.rows(), batches.slots());
    const ref::Weights weights = reference_weights(m);
    NoisyReference reference(m.program, weights, batches.pages(), batches.slots(), product_rounding, kMargin);
    Result result;
    for (Batch batch; batches.next(batch);) {
      const bool reads_draft_head = draw.one_in(4);
      const std::vector<float> logits = fast.step(batch, reads_draft_head);
      compare(reference.step(batch, reads_draft_head), logits, result);
    }
    return result;
  }

 private:
  static void compare(const std::vector<ReferenceRow>& rows, std::span<const float> logits, Result& result) {
    auto next = logits.begin();
    for (const ReferenceRow& row : rows) {
      const std::vector<double> fast(next, next + std::ssize(row.logits));
      next += std::ssize(row.logits);
      ++result.rows;
      if (!row.is_decided) {
        ++result.undecided;
        continue;
      }
      const double deviation = largest_difference(fast, row.logits);
      if (!(deviation <= kMargin * row.noise)) ++result.deviating;
      if (row.noise > 0) result.worst = std::max(result.worst, deviation / row.noise);
    }
  }
};

template <Backend B>
void expect_fast_equals_slow(const RandomPrograms<B>& programs) {
  int64_t rows = 0, undecided = 0;
  double worst = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto result = programs.run(seed);
    EXPECT_EQ(result.deviating, 0) << "of " << result.rows << " rows of program " << seed << ", by up to "
                                   << result.worst << " times the noise:\n"
                                   << to_text(random_model(seed, programs.limits).program);
    rows += result.rows, undecided += result.undecided, worst = std::max(worst, result.worst);
  }
  std::cout << rows << " rows, of which " << undecided << " are undecided; the farthest is off by " << worst
            << " times the noise\n";
  EXPECT_LE(undecided, rows / 100);
}

}  // namespace fidelio
