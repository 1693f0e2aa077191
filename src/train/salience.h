// What gradients say about weights. For every linear of a model and every sequence, G = sum over its tokens of dy x^T is
// the gradient of the loss by the weight (out, in). Abs is taken after a sequence's tokens are added up, so a batch is
// one sequence.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio::train {

struct SalienceOptions {
  // true: the loss is -ln p of the text's own next tokens (papers/scvq.txt, global salience). false: of tokens drawn from
  // the model's own distribution, whose squared gradient is the curvature of the KL (Amari 1998).
  bool labels = true;
  uint64_t seed = 0;  // of the draws
  int threads = 0;
};

// mean |G| (out, in) over the sequences, by linear; the embedding as a table of rows, too.
std::map<LinearId, std::vector<float>> mean_absolute_gradient(const Checkpoint& checkpoint,
                                                              std::span<const std::vector<int32_t>> sequences,
                                                              const SalienceOptions& options,
                                                              const std::function<void(int64_t done)>& progress = {});

// Kronecker factors of the curvature of the KL: of E[vec(G) vec(G)^T] with labels drawn from the model itself, output
// (out, out) ~ E[G G^T] and input (in, in) ~ E[G^T G], row-major, both scaled so that their product has the trace of the
// whole, E[|G|^2]. Layers' linears alone.
struct KroneckerFactors {
  std::vector<float> output, input;
};
std::map<LinearId, KroneckerFactors> kronecker_factors(const Checkpoint& checkpoint,
                                                       std::span<const std::vector<int32_t>> sequences,
                                                       const SalienceOptions& options,
                                                       const std::function<void(int64_t done)>& progress = {});

}  // namespace fidelio::train
