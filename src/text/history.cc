#include "text/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/channels.h"
#include "text/conversation.h"

namespace fidelio {
namespace {

using Json = nlohmann::ordered_json;

bool has_text(const Json& message, const char* name) {
  const auto field = message.find(name);
  return field != message.end() && field->is_string() && *field != "";
}
bool has_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}
bool instructs(const Json& message) { return message["role"] == "system" || message["role"] == "developer"; }

// Tells whether a template reads this field of a message.
bool reads_field(std::string_view source, std::string_view name) {
  for (const char* form :
       {"message.{}", "message['{}']", "message[\"{}\"]", "message.get('{}')", "message.get(\"{}\")"})
    if (source.find(fmt::format(fmt::runtime(form), name)) != std::string_view::npos) return true;
  return false;
}

void name_thoughts(Json& messages, std::string_view source) {
  constexpr const char* kNames[] = {"reasoning_content", "reasoning", "thinking"};
  for (const char* read : kNames) {
    if (!reads_field(source, read)) continue;
    for (Json& message : messages)
      for (const char* given : kNames) {
        if (message["role"] != "assistant" || has_text(message, read) || !has_text(message, given)) continue;
        message[read] = message[given];
      }
    return;
  }
}

// The name of the function that a result belongs to is that of the call with its id, or of the only call.
std::string name_of_result(const Json& calls, const Json& result) {
  const auto name_of = [](const Json& call) {
    const Json& function = call.contains("function") ? call["function"] : call;
    return function.is_object() && has_text(function, "name") ? function["name"].get<std::string>() : std::string();
  };
  for (const Json& call : calls)
    if (call.is_object() && call.contains("id") && result.contains("tool_call_id") &&
        call["id"] == result["tool_call_id"])
      return name_of(call);
  if (has_text(result, "name")) return result["name"];
  return calls.size() == 1 && calls[0].is_object() ? name_of(calls[0]) : std::string();
}

Json with_results_in_calls(const Json& messages) {
  Json all = Json::array();
  for (const Json& message : messages) {
    if (message["role"] != "tool" || all.empty() || !has_calls(all.back())) {
      all.push_back(message);
      continue;
    }
    Json result = {{"response", message["content"]}};
    if (const std::string name = name_of_result(all.back()["tool_calls"], message); !name.empty())
      result["name"] = name;
    all.back()["tool_responses"].push_back(std::move(result));
  }
  return all;
}

// Appends a message with several calls as several with one, each followed by those results that belong to it.
void append_apart(Json& all, const Json& message, std::vector<Json> results) {
  Json one = message;
  for (const Json& call : message["tool_calls"]) {
    one["tool_calls"] = Json::array({call});
    all.push_back(one);
    one = {{"role", message["role"]}, {"content", ""}};
    for (auto result = results.begin(); result != results.end();) {
      const bool own = call.is_object() && call.contains("id") && result->contains("tool_call_id") &&
                       call["id"] == (*result)["tool_call_id"];
      if (own) all.push_back(*result);
      result = own ? results.erase(result) : std::next(result);
    }
  }
  for (Json& result : results) all.push_back(std::move(result));
}

Json with_one_call_a_message(const Json& messages) {
  Json all = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!has_calls(message) || message["tool_calls"].size() == 1) {
      all.push_back(message);
      continue;
    }
    std::vector<Json> results;
    while (i + 1 < messages.size() && messages[i + 1]["role"] == "tool") results.push_back(messages[++i]);
    append_apart(all, message, std::move(results));
  }
  return all;
}

void join_text_with_thought(Json& message) {
  if (!has_calls(message) || !has_text(message, "thinking") || !has_text(message, "content")) return;
  message["thinking"] = message["thinking"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
  message["content"] = "";
}

Json with_one_instruction(const Json& messages) {
  Json all = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!instructs(messages[i])) {
      all.push_back(messages[i]);
    } else if (all.empty()) {
      all.push_back(messages[i]);
    } else if (all.size() == 1 && instructs(all[0])) {
      const std::string more = messages[i]["content"];
      if (!more.empty()) all[0]["content"] = all[0]["content"].get<std::string>() + "\n\n" + more;
    } else {
      throw FieldError(fmt::format("messages[{}].role", i),
                       "user, assistant or tool: the model's template shows instructions at the beginning alone");
    }
  }
  return all;
}

// Tells whether a template shows messages of the role "tool".
bool shows_results(std::string_view source) {
  for (const char* form : {"== 'tool'", "== \"tool\"", "!= 'tool'", "!= \"tool\""})
    if (source.find(form) != std::string_view::npos) return true;
  return false;
}

}  // namespace

Json shown_tools(Json tools, std::string_view source) {
  if (!writes_channels(source)) return tools;
  for (Json& tool : tools)
    if (!has_text(tool["function"], "description")) tool["function"]["description"] = "";
  return tools;
}

Json shown_history(Json messages, std::string_view source) {
  name_thoughts(messages, source);
  if (source.find("tool_responses") != std::string_view::npos && !shows_results(source))
    return with_results_in_calls(messages);
  if (!writes_channels(source)) return messages;
  messages = with_one_call_a_message(with_one_instruction(messages));
  for (Json& message : messages) join_text_with_thought(message);
  return messages;
}

}  // namespace fidelio
