// Speculation: cheap guesses at the next tokens, and how far they are worth making.
//
//   draft    g tokens, one step each, under the draft's reading; they write keys and values where the verifier will
//   verify   the newest token and the g drafted ones, g + 1 output rows under the model's own reading: their bits are
//            those of plain decoding, and they overwrite what the draft wrote
//   accept   from the first row on, as long as the token chosen there is the one drafted next; the row after the last
//            accepted one gives one token more. What was rejected is a smaller length, nothing is copied
//
// Acceptance. coupled: each row's token is chosen by the request's own rule and the random number of its position, as
// without speculation, and the draft's token is chosen by the same rule and number: the text is that of plain decoding,
// greedy and sampled, whatever the draft says. rejection: Leviathan et al. (arXiv 2211.17192) algorithm 1 after the full
// sampling chain: the draft samples from its own distribution q, x is accepted with probability min(1, p(x) / q(x)) and
// else replaced by a sample of max(p - q, 0): the distribution is the model's, the text depends on what was drafted.
//
// How far drafts are worth making: engine/drafts/controller.h.
#pragma once
#include <cstdint>

#include "runtime/runner.h"

namespace fidelio {

enum class Acceptance : uint8_t { coupled, rejection };

struct SpeculationOptions {
  Runner* draft = nullptr;  // the model's own runner, or one that shares its cache (Runner::make_draft); null: no draft
  Reading reading{};        // of the draft
  bool lookup = false;      // drafts from what followed the same tokens earlier in the sequence
  int64_t most = 8;         // drafted tokens of a cycle
  bool adapt = true;        // false: always `most`, by lookup where it finds anything
  Acceptance acceptance = Acceptance::coupled;
  // For measurements on models of random weights: all work is done, and then each draft counts as accepted with this
  // probability. Negative: off. The text means nothing.
  double replayed_acceptance = -1;
};

}  // namespace fidelio
