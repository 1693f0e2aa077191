// app: what somebody may have meant who typed something else.
#pragma once
#include <string>
#include <vector>

namespace fidelio::app {

// The candidate that differs from `word` by the fewest letters left out, added, changed or swapped; "" where that is
// more than a third of them.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

// The verb for `word`, misspelt or called as other programs call it; "" where there is none.
std::string verb_for(const std::string& word, const std::vector<std::string>& verbs);

// What is wrong with the name of a model's folder, with what to give: nothing, the hub's cache of a model, or one that is
// not there and has the form of a name on the Hugging Face hub, with how to get it. "" otherwise.
std::string about_model(const std::string& folder);

}  // namespace fidelio::app
