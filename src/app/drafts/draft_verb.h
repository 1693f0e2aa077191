// This file is the verb `draft`, which chooses a draft for a model. `compress --draft` does the same for the model it
// made.
#pragma once
#include "app/drafts/draft_choice.h"

namespace fidelio::app {

void add_draft_verb(CLI::App& app);
// Fills in files that come with the program, where none are given.
void settle_draft_defaults(DraftChoiceOptions& options);
// Calls choose_draft(), with a line of progress now and then and its table at the end, unless quietly.
nlohmann::json choose_and_say(const RunOptions& run, const DraftChoiceOptions& options, bool quietly);

}  // namespace fidelio::app
