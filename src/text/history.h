// This file changes a conversation to what the chat template of its model can show, where the template would leave out
// a part of it or refuse it. The messages are in OpenAI's wire form (text/conversation.h).
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace fidelio {

// The following is changed, where the template is one that needs it:
//   - A thought is given under the name that the template reads: `reasoning_content`, `reasoning` or `thinking`.
//   - Results of tools become a field of the message with the calls (the first templates of Gemma 4).
//   - Templates of gpt-oss show one call a message, and name a result by the newest call. A message with several calls
//     becomes several, each before its own results. A text beside a thought and a call joins the thought, as such a
//     template shows only one of them. Instructions at the beginning are joined.
// Throws FieldError where instructions come later, which templates of gpt-oss do not show.
nlohmann::ordered_json shown_history(nlohmann::ordered_json messages, std::string_view template_source);
// Gives tools an empty description where they have none. Templates of gpt-oss refuse tools without one.
nlohmann::ordered_json shown_tools(nlohmann::ordered_json tools, std::string_view template_source);

}  // namespace fidelio
