// This file takes an answer from generated text and compares it with the right one. It is pure: it sees no model.
#pragma once
#include <string>
#include <string_view>

#include "eval/tasks/task_data.h"

namespace fidelio {

// Returns the text after the last end of thinking ("</think>" or another family's mark), stripped. If nothing was
// thought it returns the whole text, stripped. If a thought was opened and never closed it returns nothing, because
// no answer was given.
std::string answer_part(std::string_view text);

// Returns the answer taken as `match` says, or an empty string if there is none. Numbers lose thousands separators, a
// trailing period and zero decimals ("1,234.00" becomes "1234"). Throws Error if `pattern` is not a regular
// expression, or if matching takes longer than core/foreign/limits.h allows.
std::string extract_answer(std::string_view answer_text, Match match, const std::string& pattern);

// Returns true if extract_answer(answer_part(text)) equals the item's answer, with both normalised as `match`
// requires.
bool is_correct(std::string_view text, const TaskItem& item, Match match, const std::string& pattern);

}  // namespace fidelio
