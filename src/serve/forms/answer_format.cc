#include "serve/forms/answer_format.h"

#include "grammar/json_schema.h"

namespace fidelio::serve {

std::shared_ptr<Constraint> AnswerFormats::get(const std::string& key, const std::function<grammar::Grammar()>& make) {
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
  auto made = std::make_shared<grammar::TokenConstraint>(make(), tokens_);
  kept_.emplace_front(key, made);
  if (kept_.size() > kMost) kept_.pop_back();
  return made;
}

namespace {

std::shared_ptr<Constraint> of_schema(const Json& schema, const std::string& field, AnswerFormats& formats) {
  try {
    return formats.get("schema " + schema.dump(), [&] { return grammar::schema_grammar(schema); });
  } catch (const Error& e) {
    throw RequestError(400, field + ": " + e.what(), field);
  }
}

}  // namespace

std::shared_ptr<Constraint> read_format(const Fields& fields, AnswerFormats& formats, const std::string& place) {
  const auto pattern = fields.text("regex");
  const Json* format = fields.find("response_format");
  const std::string type = format ? Fields(*format, "response_format").text("type").value_or("") : "text";
  if (pattern) {
    if (type != "text") fields.refuse("regex", "none beside a response_format");
    try {
      return formats.get("regex " + *pattern, [&] { return grammar::regex_grammar(*pattern); });
    } catch (const Error& e) {
      throw RequestError(400, std::string("regex: ") + e.what(), "regex");
    }
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

// References are from the root of the parameters, which stand at `root` of the schema of all calls.
void move_references(Json& schema, const std::string& root) {
  if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) {
    const std::string to = schema["$ref"].get<std::string>();
    if (to.starts_with('#')) schema["$ref"] = root + to.substr(1);
  }
  if (!schema.is_structured()) return;
  for (const auto& item : schema.items())
    if (item.key() != "const" && item.key() != "enum") move_references(item.value(), root);
}

std::shared_ptr<Constraint> read_tool_choice(const Fields& fields, AnswerFormats& formats) {
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
  Json calls = Json::array();
  for (const Json& tool : *tools) {
    if (!tool.is_object() || !tool.contains("function")) fields.refuse("tools", "an array of functions");
    const Fields function(tool["function"], "tools.function");
    const auto own = function.text("name");
    if (!own || (!name.empty() && *own != name)) continue;
    const Json* parameters = function.find("parameters");
    Json arguments = parameters && !parameters->empty() ? *parameters : Json{{"type", "object"}};
    move_references(arguments, fmt::format("#/anyOf/{}/properties/arguments", calls.size()));
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", *own}}}, {"arguments", arguments}}},
                     {"required", {"name", "arguments"}}});
  }
  if (calls.empty()) fields.refuse("tool_choice", expected);
  return of_schema({{"anyOf", calls}}, "tools", formats);
}

}  // namespace fidelio::serve
