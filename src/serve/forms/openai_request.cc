#include "serve/forms/openai_request.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "core/foreign/json.h"
#include "core/rng.h"
#include "serve/forms/chat_prompt.h"
#include "serve/forms/known_fields.h"
#include "serve/forms/messages.h"
#include "serve/forms/responses.h"
#include "serve/ollama/ollama_request.h"

namespace fidelio::serve {
namespace {

constexpr double kAnyNumber = 1e6;

uint64_t seed_of(const Fields& fields) {
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) return static_cast<uint64_t>(*seed);
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

void read_logit_bias(const Fields& fields, int64_t vocabulary, std::map<int32_t, float>& bias) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) fields.refuse("logit_bias", "an object of numbers by token id");
  if (value->size() > kMaxBiases) fields.refuse("logit_bias", fmt::format("at most {} tokens", kMaxBiases));
  for (const auto& [key, amount] : value->items()) {
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const bool twice = key.size() > 1 && key[0] == '0';  // Otherwise 7 and 07 would name one token twice.
    if (!digits || twice || std::stoll(key) >= vocabulary)
      fields.refuse("logit_bias", fmt::format("token ids from 0 to {}", vocabulary - 1));
    if (!amount.is_number() || !(std::abs(amount.get<double>()) <= 100))
      fields.refuse("logit_bias", "numbers from -100 to 100");
    bias[std::stoi(key)] = static_cast<float>(amount.get<double>());
  }
}

// Takes the request's own values first, then those that the authors of the checkpoint recommend, then OpenAI's
// defaults.
SamplingOptions read_sampling(const Fields& fields, const ServedModel& model) {
  const GenerationDefaults& d = model.defaults;
  SamplingOptions s;
  s.temperature = fields.number("temperature", 0, 100).value_or(d.do_sample == false ? 0 : d.temperature.value_or(1));
  s.top_p = fields.number("top_p", 0, 1).value_or(d.top_p.value_or(1));
  if (s.top_p == 0) s.top_p = 1e-9;  // This leaves only the best token.
  s.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(d.top_k.value_or(0)));
  s.min_p = fields.number("min_p", 0, 1).value_or(d.min_p.value_or(0));
  s.repetition_penalty =
      fields.number("repetition_penalty", 1e-3, kAnyNumber).value_or(d.repetition_penalty.value_or(1));
  s.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  s.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  read_logit_bias(fields, model.vocabulary, s.logit_bias);
  s.seed = seed_of(fields);
  return s;
}

std::vector<std::string> read_stops(const Fields& fields, const char* name) {
  const Json* value = fields.find(name);
  if (value == nullptr) return {};
  const std::string expected =
      fmt::format("a string, or at most {} strings, of 1 to {} bytes", kMaxStops, kMaxStopBytes);
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else {
    if (!value->is_array() || value->size() > kMaxStops) fields.refuse(name, expected);
    for (const Json& stop : *value) {
      if (!stop.is_string()) fields.refuse(name, expected);
      stops.push_back(stop.get<std::string>());
    }
  }
  for (const std::string& stop : stops)
    if (stop.empty() || stop.size() > kMaxStopBytes) fields.refuse(name, expected);
  return stops;
}

std::vector<int32_t> read_stop_ids(const Fields& fields, const ServedModel& model) {
  std::vector<int32_t> ids;
  if (!fields.boolean("ignore_eos", false)) ids = model.stop_ids;
  const Json* more = fields.find("stop_token_ids");
  if (more == nullptr) return ids;
  if (!more->is_array() || more->size() > kMaxBiases) fields.refuse("stop_token_ids", "an array of token ids");
  for (const Json& id : *more) {
    if (!id.is_number_integer()) fields.refuse("stop_token_ids", "an array of token ids");
    ids.push_back(static_cast<int32_t>(std::clamp<int64_t>(id.get<int64_t>(), -1, INT32_MAX)));
  }
  return ids;
}

std::vector<int32_t> ids_of(const Fields& fields, const Json& list, const ServedModel& model) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocabulary)
      fields.refuse("prompt", fmt::format("token ids from 0 to {}", model.vocabulary - 1));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Reads a text, ids, or a list of either.
std::vector<std::vector<int32_t>> read_prompts(const Fields& fields, const ServedModel& model) {
  const std::string expected = "a string, an array of token ids, or an array of either";
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) fields.refuse("prompt", expected);
  const bool special = fields.boolean("add_special_tokens", true);
  const auto encode = [&](const Json& text) { return encode_prompt(model, text.get<std::string>(), special); };
  if (prompt->is_string()) return {encode(*prompt)};
  if (!prompt->is_array() || prompt->empty()) fields.refuse("prompt", expected);
  if (prompt->front().is_number()) return {ids_of(fields, *prompt, model)};
  if (static_cast<int64_t>(prompt->size()) > kMaxChoices)
    fields.refuse("prompt", fmt::format("at most {} prompts", kMaxChoices));
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : *prompt) {
    if (!one.is_string() && !one.is_array()) fields.refuse("prompt", expected);
    prompts.push_back(one.is_string() ? encode(one) : ids_of(fields, one, model));
  }
  return prompts;
}

[[noreturn]] void refuse_length(const std::string& tokens, const ServedModel& model) {
  throw RequestError(400,
                     fmt::format("the prompt has {} tokens, this model's maximum context length is {} and one must be "
                                 "left for the answer",
                                 tokens, model.context),
                     "prompt", "context_length_exceeded");
}

void check_length(const std::vector<int32_t>& prompt, const ServedModel& model) {
  if (prompt.empty()) throw RequestError(400, "the prompt is empty: there is nothing to continue", "prompt");
  if (std::ssize(prompt) >= model.context) refuse_length(fmt::to_string(prompt.size()), model);
}

// 0 tokens are accepted only where the prompt is echoed. -1, which many clients send, sets no limit.
int64_t read_max_tokens(const Fields& fields, Route route) {
  const bool echo = route == Route::completions && fields.boolean("echo", false);
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    const auto most = fields.integer(name, -1, INT32_MAX);
    if (most == 0 && !echo) fields.refuse(name, "an integer from 1, or -1 for as many as there is room for");
    if (most) return *most < 0 ? INT32_MAX : *most;
  }
  return route == Route::completions ? 16 : INT32_MAX;
}

// Reads {"type": "allowed_tools"}: only the tools that it names are kept, and its mode becomes the choice.
void take_allowed_tools(Json& body) {
  const Fields fields(body);
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || !choice->is_object() || choice->value("type", Json()) != "allowed_tools") return;
  const Json* allowed = Fields(*choice, "tool_choice").find("allowed_tools");
  if (allowed == nullptr) fields.refuse("tool_choice.allowed_tools", "an object of mode and tools");
  const Fields inside(*allowed, "tool_choice.allowed_tools");
  const std::string mode = inside.text("mode").value_or("auto");
  if (mode != "auto" && mode != "required") inside.refuse("mode", "auto or required");
  const auto name_of = [&](const Json& tool) {
    const Json* function = Fields(tool, "tools").find("function");
    return function == nullptr ? std::string() : Fields(*function, "tools.function").text("name").value_or("");
  };
  std::set<std::string> names;
  const Json *list = inside.find("tools"), *tools = fields.find("tools");
  for (const Json& tool : list != nullptr && list->is_array() ? *list : Json::array()) names.insert(name_of(tool));
  Json kept = Json::array();
  for (const Json& tool : tools != nullptr && tools->is_array() ? *tools : Json::array())
    if (names.contains(name_of(tool))) kept.push_back(tool);
  if (kept.empty())
    inside.refuse("tools", "an array of {\"type\": \"function\", \"function\": {\"name\"}} of some tools");
  body["tool_choice"] = mode;
  body["tools"] = std::move(kept);
}

void read_logprobs(const Fields& fields, Call& call, GenerationRequest& common) {
  const bool chat = call.route != Route::completions;
  const auto alternatives = fields.integer(chat ? "top_logprobs" : "logprobs", 0, kMaxAlternatives);
  call.logprobs = chat ? fields.boolean("logprobs", false) : alternatives.has_value();
  if (chat && alternatives.value_or(0) > 0 && !call.logprobs)
    fields.refuse("top_logprobs", "none, or logprobs to be true");
  common.logprobs = call.logprobs || call.best_of > call.n;
  common.alternatives = call.logprobs ? alternatives.value_or(0) : 0;
  common.prompt_logprobs = call.echo && (call.logprobs || common.max_tokens == 0);
}

void read_choices(const Fields& fields, Call& call) {
  call.n = fields.integer("n", 1, kMaxChoices).value_or(1);
  call.best_of = fields.integer("best_of", 1, kMaxChoices).value_or(call.n);
  if (call.best_of < call.n) fields.refuse("best_of", "at least n");
  if (call.best_of > call.n && call.stream) fields.refuse("best_of", "n where the answer is streamed");
}

// vLLM's guided_* (its names until 2025) and llama.cpp's json_schema are older names of structured outputs.
void take_older_words(Json& body) {
  constexpr std::pair<const char*, const char*> kWords[] = {
      {"guided_json", "json"}, {"guided_regex", "regex"}, {"guided_choice", "choice"}, {"json_schema", "json"}};
  for (const auto& [word, now] : kWords) {
    const Fields fields(body);
    const Json* said = fields.find(word);
    if (said == nullptr || *said == Json(false) || *said == "") continue;
    if (fields.find("structured_outputs") != nullptr) fields.refuse(word, "none beside another form of the answer");
    Json form = {{now, *said}};
    body.erase(word);
    body["structured_outputs"] = std::move(form);
  }
}

}  // namespace

std::vector<int32_t> encode_prompt(const ServedModel& model, std::string_view text, bool add_special) {
  const int64_t most = std::max<int64_t>(0, model.context - 1);
  auto ids = model.tokenizer.encode_at_most(static_cast<size_t>(most), text, add_special);
  if (!ids) refuse_length(fmt::format("more than {}", most), model);
  return std::move(*ids);
}

void check_model(const std::string& asked, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), asked) != names.end()) return;
  throw RequestError(404, fmt::format("there is no model \"{}\"; /v1/models lists what is served", asked), "model",
                     "model_not_found");
}

namespace {

// A request can say in three ways whether to think: by OpenAI's reasoning_effort, which a template may read, by
// `thinking`, as the services of DeepSeek, GLM and Kimi do, and by enable_thinking, as Qwen's does.
void read_thinking_wish(Json& body) {
  const Fields fields(body);
  const std::string effort = fields.text("reasoning_effort").value_or("");
  const Json* thinking = fields.find("thinking");
  const std::string type = thinking != nullptr ? Fields(*thinking, "thinking").text("type").value_or("") : "";
  const Json* enabled = fields.find("enable_thinking");
  const bool wish = fields.boolean("enable_thinking", true);
  if (type == "disabled" || !wish)
    leave_thinking_out(body);
  else if (type == "enabled" || enabled != nullptr)
    tell_template(body, "enable_thinking", effort != "none");
  if (!effort.empty()) tell_effort(body, effort);
}

// Translates the body of every route except completions into a chat body.
void say_in_words_of_chat(Route route, Json& body, std::string_view text) {
  if (route == Route::messages) body = chat_body_of_messages(body, text);
  if (route == Route::responses) body = chat_body_of_responses(body);
  if (route == Route::chat) read_thinking_wish(body);
  if (route != Route::completions) take_allowed_tools(body);
}

Tools tools_in(const Fields& fields) {
  Tools tools;
  const Json* list = fields.find("tools");
  if (list == nullptr || !list->is_array()) return tools;
  for (const Json& tool : *list) {
    const Json* function = tool.is_object() ? Fields(tool).find("function") : nullptr;
    if (function == nullptr || !function->is_object()) continue;
    const Fields inside(*function);
    const Json *name = inside.find("name"), *parameters = inside.find("parameters");
    if (name != nullptr && name->is_string())
      tools.push_back({name->get<std::string>(), parameters != nullptr ? *parameters : Json::object()});
  }
  return tools;
}

// Reads the prompt and options of a chat. Returns what may stand before the form that an answer must take.
BeforeForm read_chat(const Fields& fields, const ServedModel& model, Call& call, GenerationRequest& common,
                     std::vector<std::vector<int32_t>>& prompts) {
  ChatPrompt chat = chat_prompt(fields, model, true);
  prompts.push_back(std::move(chat.ids));
  call.thinking = chat.thinking;
  call.tools = chat.tools;
  call.known_tools = tools_in(fields);
  call.one_call = !fields.boolean("parallel_tool_calls", true);
  common.thinking = chat.thinking;
  // Marks of thinking and of calls are special tokens in some families.
  BeforeForm before{chat.imposed, special_marks(model.tokenizer)};
  for (const auto& [id, mark] : before.marks) common.shown_ids.push_back(id);
  // A message of the answer ends where its form does, so the marks of other ends are none of it.
  if (const auto& channels = chat.thinking.channels)
    for (const auto& own : channels->marks)
      if (own.second != kChannelCall.text && own.second != kChannelReturn.text) before.marks.push_back(own);
  if (call.tools)
    for (const std::string_view mark : call_marks())
      if (const auto id = model.tokenizer.id_of(mark); id && model.tokenizer.is_special(*id))
        common.shown_ids.push_back(*id);
  return before;
}

// Imposes a form on the answer if one is asked for, in place of the model's free choice.
void impose_format(const Fields& fields, const Forms& forms, Call& call, GenerationRequest& common) {
  const bool response = call.route == Route::responses, ollama = is_ollama(call.route);
  if (!is_bare(call.route)) common.constraint = read_tool_choice(fields, forms);
  auto format = read_format(fields, forms,
                            response ? "text.format.schema"
                            : ollama ? "format"
                                     : "response_format.json_schema.schema");
  if (!format) return;
  if (common.constraint)
    fields.refuse(response ? "text.format"
                  : ollama ? "format"
                           : "response_format",
                  "text where tool_choice asks for a call");
  common.constraint = std::move(format);
  call.tools = false;
}

// Returns the text of the prompt, which the answer's text continues. A character that the prompt leaves unfinished
// belongs to the answer's text.
std::string text_before(const Tokenizer& tokenizer, std::span<const int32_t> prompt, bool special_in_text) {
  StreamingDetokenizer detokenizer(tokenizer, !special_in_text);
  std::string text;
  for (const int32_t id : prompt) text += detokenizer.push(id);
  return text + detokenizer.settle();
}

}  // namespace

Call read_call(Route route, std::string_view body, const ServedModel& model, const std::vector<std::string>& names) {
  Json object = parse_ordered_json(body, "the body");
  const Json asked = route == Route::responses ? object : Json();  // The answer repeats some of its fields.
  OllamaRequest ollama;
  if (is_ollama(route)) {
    ollama = read_ollama(route, object, body, model.chat.has_value());
    object = std::exchange(ollama.body, {});
    route = ollama.route;
  } else {
    take_older_words(object);
    refuse_what_is_not_done(Fields(object), bit_of(route));
    say_in_words_of_chat(route, object, body);
  }
  const Fields fields(object);
  if (const auto asked = fields.text("model")) check_model(*asked, names);
  Call call;
  call.route = route;
  call.model = is_ollama(route) ? fields.text("model").value_or(model.name) : model.name;
  if (ollama.empty) return call;
  call.stream = fields.boolean("stream", false);
  if (const Json* options = fields.find("stream_options"))
    call.include_usage = Fields(*options, "stream_options").boolean("include_usage", false);
  call.echo = route == Route::completions && fields.boolean("echo", false);
  read_choices(fields, call);
  GenerationRequest common;
  common.max_tokens = read_max_tokens(fields, route);
  common.stop_ids = read_stop_ids(fields, model);
  common.stop_strings = read_stops(fields, route == Route::messages ? "stop_sequences" : "stop");
  common.sampling = read_sampling(fields, model);
  read_logprobs(fields, call, common);
  common.special_in_text = !fields.boolean("skip_special_tokens", true);
  validate(common.sampling);
  if (route == Route::responses) call.repeated = repeated_in_response(asked, common.sampling);
  std::vector<std::vector<int32_t>> prompts;
  BeforeForm before;
  if (is_bare(route))
    prompts = read_prompts(fields, model);
  else
    before = read_chat(fields, model, call, common, prompts);
  impose_format(fields, {*model.formats, std::move(before)}, call, common);
  if (auto least = read_min_tokens(fields, common, model.vocabulary)) common.constraint = std::move(least);
  if (static_cast<int64_t>(prompts.size()) * call.best_of > kMaxChoices)
    fields.refuse("n", fmt::format("at most {} choices in all", kMaxChoices));
  for (auto& prompt : prompts) {
    check_length(prompt, model);
    if (call.echo) call.prompt_texts.push_back(text_before(model.tokenizer, prompt, common.special_in_text));
    call.prompts.push_back(common);
    call.prompts.back().prompt = std::move(prompt);
    bound_context(ollama.context, call.prompts.back());
  }
  return call;
}

GenerationRequest choice_of(const GenerationRequest& first, int64_t i) {
  GenerationRequest request = first;
  if (i > 0) request.sampling.seed = Rng(first.sampling.seed, static_cast<uint64_t>(i)).next();
  return request;
}

}  // namespace fidelio::serve
