// This file computes KL and EAR of rows of logits on the GPU (eval/fidelity/fidelity.h defines them).
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// Writes found (rows, 2) = {KL in nats, EAR} of the distributions of the rows of p and q, both (rows, v). All
// arithmetic is FP64, in an order that depends on v alone. If a logit is not finite, neither is the result.
void row_distances(Stream stream, const float* p, const float* q, int64_t rows, int64_t v, double* found);

// A RowFigures is what two rows of logits p and q have that a comparison reports (PositionFidelity), in FP64. Sums of
// exp are relative to the largest logit.
struct RowFigures {
  double kl = 0, distance = 0, entropy = 0;  // distance = sum |p - q|
  double most_p = 0, most_q = 0, sum_p = 0, sum_q = 0;
  int32_t top_p = 0, top_q = 0;          // the lowest id of the largest logit
  float p_at_top_q = 0, q_at_top_p = 0;  // logits
  float p_at_token = 0, q_at_token = 0;  // the logits of the row's own token
};
// A TopLogits is the logits of one of p's most likely tokens.
struct TopLogits {
  float p = 0, q = 0;
};
// Writes the figures of each row, and `top` (rows, count) of its `count` most likely tokens by p, at most v of them.
void row_figures(Stream stream, const float* p, const float* q, const int32_t* tokens, int64_t rows, int64_t v,
                 int count, RowFigures* found, TopLogits* top);

}  // namespace fidelio::cuda
