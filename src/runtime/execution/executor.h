// This file defines Executor<B>, which runs the operations of a program on a backend, one after the other.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/execution/values.h"
#include "runtime/execution/weights.h"
#include "step/routing.h"

namespace fidelio {

template <Backend B>
class Executor {
 public:
  using Matrix = typename B::Matrix;
  using Acts = typename B::Acts;

  // All of these must outlive the executor; the values' memory may be allocated later.
  Executor(B& b, const Program& program, Weights<B>& weights, ValueMemory<B>& memory, typename B::KvCache& cache,
           typename B::States& states)
      : b_(b), p_(program), w_(weights), memory_(memory), cache_(cache), states_(states), acts_(program.values.size()) {
    prefetched_.resize(p_.ops.size(), -1);
    int32_t next = -1;  // the next operation that multiplies
    for (size_t i = p_.ops.size(); i-- > 0;) {
      prefetched_[i] = next;
      const Op& operation = p_.ops[i];
      if (std::holds_alternative<op::Product>(operation)) next = static_cast<int32_t>(i);
      if (std::holds_alternative<op::Route>(operation) || std::holds_alternative<op::RoutedProduct>(operation))
        next = -1;
      if (static_cast<int32_t>(i) == p_.draft_head.first) next = -1;  // a step has one head or the other
    }
  }

  // Looks the values' matrices up. It must be called once their memory is allocated.
  void find_values() {
    matrices_.assign(p_.values.size(), nullptr);
    for (size_t i = 0; i < p_.values.size(); ++i) {
      const Value& v = p_.values[i];
      if (const auto at = memory_.matrices.find({v.name, v.rows, v.columns}); at != memory_.matrices.end())
        matrices_[i] = &at->second;
    }
    matrices_[static_cast<size_t>(p_.draft_logits)] = &w_.draft_head.logits;
  }

  // Begins a step of this many rows, which reads either the head of the draft's vocabulary or the whole head.
  void begin(int64_t rows, bool reads_draft_head) {
    rows_ = rows;
    reads_draft_head_ = reads_draft_head;
    host_routes_ = false;  // of a step that was given up
  }
  void run(OpRange range) {
    for (at_ = range.first; at_ < range.last; ++at_)
      std::visit([this](const auto& operation) { run(operation); }, p_.ops[static_cast<size_t>(at_)]);
  }
  // Computes the logits of logit rows [first, first + count).
  void run_head(int64_t first, int64_t count) {
    first_logit_ = first, logit_count_ = count;
    run(reads_draft_head_ ? p_.draft_head : p_.head);
  }
  // Runs operations up to a Route and returns the experts that the rows chose to the host.
  const Routes& run_route(OpRange range) {
    host_routes_ = true, run(range), host_routes_ = false;
    return b_.routes();
  }

  // Tells whether no operation of the step that has begun needs the host to choose experts or to group rows by them.
  bool routes_alone() const {
    if (p_.routers.empty()) return true;
    return std::ranges::all_of(p_.ops, [&](const Op& operation) {
      const auto* route = std::get_if<op::Route>(&operation);
      if (!route) return true;
      const Readers readers = readers_of(*route);
      return b_.routes_alone(p_.routing, {readers.experts, readers.count});
    });
  }

  Matrix& matrix(ValueId id) const { return *matrices_[static_cast<size_t>(id)]; }
  void read(ValueId id, std::span<float> to) {
    if (!p_.values[static_cast<size_t>(id)].prepared) return b_.download(matrix(id), 0, rows_, to);
    const Acts& acts = acts_[static_cast<size_t>(id)];
    check(static_cast<int64_t>(to.size()) == acts.rows * acts.columns, "{} rows of {} inputs do not fill {} values",
          acts.rows, acts.columns, to.size());
    b_.read(acts, to);
  }
  // Sets a value. One with rows of slots takes any number of rows, and follow() must then say which slots they are.
  void write(ValueId id, std::span<const float> from) {
    const Value& v = p_.values[static_cast<size_t>(id)];
    if (!v.prepared) return b_.upload(from, matrix(id));
    const auto tap = std::ranges::find_if(p_.taps, [&](const Tap& t) { return t.input == id && t.spare >= 0; });
    check(tap != p_.taps.end(), "the value {} cannot be given from outside", v.name);
    Matrix& spare = matrix(tap->spare);
    b_.upload(from, spare);
    if (v.rows == Rows::slots) b_.follow(as_they_are(static_cast<int64_t>(from.size()) / v.columns));
    acts_[static_cast<size_t>(id)] = v.rows == Rows::slots ? b_.routed(spare) : b_.input(spare);
  }

 private:
  static constexpr size_t kMostOutputs = 8;  // the most outputs, or readers, of one operation

  // The experts that the rows of a Route meet.
  struct Readers {
    const typename B::Experts* experts[kMostOutputs];
    size_t count = 0;
  };
  Readers readers_of(const op::Route& o) const {
    Readers readers;
    for (const ExpertsId id : o.readers) readers.experts[readers.count++] = &experts(id);
    return readers;
  }
  const typename B::Linear& linear(const op::Output& output) const {
    return output.to == p_.draft_logits ? *w_.draft_head.rows : *w_.linears[static_cast<size_t>(output.weight)];
  }
  const Matrix& norm(NormId id) const { return w_.norms[static_cast<size_t>(id)]; }
  const Matrix* norm_if(NormId id) const { return id < 0 ? nullptr : &norm(id); }
  const typename Weights<B>::Delta& delta(int id) const { return w_.deltas[static_cast<size_t>(id)]; }
  const typename B::Experts& experts(ExpertsId id) const { return w_.experts[static_cast<size_t>(id)]; }
  bool is_prepared(ValueId id) const { return p_.values[static_cast<size_t>(id)].prepared; }
  Rows rows_of(ValueId id) const { return p_.values[static_cast<size_t>(id)].rows; }
  Acts input(ValueId id) { return is_prepared(id) ? acts_[static_cast<size_t>(id)] : b_.input(matrix(id)); }
  void keep(ValueId id, Acts acts) { acts_[static_cast<size_t>(id)] = acts; }

  // Tells the backend which weights the product after this one will read.
  void announce_next() {
    int32_t next = prefetched_[static_cast<size_t>(at_)];
    if (next < 0) return;
    if (reads_draft_head_ && next >= p_.head.first) next += p_.draft_head.first - p_.head.first;
    const typename B::Linear* weights[kMostOutputs];
    size_t count = 0;
    for (const op::Output& o : std::get<op::Product>(p_.ops[static_cast<size_t>(next)]).outputs)
      weights[count++] = &linear(o);
    b_.upcoming({weights, count});
  }

  void run(const op::Embed& o) { b_.embed(*w_.linears[static_cast<size_t>(o.table)], matrix(o.to), o.factor); }
  void run(const op::Norm& o) {
    if (rows_of(o.to) == Rows::logits)
      keep(o.to, b_.norm_logit_rows(matrix(o.from), norm(o.weight), o.eps, first_logit_, logit_count_));
    else if (is_prepared(o.to))
      keep(o.to, b_.norm(matrix(o.from), norm(o.weight), o.eps));
    else if (o.from == o.to)
      b_.normalise(matrix(o.to), norm(o.weight), o.eps);
    else
      b_.normalise(matrix(o.from), norm(o.weight), o.eps, matrix(o.to));
  }
  void run(const op::AddNorm& o) { b_.add_normed(matrix(o.from), norm(o.weight), o.eps, matrix(o.to)); }
  void run(const op::Product& o) {
    announce_next();
    const Acts acts = input(o.from);
    if (o.adds) {
      for (const op::Output& output : o.outputs) b_.linear_add(acts, linear(output), matrix(output.to));
      return;
    }
    std::pair<const typename B::Linear*, Matrix*> outputs[kMostOutputs];
    size_t count = 0;
    for (const op::Output& output : o.outputs) outputs[count++] = {&linear(output), &matrix(output.to)};
    b_.linear(acts, {outputs, count});
  }
  void run(const op::Heads& o) {
    b_.rope_append(matrix(o.q), matrix(o.k), matrix(o.v), norm_if(o.q_norm), norm_if(o.k_norm), cache_, o.layer);
  }
  void run(const op::Queries& o) { b_.turn_queries(matrix(o.q), norm_if(o.norm), cache_, o.layer); }
  void run(const op::NormHeads& o) { b_.norm_heads(matrix(o.from), norm(o.weight), o.eps, matrix(o.to), o.adds); }
  void run(const op::Columns& o) { b_.columns(matrix(o.from), o.first, matrix(o.to)); }
  void run(const op::Clear& o) { b_.clear(matrix(o.to)); }
  void run(const op::Scale& o) { b_.scale(matrix(o.to), norm(o.factor)); }
  void run(const op::Softcap& o) { b_.softcap(matrix(o.to), logit_count_, o.cap); }
  void run(const op::Attend& o) {
    keep(o.to, b_.attend(matrix(o.q), cache_, o.layer, o.sinks < 0 ? nullptr : &norm(o.sinks)));
  }
  void run(const op::SplitGate& o) { b_.split_gate(matrix(o.from), matrix(o.to), matrix(o.gate)); }
  void run(const op::GateHeads& o) { keep(o.to, b_.gate_heads(input(o.from), matrix(o.gate))); }
  void run(const op::Convolve& o) {
    b_.convolve(matrix(o.from), delta(o.delta).convolution, matrix(o.to), states_, o.delta);
  }
  void run(const op::DeltaRule& o) {
    b_.delta_rule(matrix(o.from), matrix(o.b), matrix(o.a), delta(o.delta).decay, matrix(o.to), states_, o.delta);
  }
  void run(const op::GatedNorm& o) {
    keep(o.to, b_.gated_norm(matrix(o.from), matrix(o.gate), norm(o.weight), o.eps, o.function));
  }
  void run(const op::AddShared& o) { b_.add_shared(matrix(o.from), matrix(o.gate), matrix(o.to)); }
  void run(const op::Before& o) { b_.before(matrix(o.from), matrix(o.to), states_); }
  void run(const op::Carry& o) { b_.carry(matrix(o.from), states_); }
  void run(const op::Join& o) { keep(o.to, b_.join(matrix(o.a), matrix(o.b))); }
  void run(const op::Gated& o) {
    keep(o.to, b_.gated(matrix(o.gate), matrix(o.up), o.function, rows_of(o.to) == Rows::slots ? slots_ : rows_));
  }
  void run(const op::Turn& o) {
    keep(o.to, b_.turn(input(o.from), p_.hadamards[static_cast<size_t>(o.hadamard)],
                       w_.signs[static_cast<size_t>(o.hadamard)]));
  }
  void run(const op::Reorder& o) { keep(o.to, b_.gather(input(o.from), w_.orders[static_cast<size_t>(o.order)])); }
  void run(const op::Route& o) {
    const Readers readers = readers_of(o);
    const auto& router = w_.routers[static_cast<size_t>(o.router)];
    b_.route(matrix(o.from), *router.weight, router.adjustments, p_.routing,
             {readers.experts, host_routes_ ? 0 : readers.count}, matrix(o.logits));
  }
  void run(const op::Take& o) {
    const Acts acts = b_.routed(matrix(o.from));
    slots_ = acts.rows;
    keep(o.to, acts);
  }
  void run(const op::RoutedProduct& o) {
    RoutedProduct<typename B::Experts, Matrix> outputs[kMostOutputs];
    size_t count = 0;
    for (const op::RoutedOutput& output : o.outputs) outputs[count++] = {&experts(output.weights), &matrix(output.to)};
    b_.linear_routed(input(o.from), {outputs, count});
  }
  void run(const op::Combine& o) { b_.add_routed(matrix(o.from), matrix(o.to)); }
  void run(const op::Spread& o) { b_.spread(matrix(o.from), w_.draft_head.tokens, logit_count_, matrix(o.to)); }

  B& b_;
  const Program& p_;
  Weights<B>& w_;
  ValueMemory<B>& memory_;
  typename B::KvCache& cache_;
  typename B::States& states_;
  std::vector<Matrix*> matrices_;    // by ValueId; null for prepared values
  std::vector<Acts> acts_;           // by ValueId; for prepared values only
  std::vector<int32_t> prefetched_;  // by operation: the product that comes next after it, or -1 if none is known
  int32_t at_ = 0;                   // the operation that is running
  int64_t rows_ = 0, slots_ = 0, first_logit_ = 0, logit_count_ = 0;
  bool reads_draft_head_ = false, host_routes_ = false;
};

}  // namespace fidelio
