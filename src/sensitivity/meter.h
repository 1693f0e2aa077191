// sensitivity: how much the output distribution changes when a group of linears is stored in a coarser format.
//
// A FidelityMeter answers "KL and EAR of this assignment" many times over the same text. What makes it cheap:
//   - every candidate of every group is packed once; assigning one is a pointer (Runner::set_linear)
//   - the residual stream before each layer is kept, so only layers from the first change on run again
//   - KL and EAR come from the same pass
//   - the reference's logits are kept where they take less than kMostLogitBytes
// Weights are judged with FP32 activations: BF16 ones alone cost more KL than an 8-bit group (docs/design.md). For
// W+A (SLQ D.1) a FidelityMeter runs the candidate in a coarser mode; its distance then holds what the activations cost by
// themselves, which measure() of the reference's weights tells.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "core/thread_pool.h"
#include "eval/fidelity/row_distances.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

// Linears that get one format together. vLLM fuses q, k, v and gate, up and refuses mixed shards (notes: fused groups).
struct LinearGroup {
  std::string name;  // "layers.3.qkv"
  std::vector<LinearId> linears;
};
enum class Grouping : uint8_t { fused, single };
// `experts_whole`: gate, up and down of all a layer's experts are one, "layers.3.experts".
std::vector<LinearGroup> groups_of(const ModelConfig& config, Grouping grouping, bool with_embedding,
                                   bool experts_whole = false);

struct MeterResult {
  double kl = 0, loss = 0;                         // means over positions: KL in nats, 1 - EAR
  std::vector<double> sequence_kl, sequence_loss;  // means per sequence, for standard errors
};

// What estimators play: weights are put in force, and the distance of the output from the reference's is measured.
class Game {
 public:
  virtual ~Game() = default;
  virtual void assign(LinearId id, PackedLinear weight) = 0;
  virtual void restore(LinearId id) = 0;  // the reference's own
  virtual MeterResult measure() = 0;
  // Says that the next assignments will start from what was measured last (shapley walks). Changes costs, never
  // results.
  virtual void commit() = 0;
  // The number of the next measurement among all of the job's; those after it follow. For games that keep what was
  // measured.
  virtual void place(int64_t number) { (void)number; }
  // Whether measure() will return what is kept, so that weights need not be assigned for it.
  virtual bool knows() const { return false; }
};

inline constexpr int64_t kMostLogitBytes = int64_t{3} << 29;  // 1.6 GB: 2,700 positions of 150,000 tokens
// What a FidelityMeter keeps of logits: all of them in FP32, or none.
constexpr int64_t kept_logit_bytes(int64_t positions, int64_t v) {
  const int64_t bytes = 4 * positions * v;
  return bytes <= kMostLogitBytes ? bytes : 0;
}

class FidelityMeter final : public Game {
 public:
  // `runner` holds the reference weights now; their logits with FP32 activations are what every assignment, run with
  // activations `mode`, is compared with.
  FidelityMeter(Runner& runner, const std::vector<std::vector<int32_t>>& sequences, ThreadPool& pool,
                Activations mode = Activations::f32);

  void assign(LinearId id, PackedLinear weight) override;
  void restore(LinearId id) override;
  // Runs the layers from the first that differs from the last commit() on.
  MeterResult measure() override;
  void commit() override;

 private:
  using Values = std::shared_ptr<float[]>;  // in the runner's memory
  struct State {                            // one batch
    PackedBatch packed;
    std::vector<int32_t> sequence_of_row;
    std::vector<Values> streams;  // before each layer, and after the last: (L + 1) of (rows, d)
    std::vector<Values> fresh;    // the same for the assignment being measured, from `first_` on
    Values reference;             // reference stream after the last layer (rows, d)
    Values logits;                // and its logits (positions, v), if they are kept
  };
  void first_pass(State& state, Activations mode);
  // Logits of rows [first, first + count) under the head and the activations in force, to there.
  void read_logits(const State& state, const Values& stream, int64_t first, int64_t count, float* to);
  const float* reference_logits(const State& state, int64_t first, int64_t count);
  std::span<float> all(const State& state, const Values& stream) const {
    return {stream.get(), static_cast<size_t>(state.packed.batch.rows() * runner_.config().d)};
  }
  void keep(const State& state, Values& stream);  // the runner's stream, in memory of its own
  void compare(State& state, MeterResult& result, std::vector<int64_t>& positions);

  Runner& runner_;
  std::unique_ptr<RowDistances> distances_;
  Values exact_, changed_;  // logits: (max_logit_rows, v)
  Activations mode_;
  std::vector<State> states_;
  int64_t sequences_ = 0;
  std::map<LinearId, PackedLinear> original_, committed_;
  std::map<LinearId, PackedLinear> current_;
  PackedLinear head_;
  int first_ = 0;  // of the measurement in `fresh`
};

}  // namespace fidelio
