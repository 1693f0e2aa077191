// This file provides the second-order statistics of the matrices over the vocabulary, (v, d): of a head, whose rows
// meet the final hidden states, and of a tied embedding, which is a head and whose rows are also looked up. (An
// embedding that is only looked up needs no such statistics: every row is an input by itself, and rounding to nearest
// is best.)
//
// With errors e_k in the rows, KL is to second order
//
//   as a head       1/2 sum over tokens t and rows k of p_tk (1 - p_tk) (e_k h_t)^2     h_t: the final hidden state
//   looked up       1/2 sum over tokens t of e_k G e_k, k the token read at t           G: of the stream before layer 0
//
// On text that the model predicts well, p_tk is 1 for the token that comes. Its average is the frequency f_k of token
// k, which is also how often the token is looked up. So rows differ only by the factor f_k, on which no choice within
// a row depends, and all rows share H = s sum_t h_t h_t^T + tokens G. Here s is the mean of 1 - sum_k p_tk^2. G is
// taken to be g times the identity. Both s and g are measured, g from the KL that white noise in the looked-up rows
// alone makes.
//
// This matters because final hidden states point one way. In SmolLM2-135M 60% of their energy lies along one
// direction, and single columns are 30 times as large as the median. Rounding to nearest at 8 bits then puts most of
// its error where it costs most (docs/results.md).
#pragma once
#include <functional>

#include "io/checkpoint.h"
#include "quant/device/workbench.h"
#include "runtime/dataset.h"

namespace fidelio {

// VocabularyRoles says what a tied embedding costs in its two roles, in KL per token and squared error.
struct VocabularyRoles {
  double spread = 1;  // s: the mean over tokens of 1 - sum_k p_k^2
  double lookup = 0;  // g: twice the KL per squared error of a looked-up row
};
// Measures both on `sequences`, for a tied model. The runner must hold the source's weights and keeps them. `on_rows`
// is as below.
VocabularyRoles measure_roles(Runner& runner, const Checkpoint& source,
                              const std::vector<std::vector<int32_t>>& sequences,
                              const std::function<void(int64_t)>& on_rows);

// Calls bench.begin() and adds H of the head, or of the tied embedding, up to the factor s, over as much of the
// calibration text as d columns need. The runner must hold the source's weights and keeps them. `on_rows` is called
// with the rows of a batch after every layer; over all layers that is about vocabulary_tokens() rows per layer.
void observe_vocabulary(Runner& runner, const Checkpoint& source, const Dataset& calibration, Workbench& bench,
                        const std::function<void(int64_t)>& on_rows);
int64_t vocabulary_tokens(const ModelConfig& config, int64_t calibration_tokens);

}  // namespace fidelio
