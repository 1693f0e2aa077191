// This file measures sensitivity: how much the output distribution changes if a group of linears is stored in a
// coarser format.
//
// A FidelityMeter measures KL and EAR of many assignments over the same text. These things make it cheap:
//   - every candidate of every group is packed once; assigning one is a pointer (Runner::set_linear)
//   - the residual stream before each layer is kept, so only layers from the first change on run again
//   - KL and EAR come from the same pass
//   - the reference's logits are kept if they take less than kMostLogitBytes
//
// Weights are judged with FP32 activations, because BF16 ones alone cost more KL than an 8-bit group. For weights and
// activations together (SLQ D.1) a FidelityMeter runs the candidate with coarser activations. Its distance then
// includes the cost of the activations alone, which measure() returns for the reference's weights.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "core/thread_pool.h"
#include "eval/fidelity/row_distances.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

// A LinearGroup is a set of linears that get one format together. vLLM fuses q, k, v and gate, up and refuses
// different formats in a fused weight.
struct LinearGroup {
  std::string name;  // for example "layers.3.qkv"
  std::vector<LinearId> linears;
};
enum class Grouping : uint8_t { fused, single };
// Returns the groups of a model. With `experts_whole`, the gates, ups and downs of all experts of a layer are one
// group, "layers.3.experts".
std::vector<LinearGroup> groups_of(const ModelConfig& config, Grouping grouping, bool with_embedding,
                                   bool experts_whole = false);

struct MeterResult {
  double kl = 0, loss = 0;                         // means over positions: KL in nats, and 1 - EAR
  std::vector<double> sequence_kl, sequence_loss;  // means per sequence, for standard errors
};

// A Game is what estimators play (the word is from Shapley values): weights are put in force, and the distance of the
// output from the reference's is measured.
class Game {
 public:
  virtual ~Game() = default;
  virtual void assign(LinearId id, PackedLinear weight) = 0;
  virtual void restore(LinearId id) = 0;  // puts the reference's own weight in force
  virtual MeterResult measure() = 0;
  // Says that the next assignments will start from what was measured last (for shapley walks). This changes the time
  // that measurements take, and never their results.
  virtual void commit() = 0;
  // Sets the number of the next measurement among all of the job's; the following ones get the next numbers. It is
  // for games that keep measurements.
  virtual void place(int64_t number) { (void)number; }
  // Returns true if measure() will return a kept result, so that weights need not be assigned for it.
  virtual bool knows() const { return false; }
};

inline constexpr int64_t kMostLogitBytes = int64_t{3} << 29;  // 1.6 GB, which holds 2,700 positions of 150,000 tokens
// Returns the bytes that a FidelityMeter keeps of logits: all of them in FP32, or none.
constexpr int64_t kept_logit_bytes(int64_t positions, int64_t v) {
  const int64_t bytes = 4 * positions * v;
  return bytes <= kMostLogitBytes ? bytes : 0;
}

class FidelityMeter final : public Game {
 public:
  // `runner` must hold the reference weights now. Every assignment, run with activations `mode`, is compared with
  // their logits with FP32 activations.
  FidelityMeter(Runner& runner, const std::vector<std::vector<int32_t>>& sequences, ThreadPool& pool,
                Activations mode = Activations::f32);

  void assign(LinearId id, PackedLinear weight) override;
  void restore(LinearId id) override;
  // Runs the layers from the first one on that differs from the last commit().
  MeterResult measure() override;
  void commit() override;

 private:
  using Values = std::shared_ptr<float[]>;  // in the runner's memory
  struct State {                            // one batch
    PackedBatch packed;
    std::vector<int32_t> sequence_of_row;
    std::vector<Values> streams;  // before each layer and after the last: (L + 1) streams of (rows, d)
    std::vector<Values> fresh;    // the same for the assignment being measured, from layer `first_` on
    Values reference;             // the reference's stream after the last layer (rows, d)
    Values logits;                // the reference's logits (positions, v), if they are kept
  };
  void first_pass(State& state, Activations mode);
  // Reads the logits of rows [first, first + count), under the head and activations in force, into `to`.
  void read_logits(const State& state, const Values& stream, int64_t first, int64_t count, float* to);
  const float* reference_logits(const State& state, int64_t first, int64_t count);
  std::span<float> all(const State& state, const Values& stream) const {
    return {stream.get(), static_cast<size_t>(state.packed.batch.rows() * runner_.config().d)};
  }
  void keep(const State& state, Values& stream);  // copies the runner's stream
  void compare(State& state, MeterResult& result, std::vector<int64_t>& positions);

  Runner& runner_;
  std::unique_ptr<RowDistances> distances_;
  Values exact_, changed_;  // logits of (max_logit_rows, v)
  Activations mode_;
  std::vector<State> states_;
  int64_t sequences_ = 0;
  std::map<LinearId, PackedLinear> original_, committed_;
  std::map<LinearId, PackedLinear> current_;
  PackedLinear head_;
  int first_ = 0;  // first layer of the measurement in `fresh`
};

}  // namespace fidelio
