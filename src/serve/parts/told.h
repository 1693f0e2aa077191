// This file returns what a scripted model's answer tells, whichever route returned it, for tests.
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>
#include <string>

#include "core/foreign/json_text.h"
#include "serve/scripted_model.h"

namespace fidelio::serve {

inline const Json kTools =
    Json::parse(R"([{"type": "function", "function": {"name": "save_note", "description": "Keeps a note",
  "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "copies": {"type": "integer"},
    "urgent": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}, "weight": {"type": ["number", "null"]}},
    "required": ["text"]}}}])");

// This form is an object with one integer.
inline const Json kOneNumber =
    Json::parse(R"({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object",
  "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}}})");

inline Json asked(const Json& more = Json::object()) {
  return with({{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 60}, {"temperature", 0}}, more);
}

// A Told holds the content of an answer, whichever route returned it: thought, text and calls, in one spelling.
struct Told {
  std::string thought, text, calls, reason;
  bool operator==(const Told&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Told& t) {
  return out << "(" << t.thought << ") \"" << t.text << "\" " << t.calls << " " << t.reason;
}
// Adds an item's text; chat has a break between two of a kind that are not neighbours.
inline void add_item(std::string& told, const std::string& text) { told += (told.empty() ? "" : "\n\n") + text; }
inline std::string call_text(const std::string& name, const std::string& arguments) { return name + arguments + ";"; }

inline Told of_chat(const Json& answer) {
  const Json& choice = answer.at("choices")[0];
  const Json& message = choice["message"];
  Told told{message.value("reasoning_content", ""), message["content"].is_null() ? "" : message["content"], "",
            choice["finish_reason"]};
  for (const Json& call : message.value("tool_calls", Json::array()))
    told.calls += call_text(call["function"]["name"], call["function"]["arguments"]);
  return told;
}
inline Told of_stream(const Reply& reply) {
  Told told;
  for (const Json& event : reply.events())
    for (const Json& choice : event["choices"]) {
      const Json& delta = choice["delta"];
      told.thought += delta.value("reasoning_content", "");
      told.text += delta.value("content", "");
      for (const Json& call : delta.value("tool_calls", Json::array()))
        told.calls += call_text(call["function"]["name"], call["function"]["arguments"]);
      if (choice["finish_reason"].is_string()) told.reason = choice["finish_reason"];
    }
  return told;
}
inline Told of_response(const Json& answer) {
  Told told;
  for (const Json& item : answer.at("output")) {
    if (item["type"] == "reasoning") add_item(told.thought, item["content"][0]["text"]);
    if (item["type"] == "message") add_item(told.text, item["content"][0]["text"]);
    if (item["type"] == "function_call") told.calls += call_text(item["name"], item["arguments"]);
  }
  told.reason = !told.calls.empty() ? "tool_calls" : answer["status"] == "completed" ? "stop" : "length";
  return told;
}
// The bytes of an input are those of the body, as a number that became a double might differ.
inline Told of_message(const std::string& body) {
  std::string readable = body;  // A parser that has only doubles can read this copy.
  if (const size_t huge = readable.find("1e400"); huge != std::string::npos) readable.erase(huge + 1, 4);
  const Json answer = Json::parse(readable);
  Told told;
  size_t at = 0;
  for (const Json& block : answer.at("content")) {
    if (block["type"] == "thinking") add_item(told.thought, block["thinking"]);
    if (block["type"] == "text") add_item(told.text, block["text"]);
    if (block["type"] != "tool_use") continue;
    at = body.find("\"input\":", at) + 8;
    told.calls += call_text(block["name"], body.substr(at, end_of_json(body, at).at - at));
  }
  const std::string reason = answer["stop_reason"];
  told.reason = reason == "tool_use" ? "tool_calls" : reason == "max_tokens" ? "length" : "stop";
  return told;
}

inline Json in_words_of_responses(const Json& chat) {
  Json body = {{"input", "hello"}, {"temperature", 0}, {"max_output_tokens", chat["max_tokens"]}};
  if (chat.contains("stop")) body["stop"] = chat["stop"];
  if (chat.contains("tools")) {
    body["tools"] = Json::array();
    for (const Json& tool : chat["tools"]) body["tools"].push_back(with({{"type", "function"}}, tool["function"]));
  }
  if (chat.contains("tool_choice")) body["tool_choice"] = chat["tool_choice"];
  if (chat.contains("response_format"))
    body["text"] = {
        {"format", {{"type", "json_schema"}, {"schema", chat["response_format"]["json_schema"]["schema"]}}}};
  return body;
}
inline Json in_words_of_messages(const Json& chat) {
  Json body = {{"messages", chat["messages"]}, {"temperature", 0}, {"max_tokens", chat["max_tokens"]}};
  if (chat.contains("stop")) body["stop_sequences"] = chat["stop"];
  if (chat.contains("tools")) {
    body["tools"] = Json::array();
    for (const Json& tool : chat["tools"])
      body["tools"].push_back({{"name", tool["function"]["name"]}, {"input_schema", tool["function"]["parameters"]}});
  }
  if (chat.contains("tool_choice")) body["tool_choice"] = {{"type", "any"}};
  if (chat.contains("response_format"))
    body["output_config"] = {
        {"format", {{"type", "json_schema"}, {"schema", chat["response_format"]["json_schema"]["schema"]}}}};
  return body;
}

// Reads one object or lines of them. Ollama has no finish reason of its own for an answer that ends with calls.
inline Told of_ollama(const std::string& body) {
  Told told;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    std::string readable = line;
    if (const size_t huge = readable.find("1e400"); huge != std::string::npos) readable.erase(huge + 1, 4);
    const Json answer = Json::parse(readable);
    const Json& message = answer.at("message");
    told.thought += message.value("thinking", "");
    told.text += message.value("content", "");
    size_t at = 0;
    for (const Json& call : message.value("tool_calls", Json::array())) {
      at = line.find("\"arguments\":", at) + 12;
      told.calls += call_text(call["function"]["name"], line.substr(at, end_of_json(line, at).at - at));
    }
    if (answer["done"] == true) told.reason = answer["done_reason"];
  }
  if (!told.calls.empty() && told.reason == "stop") told.reason = "tool_calls";
  return told;
}
inline Json in_words_of_ollama(const Json& chat) {
  Json body = {{"messages", chat["messages"]}, {"options", {{"temperature", 0}, {"num_predict", chat["max_tokens"]}}}};
  if (chat.contains("stop")) body["options"]["stop"] = chat["stop"];
  if (chat.contains("tools")) body["tools"] = chat["tools"];
  if (chat.contains("response_format")) body["format"] = chat["response_format"]["json_schema"]["schema"];
  return body;
}

// Expects that every route returns `expected`, whole and streamed; Ollama's route has no tool_choice.
inline void expect_told(const Script& script, const Json& body, const Told& expected) {
  const auto serving = serve_script(script);
  const std::string all = testing::PrintToString(script.pieces);
  const Reply whole = serving->chat(body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(of_chat(whole.json()), expected) << all;
  EXPECT_EQ(of_stream(serving->chat(with(body, {{"stream", true}}))), expected) << all;
  const Json response = in_words_of_responses(body);
  EXPECT_EQ(of_response(serving->ask(post("/v1/responses", response.dump())).json()), expected) << all;
  const auto events = serving->ask(post("/v1/responses", with(response, {{"stream", true}}).dump())).events();
  EXPECT_EQ(of_response(events.back()["response"]), expected) << all;
  const Json message = in_words_of_messages(body);
  EXPECT_EQ(of_message(serving->ask(post("/v1/messages", message.dump())).body), expected) << all;
  if (body.contains("tool_choice")) return;
  for (const bool streams : {false, true}) {
    const Json ollama = with(in_words_of_ollama(body), {{"stream", streams}});
    EXPECT_EQ(of_ollama(serving->ask(post("/api/chat", ollama.dump())).body), expected) << all;
  }
}

}  // namespace fidelio::serve
