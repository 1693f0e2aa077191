// Model cards as the verbs write them: with the command that was typed and the version of this program.
#pragma once
#include <string>

#include "compress/card/card.h"

namespace fidelio::app {

// The facts of a checkpoint, `source` being the text files of the model it was made of.
CardFacts facts_of_run(const Checkpoint& made, const TextFiles& source);

// The card of a folder that was just written. A README.md that is there already is left as it is.
void add_card(const std::string& folder, const TextFiles& source);

}  // namespace fidelio::app
