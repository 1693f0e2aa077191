// This file measures what gradients say about weights. For every linear of a model and every sequence, G = sum over
// its tokens of dy x^T is the gradient of the loss with respect to the weight (out, in). The absolute value is taken
// after the tokens of a sequence are added up, so a batch is one sequence.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio::train {

struct SalienceOptions {
  // If true, the loss is -ln p of the text's own next tokens (SCVQ, global salience). If false, it is that of tokens
  // drawn from the model's own distribution, whose squared gradient is the curvature of the KL (Amari 1998).
  bool labels = true;
  uint64_t seed = 0;  // seed of the draws
  int threads = 0;
};

// Returns the mean of |G| (out, in) over the sequences, for each linear. The embedding is included, as a table of
// rows.
std::map<LinearId, std::vector<float>> mean_absolute_gradient(const Checkpoint& checkpoint,
                                                              std::span<const std::vector<int32_t>> sequences,
                                                              const SalienceOptions& options,
                                                              const std::function<void(int64_t done)>& progress = {});

// Returns the sum over tokens of dy dy^T (out, out), row-major, for each linear of a layer. Here dy is the gradient
// of -ln p at the linear's outputs, for tokens drawn from the model itself (`labels` is ignored). It is the outputs'
// side of the curvature of the KL (quant/descent/curvature.h).
std::map<LinearId, std::vector<float>> output_moments(const Checkpoint& checkpoint,
                                                      std::span<const std::vector<int32_t>> sequences,
                                                      const SalienceOptions& options,
                                                      const std::function<void(int64_t done)>& progress = {});
// Returns the bytes of all these moments.
int64_t output_moments_bytes(const ModelConfig& config);

}  // namespace fidelio::train
