// Taking an answer from generated text. Pure.
#pragma once
#include <string>
#include <string_view>

#include "eval/tasks/task_data.h"

namespace fidelio {

// What follows the last "</think>", stripped; all of the text, stripped, if nothing was thought; empty if "<think>" was
// opened and never closed, because then no answer was given.
std::string answer_part(std::string_view text);

// The answer as `match` takes it; empty if there is none. Numbers lose thousands separators and a trailing period or
// zero decimals ("1,234.00" -> "1234"). Throws Error if `pattern` is no regular expression, or
// takes longer over the text than core/foreign/limits.h allows.
std::string extract_answer(std::string_view answer_text, Match match, const std::string& pattern);

// Whether extract_answer(answer_part(text)) equals the item's answer, both normalised as `match` does.
bool is_correct(std::string_view text, const TaskItem& item, Match match, const std::string& pattern);

}  // namespace fidelio
