// Speculation makes cheap guesses at the next tokens and verifies several of them in one step.
//
//   draft    g tokens, one step each, under the draft's precision; they write keys and values where the verifier will
//   verify   the newest token and the g drafted ones, g + 1 output rows under the model's own precision: their bits are
//            those of plain decoding, and they overwrite what the draft wrote
//   accept   from the first row on, as long as the token chosen there is the one drafted next; the row after the last
//            accepted one gives one token more. What was rejected is a smaller length; nothing is copied
//
// There are two rules of acceptance. With `coupled`, each row's token is chosen by the request's own rule and the
// random number of its position, as without speculation, and the draft's token is chosen by the same rule and number.
// So the text is that of plain decoding, greedy and sampled, whatever the draft says. With `rejection` (Leviathan et
// al., arXiv 2211.17192, algorithm 1, after all sampling filters), the draft samples x from its own distribution q.
// It is accepted with probability min(1, p(x) / q(x)) and otherwise replaced by a sample of max(p - q, 0). So the
// distribution is the model's, but the text depends on what was drafted.
//
// QSpec accepts greedily and always drafts the same number of tokens. Here engine/drafts/controller.h decides how many
// drafts are worth making, unless `adapt` is false.
#pragma once
#include <cstdint>

#include "runtime/runner.h"

namespace fidelio {

enum class Acceptance : uint8_t { coupled, rejection };

struct SpeculationOptions {
  // The model's own runner, or one that shares its cache (Runner::make_draft). If it is null, there are no drafts by
  // a model.
  Runner* draft = nullptr;
  Reading reading{};    // the precision of the draft's steps
  bool lookup = false;  // drafts from what followed the same tokens earlier in the sequence
  int64_t most = 8;     // the most drafted tokens of a cycle
  bool adapt = true;    // if false, always drafts `most` tokens, by lookup where it finds anything
  Acceptance acceptance = Acceptance::coupled;
  // This is for measurements on models of random weights. All work is done, and then each draft counts as accepted
  // with this probability. If it is negative, this is off. The text then means nothing.
  double replayed_acceptance = -1;

  // The slots for states with which a sequence lacks none: its own, one for a snapshot, and one for each draft.
  int64_t states_of_sequence() const { return draft != nullptr || lookup ? 2 + most : 2; }
};

}  // namespace fidelio
