#include "serve/parts/call_forms.h"

#include <algorithm>
#include <array>
#include <random>

#include "core/error.h"
#include "serve/parts/reading.h"

namespace fidelio::serve {
namespace {

// Reads {"name", "arguments" or "parameters"}, perhaps all inside {"function"}. Throws Error for anything else.
Part call_of(std::string_view object) {
  const std::string_view function = json_member(object, "function");
  if (function.starts_with('{')) return call_of(function);
  std::string_view name = json_member(object, "name"), arguments = json_member(object, "arguments");
  if (name.empty()) name = function;
  check(name.starts_with('"'), "no call of a tool");
  if (arguments.empty()) arguments = json_member(object, "parameters");
  return call_named(text_of_json(name), arguments.starts_with('"') ? text_of_json(arguments) : compact_json(arguments));
}

// Reads the calls in a JSON value; there are none if it is neither a call nor a list of calls.
std::vector<Part> calls_in(std::string_view value) {
  std::vector<Part> calls;
  try {
    if (value.starts_with('['))
      for (const std::string_view one : json_elements(value)) calls.push_back(call_of(one));
    else
      calls.push_back(call_of(value));
  } catch (const Error&) {
    calls.clear();
  }
  return calls;
}

// Reads JSON, or several values separated by ';'. Returns false if there are none or more must arrive.
bool read_json_calls(Reading& r, std::vector<Part>& calls) {
  do {
    r.blanks();
    std::string_view value;
    if ((r.next() != '{' && r.next() != '[') || !r.json(value)) return false;
    std::vector<Part> more = calls_in(value);
    if (more.empty()) return false;
    std::move(more.begin(), more.end(), std::back_inserter(calls));
    const size_t end = r.at();
    r.blanks();
    if (r.next() != ';') {
      r.go_to(end);
      return true;
    }
    r.take(";");
    r.blanks();
  } while (!r.ended());
  return !r.unsure();  // The text may end with a ';'.
}

CallRead json_calls(Reading& r, std::string_view close) {
  std::vector<Part> calls;
  if (!read_json_calls(r, calls)) return r.missing();
  return closed_calls(r, std::move(calls), close);
}

// Hermes and Qwen write JSON between the marks, Qwen3-Coder a function with its parameters, and GLM keys and values.
CallRead read_tool_call(std::string_view text, bool last, const Tools& tools) {
  constexpr std::string_view close = "</tool_call>";
  Reading r(text, last);
  r.take("<tool_call>");
  r.blanks();
  if (r.next() == '{' || r.next() == '[') return json_calls(r, close);
  if (r.is("<function=")) return function_calls(r, tools, close);
  if (r.unsure()) return r.missing();
  return keyed_calls(r, tools);
}

CallRead read_function(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  return function_calls(r, tools, "");
}

CallRead read_seed(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("<seed:tool_call>");
  r.blanks();
  return r.is("<function=") ? function_calls(r, tools, "</seed:tool_call>") : r.missing();
}

// Reads [{"name", "arguments"}, ...], or since 2025 name[ARGS]{...}, perhaps with [CALL_ID] and the call's own id in
// between.
CallRead read_mistral(std::string_view text, bool last, const Tools&) {
  Reading r(text, last);
  r.take("[TOOL_CALLS]");
  r.blanks();
  if (r.next() == '[' || r.next() == '{') return json_calls(r, "");
  std::string name, id = new_call_id();
  if (!r.word(name)) return r.missing();
  if (r.take("[CALL_ID]") && !r.word(id)) return r.missing();
  r.take("[ARGS]");
  if (r.unsure()) return r.missing();
  r.blanks();
  std::string_view arguments;
  if (r.next() != '{' || !r.json(arguments)) return r.missing();
  return {CallRead::Kind::calls, {call_named(name, compact_json(arguments), id)}, r.at()};
}

// Reads JSON, several values separated by ';', or calls in Python's form.
CallRead read_python_tag(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("<|python_tag|>");
  r.blanks();
  if (r.next() != '{' && r.next() != '[') return r.ended() ? r.missing() : python_calls(r, tools, "", true);
  std::vector<Part> calls;
  if (!read_json_calls(r, calls)) return r.missing();
  const size_t end = r.at();
  r.blanks();
  if (r.unsure()) return r.missing();  // A ';' may still come.
  return {CallRead::Kind::calls, std::move(calls), end};
}

// These marks have JSON between them.
constexpr std::array<std::array<std::string_view, 2>, 4> kAroundJson = {{{"<|tool_call|>", "<|/tool_call|>"},
                                                                         {"<TOOLCALL>", "</TOOLCALL>"},
                                                                         {"<tool_calls>", "</tool_calls>"},
                                                                         {"functools", ""}}};
template <size_t kind>
CallRead read_around_json(std::string_view text, bool last, const Tools&) {
  Reading r(text, last);
  r.take(kAroundJson[kind][0]);
  return json_calls(r, kAroundJson[kind][1]);
}

CallRead read_olmo(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("<function_calls>");
  return python_calls(r, tools, "</function_calls>", false);
}

CallRead read_tool_code(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("```tool_code");
  return python_calls(r, tools, "```", false);
}

CallRead read_function_gemma(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("<start_function_call>");
  return escaped_calls(r, tools, "<escape>", "<end_function_call>");
}

CallRead read_gemma4(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.take("<|tool_call>");
  return escaped_calls(r, tools, "<|\"|>", "<tool_call|>");
}

constexpr std::string_view kDeepSeekAll = "<｜tool▁calls▁begin｜>", kDeepSeekAllEnd = "<｜tool▁calls▁end｜>",
                           kDeepSeek = "<｜tool▁call▁begin｜>", kDeepSeekEnd = "<｜tool▁call▁end｜>",
                           kDeepSeekMiddle = "<｜tool▁sep｜>";

// Reads "function", the name and fenced JSON; in V3.1 the name and JSON.
bool read_deepseek_call(Reading& r, std::vector<Part>& calls) {
  std::string_view name, arguments;
  if (!r.until(kDeepSeekMiddle, name)) return false;
  if (name == "function" && !r.until("\n", name)) return false;
  r.blanks();
  const bool fenced = r.take("```json");
  if (!fenced && r.unsure()) return false;
  r.blanks();
  if (r.next() != '{' || !r.json(arguments)) return false;
  r.blanks();
  if (fenced && !r.take("```") && r.unsure()) return false;
  r.blanks();
  if (!r.take(kDeepSeekEnd) && r.unsure()) return false;
  calls.push_back(call_named(name, compact_json(arguments)));
  return true;
}

CallRead read_deepseek(std::string_view text, bool last, const Tools&) {
  Reading r(text, last);
  const bool block = r.take(kDeepSeekAll);
  std::vector<Part> calls;
  size_t end = 0;
  for (;;) {
    r.blanks();
    if (block && !calls.empty() && r.take(kDeepSeekAllEnd)) return {CallRead::Kind::calls, std::move(calls), r.at()};
    if (!r.take(kDeepSeek)) break;
    if (!read_deepseek_call(r, calls)) return r.missing();
    end = r.at();
    if (!block) return {CallRead::Kind::calls, std::move(calls), end};
  }
  if (calls.empty() || r.unsure()) return r.missing();
  return {CallRead::Kind::calls, std::move(calls), end};
}

constexpr std::array kCallForms = {CallForm{"<tool_call>", read_tool_call},
                                   CallForm{"<function=", read_function},
                                   CallForm{"[TOOL_CALLS]", read_mistral},
                                   CallForm{"<|python_tag|>", read_python_tag},
                                   CallForm{kAroundJson[0][0], read_around_json<0>},
                                   CallForm{kAroundJson[1][0], read_around_json<1>},
                                   CallForm{kAroundJson[2][0], read_around_json<2>},
                                   CallForm{"functools[", read_around_json<3>},
                                   CallForm{kDeepSeekAll, read_deepseek},
                                   CallForm{kDeepSeek, read_deepseek},
                                   CallForm{"<function_calls>", read_olmo},
                                   CallForm{"```tool_code", read_tool_code},
                                   CallForm{"<start_function_call>", read_function_gemma},
                                   CallForm{"<|tool_call>", read_gemma4},
                                   CallForm{"<seed:tool_call>", read_seed}};

constexpr std::array<std::string_view, 30> kCallMarks = {"<tool_call>",
                                                         "</tool_call>",
                                                         "[TOOL_CALLS]",
                                                         "[CALL_ID]",
                                                         "[ARGS]",
                                                         "<|python_tag|>",
                                                         "<|tool_call|>",
                                                         "<|/tool_call|>",
                                                         "<TOOLCALL>",
                                                         "</TOOLCALL>",
                                                         kDeepSeekAll,
                                                         kDeepSeekAllEnd,
                                                         kDeepSeek,
                                                         kDeepSeekEnd,
                                                         kDeepSeekMiddle,
                                                         "<function_calls>",
                                                         "<escape>",
                                                         "</function_calls>",
                                                         "<tool_calls>",
                                                         "</tool_calls>",
                                                         "<start_function_call>",
                                                         "<end_function_call>",
                                                         "<|tool_call>",
                                                         "<tool_call|>",
                                                         "<|\"|>",
                                                         "<arg_key>",
                                                         "</arg_key>",
                                                         "<arg_value>",
                                                         "<seed:tool_call>",
                                                         "</seed:tool_call>"};

}  // namespace

const Tool* tool_of(const Tools& tools, std::string_view name) {
  for (const Tool& tool : tools)
    if (tool.name == name) return &tool;
  return nullptr;
}

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) + 1 - first));
}

Part call_named(std::string_view name, std::string arguments, std::string id) {
  const bool none = arguments.empty() || arguments == "null";
  return {Part::Kind::call, none ? "{}" : std::move(arguments), trimmed(name), std::move(id)};
}

CallRead closed_calls(Reading& r, std::vector<Part> calls, std::string_view close) {
  const size_t end = r.at();
  if (close.empty()) return {CallRead::Kind::calls, std::move(calls), end};
  r.blanks();
  if (r.take(close)) return {CallRead::Kind::calls, std::move(calls), r.at()};
  if (r.unsure()) return r.missing();
  return {CallRead::Kind::calls, std::move(calls), end};
}

std::string new_call_id() {
  thread_local std::random_device device;
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string id;
  for (int i = 0; i < 9; ++i) id += letters[device() % letters.size()];
  return id;
}

std::span<const CallForm> call_forms() { return kCallForms; }
std::span<const std::string_view> call_marks() { return kCallMarks; }

bool may_begin_unmarked_calls(std::string_view text) {
  constexpr std::string_view fence = "```json";
  return text.starts_with('{') || text.starts_with('[') || fence.starts_with(text.substr(0, fence.size()));
}

CallRead unmarked_calls(std::string_view text, bool last, const Tools& tools) {
  Reading r(text, last);
  r.blanks();
  const bool fenced = r.take("```json");
  if (!fenced && r.unsure()) return r.missing();
  r.blanks();
  if (r.next() == '[' && !fenced) {
    const size_t begin = r.at();
    r.take("[");
    r.blanks();
    if (r.ended()) return r.missing();
    const bool python = r.next() != '{';
    r.go_to(begin);
    if (python) return python_calls(r, tools, "", true);
  }
  std::vector<Part> calls;
  const bool whole = read_json_calls(r, calls);
  const auto known = [&](const Part& call) { return tools.empty() || tool_of(tools, call.name) != nullptr; };
  if (!std::all_of(calls.begin(), calls.end(), known)) return {};
  if (!whole) return r.missing();
  r.blanks();
  if (fenced && r.take("```")) r.blanks();
  if (!r.ended()) return r.missing();
  return last ? CallRead{CallRead::Kind::calls, std::move(calls), text.size()} : CallRead{CallRead::Kind::more};
}

}  // namespace fidelio::serve
