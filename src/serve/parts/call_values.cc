// This file reads forms of calls that are not JSON and converts their arguments to JSON.
#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/foreign/limits.h"
#include "serve/parts/reading.h"

namespace fidelio::serve {
namespace {

// The functions below read values whose type the tool's schema gives. kind_of returns JSON's name of the type of a JSON
// text.
std::string kind_of(std::string_view json) {
  switch (json[0]) {
    case '{':
      return "object";
    case '[':
      return "array";
    case '"':
      return "string";
    case 't':
    case 'f':
      return "boolean";
    case 'n':
      return "null";
    default:
      return json.find_first_of(".eE") == std::string_view::npos ? "integer" : "number";
  }
}

// Adds the types that a schema names, directly and in the schemas that it combines or refers to.
void add_types(const Json& schema, const Json& root, int depth, std::set<std::string>& types) {
  if (!schema.is_object() || depth > kMaxNesting) return;
  const auto add = [&](const Json& type) {
    if (type.is_string()) types.insert(type.get<std::string>());
  };
  const auto add_kind = [&](const Json& value) { types.insert(kind_of(value.dump())); };
  for (const auto& [key, value] : schema.items()) {
    if (key == "type" && value.is_array())
      for (const Json& type : value) add(type);
    else if (key == "type")
      add(value);
    else if (key == "const")
      add_kind(value);
    else if (key == "enum" && value.is_array())
      for (const Json& one : value) add_kind(one);
    else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array())
      for (const Json& one : value) add_types(one, root, depth + 1, types);
    else if (key == "$ref" && value.is_string() && value.get_ref<const std::string&>().starts_with("#/"))
      try {
        add_types(root.at(Json::json_pointer(value.get<std::string>().substr(1))), root, depth + 1, types);
      } catch (const Json::exception&) {  // The reference leads nowhere.
      }
  }
}

// Converts Python's constants to those of JSON.
std::string in_json(const std::string& text) {
  return text == "True" ? "true" : text == "False" ? "false" : text == "None" ? "null" : text;
}

// Converts the text between an argument's marks to JSON. It is a text, unless the tool's schema has other types for it.
std::string typed_value(std::string_view text, const Tool* tool, std::string_view key) {
  std::set<std::string> types;
  if (tool != nullptr && tool->parameters.is_object()) {
    const auto properties = tool->parameters.find("properties");
    if (properties != tool->parameters.end() && properties->is_object())
      if (const auto own = properties->find(std::string(key)); own != properties->end())
        add_types(*own, tool->parameters, 0, types);
  }
  const bool may_be_text = types.empty() || types.contains("string");
  types.erase("string");
  const std::string value = in_json(trimmed(text));
  if (types.empty() || !is_json(value)) return json_of_text(text);
  const std::string kind = kind_of(value);
  const bool named = types.contains(kind) || (kind == "integer" && types.contains("number"));
  return named || !may_be_text ? compact_json(value) : json_of_text(text);
}

// This collects the members of an object.
class Members {
 public:
  void add(std::string_view key, const std::string& value) {
    text_ += (text_.empty() ? "{" : ",") + json_of_text(key) + ":" + value;
  }
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

// One line break at either end belongs to the marks.
std::string_view without_breaks(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Reads up to the `close` after which the form continues as `goes_on` tests. Any other `close` is a part of the value.
template <typename GoesOn>
bool quoted_value(Reading& r, std::string_view close, const GoesOn& goes_on, std::string_view& value) {
  const size_t begin = r.at();
  for (size_t at = begin;; ++at) {
    if (!r.find(close, at, at)) return false;
    r.go_to(at + close.size());
    r.blanks();
    const size_t next = r.at();
    if (goes_on(r)) {
      value = without_breaks(r.between(begin, at));
      r.go_to(next);
      return true;
    }
    if (r.unsure()) return false;
  }
}

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>",
                           kParameter = "<parameter=", kParameterEnd = "</parameter>";

// This reads the parameters of one call that stands in <function=NAME>.
struct Parameters {
  Reading& r;
  const Tool* tool;
  std::string_view close;  // It is the mark behind the function; if empty, there is none.
  std::set<std::string, std::less<>> given{};

  // Tests what follows a parameter: another one, or the function's end and what follows that.
  bool goes_on() {
    if (r.is(kParameter)) return true;
    return r.take(kFunctionEnd) && (close.empty() || is_left());
  }
  // Tests what follows a function: the mark, another function before it, or the end of an answer that forgot it.
  bool is_left() {
    r.blanks();
    return r.is(close) || r.is(kFunction) || (r.last() && r.ended());
  }
  // Some models forget the mark behind a parameter. It then ends where the function ends together with the call, or
  // where a parameter begins that the tool has and that was not given yet.
  bool is_cut_off() {
    if (r.take(kFunctionEnd)) {
      r.blanks();
      return r.is(close.empty() ? "</tool_call>" : close);
    }
    std::string_view key;
    if (tool == nullptr || !r.take(kParameter) || !r.until(">", key) || given.contains(key)) return false;
    const auto properties = tool->parameters.find("properties");
    return properties != tool->parameters.end() && properties->is_object() && properties->contains(std::string(key));
  }
  // Reads a value up to the mark after which the form continues. Any other such mark is a part of the value.
  bool value(std::string_view& what) {
    const size_t begin = r.at();
    for (size_t at = begin; r.find("<", at, at); ++at) {
      r.go_to(at);
      size_t next = at;
      const bool marked = r.take(kParameterEnd);
      if (marked) {
        r.blanks();
        next = r.at();
      }
      const bool first_of_line = at > begin && r.between(at - 1, at) == "\n";
      if (marked ? !goes_on() : !first_of_line || !is_cut_off()) continue;
      what = without_breaks(r.between(begin, at));
      r.go_to(next);
      return true;
    }
    return false;
  }
  bool read(Members& members) {
    std::string_view key, text;
    for (r.blanks(); !r.take(kFunctionEnd); r.blanks()) {
      if (!r.take(kParameter) || !r.until(">", key) || key.find('\n') != std::string_view::npos) return false;
      given.insert(std::string(key));
      if (!value(text)) return false;
      members.add(trimmed(key), typed_value(text, tool, trimmed(key)));
    }
    return true;
  }
};

}  // namespace

CallRead function_calls(Reading& r, const Tools& tools, std::string_view close) {
  std::string_view name, value;
  r.take(kFunction);
  if (!r.until(">", name) || name.find('\n') != std::string_view::npos) return r.missing();
  // Some models forget the mark before the function and write the one after it.
  const std::string_view behind = close.empty() ? "</tool_call>" : close;
  r.blanks();
  if (r.next() == '{') {  // This is Llama 3.1's form.
    if (!r.json(value)) return r.missing();
    r.blanks();
    if (!r.take(kFunctionEnd)) return r.missing();
    return closed_calls(r, {call_named(name, compact_json(value))}, behind);
  }
  Members members;
  Parameters parameters{r, tool_of(tools, trimmed(name)), close};
  if (!parameters.read(members)) return r.missing();
  return closed_calls(r, {call_named(name, members.text())}, behind);
}

namespace {

// Returns true where a text may be the beginning of the name of a tool.
bool begins_a_name(std::string_view text, const Tools& tools) {
  const std::string begun = trimmed(text);
  return std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name.starts_with(begun); });
}

}  // namespace

CallRead keyed_calls(Reading& r, const Tools& tools) {
  constexpr std::string_view close = "</tool_call>";
  const size_t begin = r.at();
  size_t end = 0;
  if (!r.find("<", begin, end)) return begins_a_name(r.rest(), tools) ? r.missing() : CallRead{};
  const std::string name = trimmed(r.between(begin, end));
  const Tool* tool = tool_of(tools, name);
  if (tool == nullptr) return {};
  r.go_to(end);
  const auto goes_on = [&](Reading& at) { return at.is("<arg_key>") || at.is(close); };
  Members members;
  while (!r.take(close)) {
    std::string_view key, value;
    if (!r.take("<arg_key>") || !r.until("</arg_key>", key)) return r.missing();
    r.blanks();
    if (!r.take("<arg_value>") || !quoted_value(r, "</arg_value>", goes_on, value)) return r.missing();
    members.add(trimmed(key), typed_value(value, tool, trimmed(key)));
    r.blanks();
  }
  return {CallRead::Kind::calls, {call_named(name, members.text())}, r.at()};
}

namespace {

// The functions below read Python's values. escaped_code appends the code point of `digits` hexadecimal digits as
// UTF-8.
bool escaped_code(Reading& r, int digits, std::string& text) {
  std::string code = "\"\\u";
  for (int i = digits; i < 4; ++i) code += '0';
  for (int i = 0; i < digits; ++i) {
    if (std::isxdigit(static_cast<unsigned char>(r.next())) == 0) return false;
    code += r.next();
    r.go_to(r.at() + 1);
  }
  text += text_of_json(code + '"');
  return true;
}

bool python_escape(Reading& r, std::string& text) {
  constexpr std::string_view names = "ntr0\\'\"", meant("\n\t\r\0\\'\"", 7);
  const char c = r.next();
  r.go_to(r.at() + 1);
  if (c == 'x') return escaped_code(r, 2, text);
  if (c == 'u') return escaped_code(r, 4, text);
  if (const size_t at = names.find(c); at != std::string_view::npos)
    text += meant[at];
  else
    (text += '\\') += c;  // In Python this is no escape.
  return true;
}

bool python_string(Reading& r, std::string& json) {
  std::string quote(1, r.next());
  if (const std::string three(3, quote[0]); r.is(three)) quote = three;
  r.take(quote);
  std::string text;
  while (!r.ended()) {
    if (r.take(quote)) {
      json += json_of_text(text);
      return true;
    }
    const char c = r.next();
    r.go_to(r.at() + 1);
    if (c != '\\')
      text += c;
    else if (r.ended() || !python_escape(r, text))
      return false;
  }
  return false;
}

bool python_value(Reading& r, std::string& json, int depth);

// Reads [..], (..) or {..: ..} from after its first bracket.
bool python_items(Reading& r, char close, bool keys, std::string& json, int depth) {
  json += keys ? '{' : '[';
  for (bool first = true;; first = false) {
    r.blanks();
    if (r.take(std::string(1, close))) break;
    if (!first) json += ',';
    if (keys) {
      if (r.next() != '"' && r.next() != '\'') return false;
      if (!python_string(r, json)) return false;
      r.blanks();
      if (!r.take(":")) return false;
      json += ':';
      r.blanks();
    }
    if (!python_value(r, json, depth + 1)) return false;
    r.blanks();
    if (!r.take(",") && !r.is(std::string(1, close))) return false;
  }
  json += keys ? '}' : ']';
  return true;
}

bool python_value(Reading& r, std::string& json, int depth) {
  if (depth > kMaxNesting) return false;
  const char c = r.next();
  if (c == '"' || c == '\'') return python_string(r, json);
  if (r.take("[")) return python_items(r, ']', false, json, depth);
  if (r.take("(")) return python_items(r, ')', false, json, depth);
  if (r.take("{")) return python_items(r, '}', true, json, depth);
  std::string word;
  if (!r.word(word, "+-.")) return false;
  word = in_json(word);
  if (!is_json(word)) return false;
  json += word;
  return true;
}

// Reads name(key=value, ...), perhaps inside print(). A name ends in .call where Llama's own tools are meant.
bool python_call(Reading& r, Part& call) {
  std::string name, key;
  if (!r.word(name, "_.") || !r.take("(")) return false;
  r.blanks();
  if (name == "print") {
    if (!python_call(r, call)) return false;
    r.blanks();
    return r.take(")");
  }
  if (name.ends_with(".call")) name.resize(name.size() - 5);
  Members members;
  while (!r.take(")")) {
    std::string value;
    if (!r.word(key, "_")) return false;
    r.blanks();
    if (!r.take("=")) return false;
    r.blanks();
    if (!python_value(r, value, 0)) return false;
    members.add(key, value);
    r.blanks();
    if (!r.take(",") && !r.is(")")) return false;
    r.blanks();
  }
  call = call_named(name, members.text());
  return true;
}

}  // namespace

CallRead python_calls(Reading& r, const Tools& tools, std::string_view close, bool bare) {
  std::vector<Part> calls;
  r.blanks();
  const bool listed = r.take("[");
  const auto over = [&] { return listed ? r.take("]") : r.ended() ? close.empty() || r.last() : r.is(close); };
  for (;;) {
    r.blanks();
    if (!calls.empty()) {
      if (over()) break;
      if (r.unsure()) return r.missing();
    }
    Part call;
    if (!python_call(r, call)) return r.missing();
    if (bare && !tools.empty() && tool_of(tools, call.name) == nullptr) return {};
    calls.push_back(std::move(call));
    r.blanks();
    if (!r.take(",")) r.take(";");
  }
  if (!bare) return closed_calls(r, std::move(calls), close);
  r.blanks();
  if (!r.ended() || !r.last()) return r.missing();
  return {CallRead::Kind::calls, std::move(calls), r.at()};
}

namespace {

// This reads the values of FunctionGemma and Gemma 4. Texts and keys may stand between quotes, which are tokens of
// their own; everything else is bare.
struct Escaped {
  Reading& r;
  std::string_view quote;

  bool members(std::string& json, int depth) {
    Members members;
    r.blanks();
    while (!r.take("}")) {
      std::string_view key;
      std::string value;
      if (r.unsure()) return false;
      const bool quoted = r.take(quote);
      if (quoted ? !r.until(quote, key) || !r.take(":") : !r.until(":", key)) return false;
      if (!this->value(value, depth + 1)) return false;
      members.add(quoted ? std::string(key) : trimmed(key), value);
      r.blanks();
      if (!r.take(",") && !r.is("}")) return false;
      r.blanks();
    }
    json += members.text();
    return true;
  }

  bool value(std::string& json, int depth) {
    if (depth > kMaxNesting) return false;
    r.blanks();
    std::string_view text;
    if (r.take(quote)) {
      if (!r.until(quote, text)) return false;
      json += json_of_text(text);
      return true;
    }
    if (r.unsure()) return false;
    if (r.take("{")) return members(json, depth);
    if (r.take("[")) return items(json, depth);
    const size_t begin = r.at();
    while (!r.ended() && std::string_view(",}]").find(r.next()) == std::string_view::npos) r.go_to(r.at() + 1);
    if (r.ended()) return false;
    const std::string word = in_json(trimmed(r.between(begin, r.at())));
    json += is_json(word) ? word : json_of_text(word);
    return true;
  }

  bool items(std::string& json, int depth) {
    json += '[';
    for (bool first = true; r.blanks(), !r.take("]"); first = false) {
      if (!first) json += ',';
      if (!value(json, depth + 1)) return false;
      r.blanks();
      if (!r.take(",") && !r.is("]")) return false;
    }
    json += ']';
    return true;
  }
};

}  // namespace

CallRead escaped_calls(Reading& r, const Tools& tools, std::string_view quote, std::string_view close) {
  std::string name, arguments;
  r.blanks();
  if (!r.take("call:") || !r.word(name, "_-.:") || !r.take("{")) return r.missing();
  if (!Escaped{r, quote}.members(arguments, 0)) return r.missing();
  // Some models write the namespace of a function before its name.
  if (const size_t colon = name.rfind(':'); colon != std::string::npos && tool_of(tools, name) == nullptr)
    name.erase(0, colon + 1);
  return closed_calls(r, {call_named(name, arguments)}, close);
}

}  // namespace fidelio::serve
