// draft: chooses what drafts for a model; `compress --draft` does the same for what it has made.
#pragma once
#include "app/drafts/draft_choice.h"

namespace fidelio::app {

void add_draft_verb(CLI::App& app);
// Files that come with the program, where none are given.
void settle_draft_defaults(DraftChoiceOptions& options);
// choose_draft(), with a line now and then and its table at the end, unless quietly.
nlohmann::json choose_and_say(const RunOptions& run, const DraftChoiceOptions& options, bool quietly);

}  // namespace fidelio::app
