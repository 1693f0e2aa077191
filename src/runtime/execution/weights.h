// This file defines Weights<B>, which holds everything besides values that a program's operations read, packed for
// one backend. Its lists have the indices of the program's lists, so a plan, a draft and a search exchange a weight
// by setting a pointer.
#pragma once
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "formats/finite.h"
#include "io/checkpoint.h"
#include "kernels/backend.h"
#include "step/build.h"

namespace fidelio {

template <Backend B>
struct Weights {
  using Linear = std::shared_ptr<const typename B::Linear>;

  std::map<LinearId, WeightId> ids;
  std::vector<Linear> linears;               // by WeightId
  std::vector<typename B::Matrix> norms;     // by NormId: (1, columns)
  std::vector<typename B::Experts> experts;  // by ExpertsId; valid after collect_experts()
  // A router's matrix is (E, d) and has the bias of its logits. Its adjustments (RoutingRule) may be empty.
  struct Router {
    Linear weight;
    typename B::Matrix adjustments;
  };
  std::vector<Router> routers;  // by index of Program::routers
  std::vector<typename B::Order> orders;
  // Delta has what a delta net reads besides its linears: the packed convolution, and (2, value heads) with -e^log_rate
  // and the step's bias.
  struct Delta {
    typename B::Matrix convolution, decay;
  };
  std::vector<Delta> deltas;              // by index of Program::deltas
  std::vector<typename B::Matrix> signs;  // by index of Program::hadamards: (core, core), empty where the core is 1

  // DraftHead holds the rows of the head for a draft's vocabulary, which a draft may read in place of the head.
  struct DraftHead {
    Linear rows;  // (tokens, d); null if none was set
    typename B::TokenSet tokens;
    typename B::Matrix logits;  // (logit rows, tokens)
  };
  DraftHead draft_head;

  explicit Weights(const Program& program) : linears(program.linears.size()), experts(program.experts.size()) {
    for (const LinearId id : program.linears) ids.emplace(id, static_cast<WeightId>(ids.size()));
  }
  Linear& operator[](LinearId id) { return linears[static_cast<size_t>(ids.at(id))]; }
  const Linear& operator[](LinearId id) const { return linears[static_cast<size_t>(ids.at(id))]; }
};

// Collects the pointers to the matrices of a layer's experts. It must be called after some of them were replaced.
template <Backend B>
void collect_experts(B& b, const Program& program, int layer, Weights<B>& weights) {
  for (size_t i = 0; i < program.experts.size(); ++i) {
    if (program.experts[i].layer != layer) continue;
    std::vector<const typename B::Linear*> of_role;
    for (int expert = 0; expert < program.routing.experts; ++expert)
      of_role.push_back(weights[{layer, program.experts[i].role, expert}].get());
    weights.experts[i] = b.experts(of_role);
  }
}

// Throws Error unless all values of a checkpoint's tensor are finite.
inline void check_finite(const Checkpoint& checkpoint, const std::string& name, std::span<const float> values) {
  for (const float value : values)
    check(std::isfinite(value), "{}: {} holds {}: the file is damaged", checkpoint.folder(), name, value);
}

// Loads a norm's weight (1, columns), times the factor that the program wants. Throws Error if a value is not finite.
template <Backend B>
typename B::Matrix load_norm(B& b, const Checkpoint& checkpoint, const NormWeight& which) {
  std::vector<float> values = checkpoint.norm(which.layer, which.norm);
  if (has_weight(which.norm)) check_finite(checkpoint, norm_name(checkpoint.config(), which.layer, which.norm), values);
  for (float& value : values) value *= which.factor;
  typename B::Matrix m = b.allocate(1, static_cast<int64_t>(values.size()));
  b.upload(values, m);
  return m;
}

// Uploads what a delta net reads besides its linears.
template <Backend B>
typename Weights<B>::Delta upload_delta(B& b, const DeltaNet& delta, std::span<const float> convolution,
                                        std::span<const float> log_rate, std::span<const float> step_bias) {
  typename Weights<B>::Delta uploaded{b.pack_convolution(convolution, delta.channels()),
                                      b.allocate(2, delta.value_heads)};
  std::vector<float> decay;
  for (const float rate : log_rate) decay.push_back(-std::exp(rate));
  decay.insert(decay.end(), step_bias.begin(), step_bias.end());
  b.upload(decay, uploaded.decay);
  return uploaded;
}

// Loads what a layer's delta net reads besides its linears.
template <Backend B>
typename Weights<B>::Delta load_delta(B& b, const Checkpoint& checkpoint, int layer) {
  const auto load = [&](DeltaTensor which) {
    std::vector<float> values = checkpoint.delta(layer, which);
    check_finite(checkpoint, delta_name(layer, which), values);
    return values;
  };
  return upload_delta(b, checkpoint.config().delta, load(DeltaTensor::convolution), load(DeltaTensor::log_rate),
                      load(DeltaTensor::step_bias));
}

// Packs a router. Its adjustments are (2, E), or empty.
template <Backend B>
typename Weights<B>::Router pack_router(B& b, const LinearWeight& weight, std::span<const float> adjustments) {
  typename Weights<B>::Router router{std::make_shared<const typename B::Linear>(b.pack(weight)), {}};
  if (adjustments.empty()) return router;
  router.adjustments = b.allocate(2, std::ssize(adjustments) / 2);
  b.upload(adjustments, router.adjustments);
  return router;
}

// Loads the router of a layer.
template <Backend B>
typename Weights<B>::Router load_router(B& b, const Checkpoint& checkpoint, int layer) {
  const ModelConfig& config = checkpoint.config();
  const LinearWeight weight = checkpoint.router(layer);
  check_finite(weight, fmt::format("{}: {}", checkpoint.folder(), router_name(config, layer)));
  std::vector<float> adjustments;
  if (config.router.corrected || config.router.scaled) {
    const auto E = static_cast<size_t>(config.experts);
    adjustments.assign(E, 0);
    adjustments.resize(2 * E, 1);
  }
  for (const RouterTensor which : router_tensors(config)) {
    const std::vector<float> values = checkpoint.router(layer, which);
    check_finite(checkpoint, router_name(config, layer, which), values);
    if (which == RouterTensor::correction) std::ranges::copy(values, adjustments.begin());
    if (which == RouterTensor::scale) std::ranges::copy(values, adjustments.begin() + config.experts);
  }
  return pack_router(b, weight, adjustments);
}

// Uploads the signs of a program's Hadamard matrices.
template <Backend B>
void load_signs(B& b, const Program& program, Weights<B>& weights) {
  for (const Hadamard& hadamard : program.hadamards) {
    weights.signs.emplace_back();
    if (hadamard.core == 1) continue;
    const std::vector<float> signs(hadamard.signs.begin(), hadamard.signs.end());
    weights.signs.back() = b.allocate(hadamard.core, hadamard.core);
    b.upload(signs, weights.signs.back());
  }
}

// Loads everything but the linears from a checkpoint.
template <Backend B>
void load_beside_linears(B& b, const Program& program, const Checkpoint& checkpoint, Weights<B>& weights) {
  for (const NormWeight& norm : program.norms) weights.norms.push_back(load_norm(b, checkpoint, norm));
  for (const OrderOf& order : program.orders)
    weights.orders.push_back(
        b.make_order(checkpoint.order(order.layer, *order.stop), checkpoint.config().kept_columns));
  for (const int layer : program.routers) weights.routers.push_back(load_router(b, checkpoint, layer));
  for (const int layer : program.deltas) weights.deltas.push_back(load_delta(b, checkpoint, layer));
  load_signs(b, program, weights);
}

}  // namespace fidelio
