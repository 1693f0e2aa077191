// This file guesses what a user meant who typed something else.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fidelio::app {

// Returns the candidate that differs from `word` by the fewest letters left out, added, changed or swapped. Returns ""
// where that is more than a third of them.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

// Returns the verb for `word`, which is misspelt or named as in other programs. Returns "" where there is none.
std::string verb_for(const std::string& word, const std::vector<std::string>& verbs);

// Returns what is wrong with the name of a model's folder, and what to give instead. The name may be empty, the hub's
// cache of a model, or a folder that does not exist and has the form of a name on the Hugging Face hub, for which it
// tells how to download it. Returns "" otherwise.
std::string about_model(const std::string& folder);

// Returns what to say about words that the verb which was parsed does not know; of an option it is the nearest one that
// the verb has.
std::string about_unknown_option(const CLI::App& app, const std::vector<std::string>& unknown);

// Returns what to say where an argument is missing. It may have been taken by an option that takes all following words:
// draft --kinds 4 MODEL --dry-run.
std::string about_missing(const CLI::App& app, const std::string& message);

}  // namespace fidelio::app
