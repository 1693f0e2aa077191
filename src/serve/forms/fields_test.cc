// These tests check that every known field is either supported or refused by name. They also check how an answer may
// begin and what it continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "serve/forms/known_fields.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

const ServedModel& served_quill() {
  static const Loaded loaded = load();
  return *loaded.model;
}

// Reads a text with the call's constraint, by tokens of one byte each.
bool reads_bytes(const Call& call, const std::string& text) {
  Constraint& constraint = *call.prompts[0].constraint;
  Constraint::State state = constraint.start();
  for (const char c : text) {
    int32_t id = 0;
    while (served_quill().tokens->bytes(id) != std::string(1, c)) ++id;
    if ((state = constraint.next(state, id)) == Constraint::kForbidden) return false;
  }
  return constraint.may_end(state);
}

// The tests below are about fields. wish_in returns all that a call asks for as a text; calls with different texts are
// answered differently.
std::string wish_in(const Call& c) {
  std::string all = fmt::format("{} {} {} {} {} {} {} {} {}|", c.n, c.best_of, c.stream, c.echo, c.logprobs, c.tools,
                                c.one_call, c.include_usage, c.repeated.dump());
  for (const GenerationRequest& r : c.prompts) {
    const SamplingOptions& s = r.sampling;
    all += fmt::format("{} {} {} {} {}|", fmt::join(r.prompt, ","), r.max_tokens, fmt::join(r.stop_ids, ","),
                       fmt::join(r.stop_strings, ","), r.special_in_text);
    all += fmt::format("{} {} {} {} {} {} {} {}|", s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty,
                       s.presence_penalty, s.frequency_penalty, s.seed);
    for (const auto& [id, bias] : s.logit_bias) all += fmt::format("{}:{} ", id, bias);
    all += fmt::format("{} {} {} {}|", r.logprobs, r.alternatives, r.prompt_logprobs, r.constraint != nullptr);
  }
  return all;
}

// Returns, for a field that some route supports, a value that differs from the default behaviour.
Json sample_of(const std::string& name, uint8_t route) {
  static const Json schema = {{"type", "json_schema"}, {"schema", {{"type", "object"}}}};
  static const Json samples = {{"temperature", 0.5},
                               {"top_p", 0.5},
                               {"top_k", 3},
                               {"min_p", 0.2},
                               {"seed", 5},
                               {"repetition_penalty", 1.5},
                               {"presence_penalty", 0.5},
                               {"frequency_penalty", 0.5},
                               {"logit_bias", {{"3", 1}}},
                               {"stop_token_ids", {5}},
                               {"ignore_eos", true},
                               {"skip_special_tokens", false},
                               {"min_tokens", 2},
                               {"regex", "a+"},
                               {"structured_outputs", {{"regex", "a+"}}},
                               {"stop", "x"},
                               {"stop_sequences", {"x"}},
                               {"max_tokens", 7},
                               {"max_completion_tokens", 7},
                               {"max_output_tokens", 7},
                               {"n", 2},
                               {"best_of", 2},
                               {"echo", true},
                               {"top_logprobs", 2},
                               {"add_special_tokens", false},
                               {"response_format", {{"type", "json_object"}}},
                               {"text", {{"format", {{"type", "json_object"}}}}},
                               {"output_config", {{"format", schema}}},
                               {"output_format", schema},
                               {"prompt", "b"},
                               {"messages", {{{"role", "user"}, {"content", "b"}}}},
                               {"input", "b"},
                               {"system", "b"},
                               {"instructions", "b"},
                               {"tool_choice", "required"},
                               {"parallel_tool_calls", false},
                               {"chat_template_kwargs", {{"mark", "m"}}},
                               {"add_generation_prompt", false},
                               {"continue_final_message", true},
                               {"reasoning_effort", "none"},
                               {"reasoning", {{"effort", "none"}}},
                               {"thinking", {{"type", "disabled"}}},
                               {"enable_thinking", false},
                               {"include", {"message.output_text.logprobs"}},
                               {"guided_json", {{"type", "object"}}},
                               {"guided_regex", "a+"},
                               {"guided_choice", {"a", "b"}},
                               {"json_schema", {{"type", "object"}}},
                               {"sanitize_control_tokens", true},
                               {"format", "json"},
                               {"options", {{"temperature", 0.5}}},
                               {"think", false},
                               {"num_predict", 7}};
  if (name == "tools" && route == kOfMessages) return Json::parse(R"([{"name": "f", "input_schema": {}}])");
  if (name == "tools" && route == kOfResponses) return Json::parse(R"([{"type": "function", "name": "f"}])");
  if (name == "tools") return Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  if (name == "logprobs") return route == kOfCompletions ? Json(2) : Json(true);
  if (samples.contains(name)) return samples[name];
  for (const KnownField& field : known_fields())
    if (field.name == name && std::string(field.neutral) == "true") return false;
  return "something";
}

TEST(Requests, HaveNoFieldThatIsDroppedSilently) {
  ServedModel other = served_quill();
  other.chat = ChatTemplate(
      "{{ mark }}{% if tools %}T{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if enable_thinking is false %}at once{% endif %}{% if add_generation_prompt %}:{% endif %}");
  struct Body {
    Route route;
    uint8_t bit;
    std::string text;
    bool inside = false;  // If true, a field stands in `options`.
  };
  const std::string messages = R"("messages": [{"role": "user", "content": "a</s>"}])";
  const std::vector<Body> bodies = {
      {Route::completions, kOfCompletions, R"({"prompt": "a", "seed": 1})"},
      {Route::chat, kOfChat, "{" + messages + R"(, "seed": 1})"},
      {Route::responses, kOfResponses, R"({"input": "a</s>", "seed": 1})"},
      {Route::messages, kOfMessages, "{" + messages + R"(, "max_tokens": 9, "seed": 1})"},
      {Route::ollama_chat, kOfOllamaChat, "{" + messages + R"(, "options": {"seed": 1}})"},
      {Route::ollama_generate, kOfOllamaGenerate, R"({"prompt": "a</s>", "options": {"seed": 1}})"},
      {Route::ollama_chat, kOfOllamaOptions, "{" + messages + R"(, "options": {"seed": 1}})", true}};
  int64_t done = 0, refused = 0;
  for (const auto& [route, bit, text, inside] : bodies) {
    const std::string plain = wish_in(read_call(route, text, other, {"quill"}));
    const auto body_with = [&, inside = inside, &text = text](const char* name, const Json& value) {
      Json body = Json::parse(text);
      (inside ? body["options"] : body)[name] = value;
      if (!inside && body.contains("options") && body["options"].is_object()) body["options"]["seed"] = 1;
      return body.dump();
    };
    for (const KnownField& field : known_fields()) {
      // Ollama's penalty has rules of its own (ollama/ollama_test.cc).
      if (inside && std::string_view(field.name).starts_with("repeat_")) continue;
      const Json sample = sample_of(field.name, bit);
      const bool does = (field.routes & bit) != 0;
      if (!does && sample == Json(false) && std::string(field.neutral) != "true") continue;
      const std::string place = fmt::format("{} {}", bit, field.name);
      try {
        const std::string wish = wish_in(read_call(route, body_with(field.name, sample), other, {"quill"}));
        EXPECT_TRUE(does) << place;
        EXPECT_NE(wish, plain) << place;
        ++done;
      } catch (const RequestError& e) {
        EXPECT_THAT(e.what(), HasSubstr(field.name)) << place;
        ++refused;
      }
      // A route that does not support the field still accepts a value that has no effect.
      if (does) continue;
      const Json neutral = *field.neutral == '\0' ? Json() : Json::parse(field.neutral);
      EXPECT_NO_THROW(read_call(route, body_with(field.name, neutral), other, {"quill"})) << place;
    }
  }
  EXPECT_GT(done, 80);
  EXPECT_GT(refused, 300);
}

// The tests below are about thinking.
TEST(Requests, ImposeFormsBehindTheThought) {
  ServedModel other = served_quill();
  const std::string body =
      R"({"messages": [{"role": "user", "content": "u"}], "response_format": {"type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false}}}})";
  const auto takes = [&](const std::string& source, const std::string& text) {
    other.chat = ChatTemplate("{{ messages[0].content }}" + source);
    return reads_bytes(read_call(Route::chat, body, other, {"quill"}), text);
  };
  const std::string nested = R"({"next": {"next": {}}})", wrong = R"({"next": <think></think>{}})";
  // The model's template mentions thoughts, has opened one, or has closed it.
  const char *knows = "{# <think> #}", *opens = "<think>\n", *closes = "<think>\n\n</think>\n\n";
  for (const char* text : {"", "<think>I {wonder} </thinks </think>", "<think>\n</think>\n\n"}) {
    EXPECT_TRUE(takes(knows, text + nested)) << text;
    EXPECT_FALSE(takes(knows, text + wrong)) << text;
  }
  EXPECT_FALSE(takes(knows, "\n<think></think>" + nested));
  EXPECT_TRUE(takes(opens, "I {wonder}</think> " + nested));
  EXPECT_FALSE(takes(opens, "I wonder</think>" + wrong));
  EXPECT_FALSE(takes(opens, "I wonder </think> so"));
  EXPECT_TRUE(takes(closes, nested));
  EXPECT_FALSE(takes(closes, "<think></think>" + nested));
  EXPECT_FALSE(takes("", "[THINK][/THINK]" + nested));  // The model is not known to think with these marks.
}

TEST(Requests, ThinkAsTheTemplatesOfQwenSay) {
  const Json fixture = Json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/chat/families.json"));
  ServedModel other = served_quill();
  const auto read = [&](const std::string& fields) {
    return read_call(Route::chat, R"({"messages": [{"role": "user", "content": "u"}])" + fields + "}", other,
                     {"quill"});
  };
  for (const char* family : {"qwen3.5", "qwen3.6", "qwen3.8"}) {
    other.chat = ChatTemplate(fixture["templates"][family].get<std::string>());
    for (const char* thinks : {"", R"(, "enable_thinking": true)", R"(, "thinking": {"type": "enabled"})"}) {
      ASSERT_TRUE(read(thinks).thinking.opened) << family << thinks;
      EXPECT_EQ(read(thinks).thinking.opened->end, "</think>");
    }
    for (const char* answers :
         {R"(, "enable_thinking": false)", R"(, "chat_template_kwargs": {"enable_thinking": false})",
          R"(, "reasoning_effort": "none")", R"(, "thinking": {"type": "disabled"})"}) {
      EXPECT_FALSE(read(answers).thinking.opened) << family << answers;
    }
  }
}

// Gemma 4 thinks only where its template is told so, which an effort or another wish to think does.
TEST(Requests, AskGemma4ToThink) {
  const Json fixture = Json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/chat/families.json"));
  ServedModel other = served_quill();
  other.chat = ChatTemplate(fixture["templates"]["gemma4"].get<std::string>());
  const auto thinks = [&](Route route, const std::string& fields) {
    const std::string most = is_ollama(route) ? "" : R"("max_tokens": 9, )";
    const std::string body = "{" + most + R"("messages": [{"role": "user", "content": "u"}])" + fields + "}";
    return other.tokenizer.decode(read_call(route, body, other, {"quill"}).prompts[0].prompt).find("<|think|>") !=
           std::string::npos;
  };
  for (const char* fields : {R"(, "enable_thinking": true)", R"(, "thinking": {"type": "enabled"})",
                             R"(, "reasoning_effort": "low")", R"(, "reasoning_effort": "high")"})
    EXPECT_TRUE(thinks(Route::chat, fields)) << fields;
  for (const char* fields :
       {"", R"(, "enable_thinking": false)", R"(, "reasoning_effort": "none")", R"(, "reasoning_effort": "minimal")",
        R"(, "reasoning_effort": "high", "enable_thinking": false)"})
    EXPECT_FALSE(thinks(Route::chat, fields)) << fields;
  EXPECT_TRUE(thinks(Route::messages, R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"));
  EXPECT_FALSE(thinks(Route::messages, R"(, "thinking": {"type": "disabled"})"));
  EXPECT_TRUE(thinks(Route::ollama_chat, R"(, "think": true)"));
}

TEST(Requests, ContinueWhatTheyBegan) {
  ServedModel other = served_quill();
  other.chat = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}");
  const auto read = [&](const std::string& last, const std::string& fields) {
    return read_call(Route::chat,
                     R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": ")" + last +
                         "\"" + fields + "}",
                     other, {"quill"});
  };
  for (const char* fields :
       {R"(}], "continue_final_message": true)", R"(, "prefix": true}])", R"(, "partial": true}])"}) {
    EXPECT_EQ(other.tokenizer.decode(read("so", fields).prompts[0].prompt), "[u][so");
    EXPECT_FALSE(read("so", fields).thinking.possible());
    EXPECT_EQ(read("<think>so", fields).thinking.opened->end, "</think>");
    EXPECT_FALSE(read("<think>so</think>It", fields).thinking.possible());
  }
}

TEST(Requests, OfMessagesKeepTheDigitsOfWhatWasCalled) {
  ServedModel other = served_quill();
  other.chat = ChatTemplate(
      "{% for m in messages %}{{ m.reasoning_content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | "
      "tojson "
      "}}{% endfor %}{% endfor %}");
  const std::string input = R"({"a": 1.0, "b": 12345678901234567890123, "c": {"d": 1e-7}})";
  const auto prompt = [&](Route route, const std::string& body) {
    return other.tokenizer.decode(read_call(route, body, other, {"quill"}).prompts[0].prompt);
  };
  EXPECT_EQ(prompt(Route::messages,
                   R"( {"max_tokens": 9, "messages": [{"role": "user", "content": "u"}, {"role": "assistant",
    "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "tool_use", "id": "1", "name": "f", "input": )" +
                       input + R"(}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]})"),
            "Hm" + input);
  std::string escaped = Json(input).dump();
  EXPECT_EQ(
      prompt(Route::responses, R"({"input": [{"role": "user", "content": "u"}, {"type": "reasoning", "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm"}]}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": )" +
                                   escaped + R"(}, {"type": "function_call_output", "call_id": "1", "output": "3"}]})"),
      "Hm" + input);
}

// The levels of Qwen3.8's templates are xhigh, medium and low, and others are refused there.
TEST(Requests, NameAnEffortAsTheTemplateDoes) {
  const auto told = [](const std::string& levels, Route route, const std::string& fields) {
    ServedModel other = served_quill();
    other.chat = ChatTemplate("{% if reasoning_effort not in (" + levels +
                              ") %}{{ raise_exception('no ' ~ reasoning_effort) }}{% endif %}{{ reasoning_effort }}");
    const std::string body = R"({"messages": [{"role": "user", "content": "u"}], )" + fields + "}";
    try {
      return other.tokenizer.decode(read_call(route, body, other, {"quill"}).prompts[0].prompt);
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const std::string three = "'xhigh', 'medium', 'low'";
  const auto chat = [&](const std::string& levels, const std::string& effort) {
    return told(levels, Route::chat, "\"reasoning_effort\": \"" + effort + "\"");
  };
  for (const char* level : {"xhigh", "high", "max"}) EXPECT_EQ(chat(three, level), "xhigh");
  for (const char* level : {"low", "minimal"}) EXPECT_EQ(chat(three, level), "low");
  EXPECT_EQ(chat(three, "medium"), "medium");
  EXPECT_EQ(told(three, Route::ollama_chat, R"("think": "high")"), "xhigh");
  EXPECT_EQ(told(three, Route::chat, R"("chat_template_kwargs": {"reasoning_effort": "high"})"), "xhigh");
  EXPECT_THAT(chat(three, "enormous"), HasSubstr("no enormous"));
  EXPECT_EQ(chat("\"high\", \"xhigh\"", "high"), "high");  // This template has both.
  // gpt-oss always thinks, and its efforts are low, medium and high.
  const auto of_gpt_oss = [](Route route, const std::string& fields) {
    ServedModel other = served_quill();
    other.chat = ChatTemplate("{#<|start|><|channel|><|message|>#}{{ reasoning_effort or 'medium' }}");
    const std::string name =
        route == Route::responses ? R"({"input": "u", )" : R"({"messages": [{"role": "user", "content": "u"}], )";
    return other.tokenizer.decode(read_call(route, name + fields + "}", other, {"quill"}).prompts[0].prompt);
  };
  for (const char* level : {"none", "minimal", "low"})
    EXPECT_EQ(of_gpt_oss(Route::chat, fmt::format(R"("reasoning_effort": "{}")", level)), "low");
  for (const char* level : {"high", "xhigh", "max"})
    EXPECT_EQ(of_gpt_oss(Route::responses, fmt::format(R"("reasoning": {{"effort": "{}"}})", level)), "high");
  EXPECT_EQ(of_gpt_oss(Route::chat, R"("enable_thinking": false)"), "low");
  EXPECT_EQ(of_gpt_oss(Route::messages, R"("max_tokens": 9, "thinking": {"type": "disabled"})"), "low");
  EXPECT_EQ(of_gpt_oss(Route::chat, R"("seed": 1)"), "medium");
  EXPECT_EQ(chat("'high', 'low'", "high"), "high");
  EXPECT_THAT(chat("'medium', 'low'", "high"), HasSubstr("no high"));
}

}  // namespace
}  // namespace fidelio::serve
