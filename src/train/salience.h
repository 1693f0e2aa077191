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
  // true: the loss is -ln p of the text's own next tokens (SCVQ, global salience). false: of tokens drawn from
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

// sum over tokens of dy dy^T (out, out), row-major, by linear of a layer: dy the gradient of -ln p by the linear's outputs,
// for tokens drawn from the model itself (`labels` is not read). The outputs' side of the curvature of the KL
// (quant/descent/curvature.h).
std::map<LinearId, std::vector<float>> output_moments(const Checkpoint& checkpoint,
                                                      std::span<const std::vector<int32_t>> sequences,
                                                      const SalienceOptions& options,
                                                      const std::function<void(int64_t done)>& progress = {});
// Bytes of all of them.
int64_t output_moments_bytes(const ModelConfig& config);

}  // namespace fidelio::train
