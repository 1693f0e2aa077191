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

// If `folder` is not there and has the form of a name on the Hugging Face hub: how to get it; "" otherwise.
std::string how_to_download(const std::string& folder);

}  // namespace fidelio::app
