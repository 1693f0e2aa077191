// Second order of the matrices over the vocabulary, (v, d): a head, whose rows meet the final hidden states, and a tied
// embedding, which is a head and whose rows are looked up besides. (An embedding that is only looked up has no second
// order worth its while: every row is an input by itself, and rounding to the nearest is best.)
//
// With errors e_k in the rows, KL is to second order
//
//   as a head       1/2 sum over tokens t and rows k of p_tk (1 - p_tk) (e_k h_t)^2     h_t: the final hidden state
//   looked up       1/2 sum over tokens t of e_k G e_k, k the token read at t           G: of the stream before layer 0
//
// On text that the model predicts well p_tk is 1 for the token that comes and averages to the frequency f_k of token k,
// as often as which it is looked up. So rows differ in f_k alone, which no choice within a row depends on, and all rows
// share H = s sum_t h_t h_t^T + tokens G, s being the mean of 1 - sum_k p_tk^2. G is taken for g times the identity; s
// and g are measured: g from the KL that white noise in the looked-up rows alone makes.
//
// Why it matters: final hidden states point one way. In SmolLM2-135M 60% of their energy lies along one direction and
// single columns are 30 times as large as the median, so that rounding to the nearest at 8 bits puts most of its error
// where it costs most.
#pragma once
#include <functional>

#include "io/checkpoint.h"
#include "quant/device/workbench.h"
#include "runtime/dataset.h"

namespace fidelio {

// What a tied embedding costs in its two roles, in KL per token and squared error.
struct VocabularyRoles {
  double spread = 1;  // s: mean over tokens of 1 - sum_k p_k^2
  double lookup = 0;  // g: twice the KL per squared error of a looked-up row
};
// On `sequences` of a tied model, whose weights the runner holds and is left with. `on_rows`: as below.
VocabularyRoles measure_roles(Runner& runner, const Checkpoint& source,
                              const std::vector<std::vector<int32_t>>& sequences,
                              const std::function<void(int64_t)>& on_rows);

// bench.begin() and H of the head, or of the tied embedding, up to the factor s, over as much of the calibration text
// as d columns need. The runner holds the source's weights and is left with them. `on_rows` is told of the rows of a
// batch after every layer: some vocabulary_tokens() for each in all.
void observe_vocabulary(Runner& runner, const Checkpoint& source, const Dataset& calibration, Workbench& bench,
                        const std::function<void(int64_t)>& on_rows);
int64_t vocabulary_tokens(const ModelConfig& config, int64_t calibration_tokens);

}  // namespace fidelio
