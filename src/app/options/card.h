// This file writes model cards for the verbs, with the command that was typed and the version of this program.
#pragma once
#include <string>

#include "compress/card/card.h"

namespace fidelio::app {

// Returns the facts of a checkpoint; `source` are the text files of the model it was made from.
CardFacts facts_of_run(const Checkpoint& made, const TextFiles& source);

// Writes the card of a new folder. An existing README.md is left as it is.
void add_card(const std::string& folder, const TextFiles& source);

}  // namespace fidelio::app
