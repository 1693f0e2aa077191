// This file does rejection sampling of drafts (Leviathan et al., Fast Inference from Transformers via Speculative
// Decoding, arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2). Whatever the draft's
// distribution q is, the resulting token has the model's distribution p. It is the drafted token with probability
// sum_k min(p_k, q_k).
#pragma once
#include <cstdint>

#include "core/rng.h"
#include "step/choice.h"

namespace fidelio {

struct Judgement {
  bool accepted;
  int32_t id;  // the drafted token, or one drawn from max(p - q, 0) in its place
};
// Accepts or replaces `drafted`, which was drawn from q; if q is null, the draft was certain. Draws one number from
// `random`, and a second one on rejection.
Judgement judge(const TokenDistribution& p, const TokenDistribution* q, int32_t drafted, Rng& random);

// Returns sum_k min(p_k, q_k), the probability of acceptance.
double overlap(const TokenDistribution& p, const TokenDistribution* q, int32_t drafted);

}  // namespace fidelio
