// ref::Executor runs a program (step/program.h) in double, one operation after the other, as plainly as it can be
// written. It judges the executors that serve.
#pragma once
#include "formats/linear_weight.h"
#include "kernels/ref/ref.h"
#include "step/batch.h"
#include "step/program.h"

namespace fidelio::ref {

// A linear's weight w (out, in), and its bias (out) or nothing.
struct Matrix {
  int64_t out = 0, in = 0;
  std::vector<double> w, bias;
};
Matrix decoded(const LinearWeight& weight);

// DeltaWeights is what a delta net has besides its linears: the convolution w (channels, kernel), and for each value
// head the logarithm of the decay's rate and the bias of its step.
struct DeltaWeights {
  std::vector<double> convolution, log_rate, step_bias;
};

// Everything that operations read beside values and the cache, indexed as the program's lists are.
struct Weights {
  std::vector<Matrix> linears;                   // by WeightId
  std::vector<std::vector<double>> norms;        // by NormId, multiplied by their factors
  std::vector<Matrix> routers;                   // (E, d)
  std::vector<std::vector<double>> adjustments;  // of the routers: (2, E), or empty (RoutingRule)
  std::vector<DeltaWeights> deltas;              // as Program::deltas
  std::vector<std::vector<int32_t>> orders;      // for each new column the old one
  // The rows of the head for a draft's vocabulary, and their tokens. Both are empty where no draft head is run.
  Matrix draft_head;
  std::vector<int32_t> draft_tokens;
};

class Executor {
 public:
  // The program and the weights must outlive the executor, whose cache has so many pages, and which has so many slots
  // for states.
  Executor(const Program& program, const Weights& weights, int64_t pages, int64_t slots = 0);

  // A step begins with the rows of this batch. The cache is kept; values are those of the step before until they are
  // written.
  void begin(const Batch& batch);
  void run(OpRange range);
  // A value's rows, one after the other. It may be read after the operation that writes it, and written before one that
  // reads it.
  std::vector<double>& value(ValueId id) { return values_[static_cast<size_t>(id)]; }

 private:
  struct Row {  // of the batch
    int64_t position;
    std::vector<int32_t> pages;
  };
  struct Slot {  // a row that passes an expert
    int64_t row, expert;
    double share;
  };
  struct LayerCache {
    std::vector<double> keys, values;  // (pages, kPageTokens, hk e)
  };

  void run(const op::Embed& o);
  void run(const op::Norm& o);
  void run(const op::AddNorm& o);
  void run(const op::Product& o);
  void run(const op::Heads& o);
  void run(const op::Queries& o);
  void run(const op::NormHeads& o);
  void run(const op::Columns& o);
  void run(const op::Clear& o);
  void run(const op::Scale& o);
  void run(const op::Softcap& o);
  void run(const op::Attend& o);
  void run(const op::GateHeads& o);
  void run(const op::SplitGate& o);
  void run(const op::Convolve& o);
  void run(const op::DeltaRule& o);
  void run(const op::GatedNorm& o);
  void run(const op::AddShared& o);
  void run(const op::Before& o);
  void run(const op::Carry& o);
  void run(const op::Join& o);
  void run(const op::Gated& o);
  void run(const op::Turn& o);
  void run(const op::Reorder& o);
  void run(const op::Route& o);
  void run(const op::Take& o);
  void run(const op::RoutedProduct& o);
  void run(const op::Combine& o);
  void run(const op::Spread& o);

  // A layer's state: the matrices (heads, key_dim, value_dim), and the last inputs of the convolution (rows, channels).
  struct LayerState {
    std::vector<double> matrices, inputs;
  };
  struct State {
    std::vector<LayerState> layers;  // by layer that keeps one
    std::vector<double> carried;
  };
  // Calls step(state, row) for each row of the batch, with what its sequence keeps for a layer before that row, and
  // keep(slot's state, state) after the rows whose state is kept.
  template <typename Keep, typename Step>
  void for_each_row(int layer, const Keep& keep, const Step& step);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t columns(ValueId id) const { return p_.values[static_cast<size_t>(id)].columns; }
  std::vector<double> product(const Matrix& matrix, std::span<const double> x) const;
  const Matrix& expert(ExpertsId id, int64_t expert) const;
  // Norms and turns heads of a layer.
  void prepare(std::span<double> heads, int layer, NormId norm, int64_t position) const;
  double query_factor(int64_t position) const;
  int64_t place(const Row& row, int64_t position) const;  // of a position's key in the cache, counted in positions

  const Program& p_;
  const Weights& w_;
  std::vector<std::vector<double>> values_;  // by ValueId
  std::vector<LayerCache> cache_;            // (L)
  std::vector<State> states_;                // by slot
  std::vector<Segment> segments_;
  std::vector<KeptState> kept_;
  std::vector<int32_t> ids_, logit_rows_;
  std::vector<Row> rows_;
  std::vector<Slot> slots_;  // by expert, those of an expert by row
};

}  // namespace fidelio::ref
