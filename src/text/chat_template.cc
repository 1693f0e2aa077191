#include "text/chat_template.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "core/foreign/json_text.h"
#include "text/jinja/lexer.h"
#include "text/jinja/value.h"
#include "text/tokenizer/config.h"

namespace fidelio {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Value;

// transformers keeps the template named "default" in this file, and those with other names in a folder.
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kProcessorTemplate = "chat_template.json";
constexpr const char* kMoreTemplates = "additional_chat_templates";
constexpr const char* kTemplateEnding = ".jinja";
// The first of these files that has a template is used. The last belongs to a processor of images.
constexpr const char* kFilesWithTemplates[] = {"tokenizer_config.json", kProcessorTemplate};
// This is less than a template value may have, so templates can wrap the values that they get.
constexpr int kMaxJsonDepth = 90;

// Returns the object in a JSON file, or an empty one where there is no file.
Json read_object(const TextFiles& files, const std::string& name) {
  const std::string path = files.path(name);
  const auto text = files.read(name);
  if (!text) return Json::object();
  Json json = parse_ordered_json(*text, path);
  check(json.is_object(), "{}: expected a JSON object, found {}", path, json.type_name());
  return json;
}

Value to_value(const Json& json, int depth = 0) {
  check(depth <= kMaxJsonDepth, "chat messages: JSON nested more than {} deep", kMaxJsonDepth);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (const auto whole = json.get<uint64_t>(); whole > INT64_MAX)  // Schemas have the largest uint64 as a bound.
        return Value::number(static_cast<double>(whole), std::to_string(whole));
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::number(json.get<double>());
    case Json::value_t::string:
      return Value::text(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(to_value(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items()) entries.emplace_back(Value::text(key), to_value(value, depth + 1));
      return Value::dict(std::move(entries));
    }
    default:
      return Value::none();
  }
}

// Returns a JSON text as a value whose numbers keep their digits. `text` converts its strings and keys.
template <typename Text>
Value value_of_text(std::string_view json, const Text& text, int depth = 0) {
  check(depth <= kMaxJsonDepth, "arguments of a call: JSON nested more than {} deep", kMaxJsonDepth);
  if (json.starts_with('{')) {
    std::vector<std::pair<Value, Value>> entries;
    for (const JsonMember& member : json_members(json))
      entries.emplace_back(text(member.key), value_of_text(member.value, text, depth + 1));
    return Value::dict(std::move(entries));
  }
  if (json.starts_with('[')) {
    std::vector<Value> items;
    for (const std::string_view item : json_elements(json)) items.push_back(value_of_text(item, text, depth + 1));
    return Value::list(std::move(items));
  }
  if (json.starts_with('"')) return text(text_of_json(json));
  if (json == "null") return Value::none();
  if (json == "true" || json == "false") return Value::boolean(json == "true");
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(json.data(), json.data() + json.size(), whole);
  const bool fits = error == std::errc() && end == json.data() + json.size();
  if (fits && std::to_string(whole) == json) return Value::integer(whole);
  const std::string spelled(json);
  return Value::number(std::strtod(spelled.c_str(), nullptr), spelled);
}

// Returns an object whose members are converted by `each`.
template <typename Each>
Value dict_of(const Json& object, const Each& each) {
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, value] : object.items()) entries.emplace_back(Value::text(key), each(key, value));
  return Value::dict(std::move(entries));
}

// Returns messages in OpenAI's wire form as a value. `arguments` converts the texts of the arguments of calls.
template <typename Arguments>
Value wire_value(const Json& messages, const Arguments& arguments) {
  const auto in_function = [&](const std::string& key, const Json& value) {
    return key == "arguments" && value.is_string() ? arguments(value.template get<std::string>()) : to_value(value);
  };
  const auto in_call = [&](const std::string& key, const Json& value) {
    return key == "function" && value.is_object() ? dict_of(value, in_function) : to_value(value);
  };
  const auto in_message = [&](const std::string& key, const Json& value) {
    if (key != "tool_calls" || !value.is_array()) return to_value(value);
    std::vector<Value> calls;
    for (const Json& call : value) calls.push_back(call.is_object() ? dict_of(call, in_call) : to_value(call));
    return Value::list(std::move(calls));
  };
  std::vector<Value> all;
  for (const Json& message : messages)
    all.push_back(message.is_object() ? dict_of(message, in_message) : to_value(message));
  return Value::list(std::move(all));
}

// Returns true where the prompt shows an object of arguments as Python prints it, and no message contains that text
// itself.
bool shows_python(const std::string& prompt, const Json& messages, const std::string& python) {
  if (prompt.find(python) == std::string::npos) return false;
  return std::none_of(messages.begin(), messages.end(), [&](const Json& message) {
    return message.is_object() && message.contains("content") && message["content"].is_string() &&
           message["content"].get_ref<const std::string&>().find(python) != std::string::npos;
  });
}

// Returns the templates of a file by name. The file's chat_template is a text, a list of {name, template}, or an object
// of texts by name.
std::map<std::string, std::string> templates_of(const TextFiles& files, const char* file) {
  const Json object = read_object(files, file);
  const std::string path = files.path(file);
  const auto it = object.find("chat_template");
  if (it == object.end() || it->is_null()) return {};
  if (it->is_string()) return {{"default", it->get<std::string>()}};
  check(it->is_structured(), "{}: chat_template: expected a string or a list, found {}", path, it->type_name());
  std::map<std::string, std::string> templates;
  for (const auto& [key, entry] : it->items()) {
    const bool by_name = it->is_object() && entry.is_string();
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    check(by_name || named, "{}: chat_template: an entry is not {{name, template}}", path);
    templates[by_name ? key : entry["name"].get<std::string>()] =
        by_name ? entry.get<std::string>() : entry["template"].get<std::string>();
  }
  check(templates.contains("default"), "{}: chat_template: none of its {} templates is named \"default\"", path,
        it->size());
  return templates;
}

std::tm local_time() {
  std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::vector<std::pair<std::string, std::string>> special_tokens)
    : source_(source), template_(source), clock_(local_time) {
  for (auto& [name, text] : special_tokens) variables_.emplace_back(name, Value::text(std::move(text)));
}

std::vector<std::string> chat_template_files(const TextFiles& files) {
  std::vector<std::string> names = files.list(kMoreTemplates, kTemplateEnding);
  for (const char* file : {kProcessorTemplate, kTemplateFile})
    if (files.exists(file)) names.insert(names.begin(), file);
  return names;
}

std::map<std::string, std::string> chat_templates(const TextFiles& files) {
  std::map<std::string, std::string> templates;
  if (!files.exists(kTemplateFile))
    for (const char* file : kFilesWithTemplates)
      if (templates.empty()) templates = templates_of(files, file);
  for (const std::string& file : chat_template_files(files)) {
    if (file == kProcessorTemplate) continue;
    const std::string name = std::filesystem::path(file).stem();
    templates[file == kTemplateFile ? "default" : name] = files.require(file);
  }
  check(templates.empty() || templates.contains("default"),
        "{}: expected {} beside the templates for particular uses in {}, found none", files.name(), kTemplateFile,
        kMoreTemplates);
  return templates;
}

std::string chat_template_places(const TextFiles& files) {
  return std::string("tokenizer_config.json, ") + kTemplateFile + " or " + kProcessorTemplate +
         (files.exists("tekken.json")
              ? "; a tekken.json has none, as Mistral's own program writes conversations by itself: put "
                "the model's chat_template.jinja beside it"
              : "");
}

std::optional<ChatTemplate> ChatTemplate::load(const TextFiles& files) {
  const std::map<std::string, std::string> sources = chat_templates(files);
  if (sources.empty()) return std::nullopt;
  const std::map<std::string, std::string> tokens = special_tokens(files);
  try {
    ChatTemplate loaded(sources.at("default"), {tokens.begin(), tokens.end()});
    if (const auto tools = sources.find("tool_use"); tools != sources.end()) loaded.set_with_tools(tools->second);
    return loaded;
  } catch (const Error& error) {
    throw Error("{}: {}", files.name(), error.what());
  }
}

std::string ChatTemplate::literal_text() const {
  std::string text;
  for (const std::string& source : {source_, with_tools_source_})
    for (const jinja::Token& token : jinja::tokenize(source))
      if (token.kind == jinja::Token::Kind::text || token.kind == jinja::Token::Kind::string) text += token.text + '\0';
  return text;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  Json list = Json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  Json extra = {{"add_generation_prompt", options.add_generation_prompt}};
  if (options.enable_thinking) extra["enable_thinking"] = *options.enable_thinking;
  if (!options.tools_json.empty()) {
    extra["tools"] = parse_ordered_json(options.tools_json, "tools");
    check(extra["tools"].is_array(), "tools: expected a JSON array, found {}", extra["tools"].type_name());
  }
  return render_json(list, extra);
}

std::string ChatTemplate::render_json(const Json& messages, const Json& extra) const {
  check(messages.is_array(), "chat messages: expected a JSON array, found {}", messages.type_name());
  return render_values(to_value(messages), extra);
}

std::string ChatTemplate::render_wire(const Json& messages, const Json& extra, const TextMark& mark) const {
  check(messages.is_array(), "chat messages: expected a JSON array, found {}", messages.type_name());
  const auto marked = [&](const std::string& text) { return Value::text(mark ? mark(text) : text); };
  bool any = false;
  std::string python;  // It is the first non-empty object of arguments, printed as Python would.
  jinja::Meter meter(kMaxWork);
  const Value objects = wire_value(messages, [&](const std::string& text) {
    check(text.empty() || is_json(text), "arguments of a call: expected a JSON text");
    any = true;
    const std::string json = text.empty() ? "{}" : compact_json(text);
    Value value = value_of_text(json, marked);
    if (python.empty() && json.size() > 2 && json != "null") python = jinja::repr(value, meter);
    return value;
  });
  const auto with_texts = [&] { return render_values(wire_value(messages, marked), extra); };
  std::string prompt;
  try {
    prompt = render_values(objects, extra);
  } catch (const Error&) {
    if (!any) throw;
    try {
      return with_texts();
    } catch (const Error&) {  // The objects were not the reason, so the first error is thrown again.
    }
    throw;
  }
  if (python.empty() || !shows_python(prompt, messages, python)) return prompt;
  try {
    return with_texts();
  } catch (const Error&) {
    return prompt;
  }
}

std::string ChatTemplate::render_values(Value messages, const Json& extra) const {
  check(extra.is_object(), "chat template variables: expected a JSON object, found {}", extra.type_name());
  // transformers always passes these, so templates may test them with `is none` or plain truth.
  jinja::Variables variables = variables_;
  variables.emplace_back("messages", std::move(messages));
  for (const char* name : {"tools", "documents"})
    if (!extra.contains(name)) variables.emplace_back(name, Value::none());
  if (!extra.contains("add_generation_prompt")) variables.emplace_back("add_generation_prompt", Value::boolean(false));
  for (const auto& [name, value] : extra.items()) {
    std::erase_if(variables, [&given = name](const auto& known) { return known.first == given; });
    variables.emplace_back(name, to_value(value));
  }
  const bool tools = extra.contains("tools") && !extra["tools"].is_null();
  return (tools && with_tools_ ? *with_tools_ : template_).render(variables, clock_);
}

namespace {

// Adds the eos_token_id of a config, which is an id or a list of them.
void add_ends(const Json& config, const std::string& path, std::set<int32_t>& ids) {
  const auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return;
  for (const Json& id : it->is_array() ? *it : Json::array({*it})) {
    check(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX,
          "{}: eos_token_id: expected a token id or a list of them, found {}", path, foreign(id.dump()));
    ids.insert(id.get<int32_t>());
  }
}

}  // namespace

std::vector<int32_t> stop_token_ids(const TextFiles& files,
                                    const std::function<std::optional<int32_t>(std::string_view)>& id_of) {
  constexpr const char* kTurnEnds[] = {"<|im_end|>", "<|return|>", "<|call|>", "<turn|>", "<|tool_response>"};
  std::set<int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Json config = read_object(files, name);
    add_ends(config, files.path(name), ids);
    const auto text = config.find("text_config");
    if (text != config.end() && text->is_object()) add_ends(*text, files.path(name) + ": text_config", ids);
  }
  const std::map<std::string, std::string> tokens = special_tokens(files);
  if (const auto eos = tokens.find("eos_token"); eos != tokens.end())
    if (auto id = id_of(eos->second)) ids.insert(*id);
  for (const auto& [name, source] : chat_templates(files))
    for (const char* end : kTurnEnds)
      if (source.find(end) != std::string::npos)
        if (auto id = id_of(end)) ids.insert(*id);
  return {ids.begin(), ids.end()};
}

GenerationDefaults GenerationDefaults::load(const TextFiles& files) {
  const std::string path = files.path("generation_config.json");
  Json config = read_object(files, "generation_config.json");
  GenerationDefaults out;
  auto read = [&](const char* name, auto& field, bool good_type) {
    auto it = config.find(name);
    if (it == config.end() || it->is_null()) return;
    check(good_type, "{}: {}: unexpected {}", path, name, foreign(it->dump()));
    field = it->get<typename std::decay_t<decltype(field)>::value_type>();
  };
  auto number = [&](const char* name, auto& field) {
    read(name, field, config.contains(name) && config[name].is_number());
  };
  read("do_sample", out.do_sample, config.contains("do_sample") && config["do_sample"].is_boolean());
  read("top_k", out.top_k, config.contains("top_k") && config["top_k"].is_number_integer());
  number("temperature", out.temperature);
  number("top_p", out.top_p);
  number("min_p", out.min_p);
  number("repetition_penalty", out.repetition_penalty);
  return out;
}

}  // namespace fidelio
