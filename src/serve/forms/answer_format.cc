#include "serve/forms/answer_format.h"

#include "core/foreign/json.h"
#include "grammar/json_schema.h"

namespace fidelio::serve {

namespace {

// Returns the name of a form, which includes what may stand before the form.
std::string name_of_form(const std::string& key, const BeforeForm& before) {
  if (const auto& channels = before.thinking.channels) return fmt::format("message {}, {}", channels->begun, key);
  std::string name = before.thinking.opened ? fmt::format("opened {}, ", before.thinking.opened->end) : "";
  if (name.empty())
    for (const ThinkingMarks& marks : before.thinking.marks) name += fmt::format("{}, ", marks.begin);
  return name + key;
}

}  // namespace

AnswerFormats::AnswerFormats(std::shared_ptr<const grammar::TokenTree> tokens) : tokens_(std::move(tokens)) {
  for (const ThinkingMarks& marks : thinking_marks())
    for (size_t id = 0; id < tokens_->size(); ++id)
      if (tokens_->bytes(static_cast<int32_t>(id)).find(marks.begin) != std::string::npos) {
        spelled_.insert(marks.begin);
        break;
      }
}

std::shared_ptr<Constraint> AnswerFormats::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if (at->first != key) continue;
    if (at->second->worn()) {
      kept_.erase(at);
      break;
    }
    kept_.splice(kept_.begin(), kept_, at);
    return kept_.front().second;
  }
  return nullptr;
}

std::shared_ptr<Constraint> AnswerFormats::get(const std::string& form, const std::function<grammar::Grammar()>& make,
                                               const BeforeForm& before, bool has_header) {
  const std::string key = name_of_form(form, before);
  if (auto kept = find(key)) return kept;
  // Making it takes long, so no lock is held meanwhile.
  auto made = std::make_shared<grammar::TokenConstraint>(grammar::after_thought(make(), before.thinking, has_header),
                                                         tokens_, before.marks);
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, made);
  const auto bytes = [&] {
    size_t all = 0;
    for (const auto& [name, one] : kept_) all += name.size() + one->bytes();
    return all;
  };
  while (kept_.size() > kMost || (kept_.size() > 1 && bytes() > kMostBytes)) kept_.pop_back();
  return made;
}

namespace {

// A form that cannot be made is refused with the name of the field that asks for it.
std::shared_ptr<Constraint> get_for(const std::string& field, const Forms& formats, const std::string& key,
                                    const std::function<grammar::Grammar()>& make, bool has_header = false) {
  try {
    return formats.get(key, make, has_header);
  } catch (const Error& e) {
    throw RequestError(400, field + ": " + e.what(), field);
  }
}

std::shared_ptr<Constraint> of_schema(const Json& schema, const std::string& field, const Forms& formats) {
  return get_for(field, formats, "schema " + schema.dump(), [&] { return grammar::schema_grammar(schema); });
}

// This constraint allows no stop id before a number of tokens, and everything afterwards.
class NoStopBefore : public Constraint {
 public:
  NoStopBefore(int64_t tokens, int64_t vocabulary, const std::vector<int32_t>& stop_ids)
      : tokens_(tokens), allowed_(static_cast<size_t>((vocabulary + 63) / 64), ~uint64_t{0}) {
    for (const int32_t id : stop_ids)
      if (id >= 0 && id < vocabulary) allowed_[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << id % 64);
  }
  State start() override { return 0; }
  std::span<const uint64_t> allowed(State) override { return allowed_; }
  State next(State state, int32_t) override { return state + 1 < tokens_ ? state + 1 : kFree; }
  bool may_end(State) override { return false; }
  bool must_end(State) override { return false; }

 private:
  int64_t tokens_;
  std::vector<uint64_t> allowed_;
};

std::shared_ptr<Constraint> of_pattern(const std::string& pattern, const std::string& field, const Forms& formats) {
  return get_for(field, formats, "regex " + pattern, [&] { return grammar::regex_grammar(pattern); });
}

Json schema_in(const std::string& text, const std::string& field) {
  try {
    return parse_ordered_json(text, field);
  } catch (const Error& e) {
    throw RequestError(400, e.what(), field);
  }
}

// Reads {"json": a schema or its text}, {"regex"}, {"choice": some texts} or {"json_object": true}, as vLLM's clients
// send them.
std::shared_ptr<Constraint> of_structured_outputs(const Fields& fields, const Forms& formats) {
  const Json& all = *fields.find("structured_outputs");
  const Fields inside(all, "structured_outputs");
  const std::string known = "one of json, regex, choice and json_object";
  const Json* one = nullptr;
  std::string kind;
  for (const auto& item : all.items()) {
    if (item.value().is_null() || item.value() == Json(false)) continue;
    if (one != nullptr) fields.refuse("structured_outputs", known);
    one = &item.value(), kind = item.key();
  }
  const std::string field = "structured_outputs." + kind;
  if (kind == "json")
    return of_schema(one->is_string() ? schema_in(one->get<std::string>(), field) : *one, field, formats);
  if (kind == "regex") return of_pattern(*inside.text("regex"), field, formats);
  if (kind == "json_object" && inside.boolean("json_object", false))
    return formats.get("object", [] { return grammar::json_object_grammar(); });
  if (kind != "choice") fields.refuse("structured_outputs", known);
  std::vector<std::string> texts;
  for (const Json& text : *one) {
    if (!one->is_array() || !text.is_string() || text.get<std::string>().empty()) break;
    texts.push_back(text.get<std::string>());
  }
  if (texts.empty() || texts.size() != one->size()) inside.refuse("choice", "an array of texts, none of them empty");
  return get_for(field, formats, "choice " + one->dump(), [&] { return grammar::choice_grammar(texts); });
}

}  // namespace

std::shared_ptr<Constraint> read_format(const Fields& fields, const Forms& formats, const std::string& place) {
  const auto pattern = fields.text("regex");
  const Json* format = fields.find("response_format");
  const std::string type = format ? Fields(*format, "response_format").text("type").value_or("") : "text";
  const bool structured = fields.find("structured_outputs") != nullptr;
  if (pattern) {
    if (type != "text" || structured) fields.refuse("regex", "none beside a response_format or structured_outputs");
    return of_pattern(*pattern, "regex", formats);
  }
  if (structured) {
    if (type != "text") fields.refuse("structured_outputs", "none beside a response_format");
    return of_structured_outputs(fields, formats);
  }
  if (type == "text") return nullptr;
  if (type == "json_object") return formats.get("object", [] { return grammar::json_object_grammar(); });
  if (type != "json_schema") fields.refuse("response_format.type", "text, json_object or json_schema");
  const Fields inside(*format, "response_format");
  const Json* outer = inside.find("json_schema");
  const Json* schema = outer && outer->is_object() && outer->contains("schema") ? &(*outer)["schema"] : nullptr;
  if (schema == nullptr) inside.refuse("json_schema", "an object with a schema");
  return of_schema(*schema, place, formats);
}

std::shared_ptr<Constraint> read_min_tokens(const Fields& fields, const GenerationRequest& request,
                                            int64_t vocabulary) {
  const int64_t least = fields.integer("min_tokens", 0, INT32_MAX).value_or(0);
  if (least == 0) return nullptr;
  if (least > request.max_tokens) fields.refuse("min_tokens", "no more than max_tokens");
  if (request.constraint) fields.refuse("min_tokens", "none where an answer has a form, which says when it ends");
  if (!request.stop_strings.empty()) fields.refuse("min_tokens", "none beside strings to stop at");
  return std::make_shared<NoStopBefore>(least, vocabulary, request.stop_ids);
}

namespace {

// This is a tool that may be called, with a schema of its arguments.
struct Callable {
  std::string name;
  Json arguments;
};

std::shared_ptr<Constraint> of_json_call(const std::vector<Callable>& tools, const Forms& formats) {
  Json calls = Json::array();
  for (const Callable& tool : tools)
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", tool.name}}}, {"arguments", tool.arguments}}},
                     {"required", {"name", "arguments"}}});
  return of_schema({{"anyOf", calls}}, "tools", formats);
}

// The call is a message to one of the functions (text/channels.h).
std::shared_ptr<Constraint> of_message_call(const std::vector<Callable>& tools, const Forms& formats) {
  std::string key = "call";
  for (const Callable& tool : tools) key += fmt::format(" {} {}", tool.name, tool.arguments.dump());
  const auto make = [&] {
    grammar::Grammar all;
    const grammar::RuleId whole = all.add_rule();
    std::vector<grammar::Fragment> calls;
    for (const Callable& tool : tools) {
      const std::string header = fmt::format("{}commentary to=functions.{} {}json{}", kChannelName.text, tool.name,
                                             kChannelConstrain.text, kChannelMessage.text);
      const grammar::RuleId arguments = all.adopt(grammar::schema_grammar(tool.arguments));
      calls.push_back(all.sequence(all.literal(header), all.call(arguments)));
    }
    all.define(whole, all.choice(calls));
    return all;
  };
  return get_for("tools", formats, key, make, true);
}

}  // namespace

std::shared_ptr<Constraint> read_tool_choice(const Fields& fields, const Forms& formats) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto" || *choice == "none") return nullptr;
  const std::string expected =
      "auto, none, required, or {\"type\": \"function\", \"function\": {\"name\"}} of one of the tools";
  std::string name;
  if (*choice != "required") {
    if (!choice->is_object() || !choice->contains("function")) fields.refuse("tool_choice", expected);
    name = Fields((*choice)["function"], "tool_choice.function").text("name").value_or("");
    if (name.empty()) fields.refuse("tool_choice", expected);
  }
  const Json* tools = fields.find("tools");
  if (tools == nullptr || !tools->is_array()) fields.refuse("tool_choice", "auto or none where there are no tools");
  std::vector<Callable> calls;
  for (const Json& tool : *tools) {
    if (!tool.is_object() || !tool.contains("function")) fields.refuse("tools", "an array of functions");
    const Fields function(tool["function"], "tools.function");
    const auto own = function.text("name");
    if (!own || (!name.empty() && *own != name)) continue;
    const Json* parameters = function.find("parameters");
    Json arguments = parameters && !parameters->empty() ? *parameters : Json{{"type", "object"}};
    // References are resolved from the root of the parameters, which are a document of their own.
    if (arguments.is_object() && !arguments.contains("$id")) arguments["$id"] = fmt::format("tool:{}", calls.size());
    calls.push_back({*own, std::move(arguments)});
  }
  if (calls.empty()) fields.refuse("tool_choice", expected);
  return formats.before.thinking.channels ? of_message_call(calls, formats) : of_json_call(calls, formats);
}

}  // namespace fidelio::serve
