// These tests vary request bodies. Whatever value a field has, the result is a call or a refusal, never a failure of
// the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

const ServedModel& model() {
  static const Loaded loaded = load();
  return *loaded.model;
}

struct Example {
  Route route;
  const char* body;
};
// Together these bodies have every field that is read, each with a valid value.
const std::vector<Example> kExamples = {
    {Route::completions,
     R"({"model": "quill", "prompt": ["a", [1, 2]], "echo": true, "logprobs": 2, "n": 1, "best_of": 2,
      "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1,
      "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"3": 1}, "seed": 1, "stop": ["x"],
      "stop_token_ids": [5], "ignore_eos": true, "skip_special_tokens": true, "add_special_tokens": true, "suffix": "",
      "stream": false, "stream_options": {"include_usage": true}, "regex": "a+"})"},
    {Route::chat, R"({"messages": [{"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "3"}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false, "logprobs": true, "top_logprobs": 2,
      "max_completion_tokens": 4, "chat_template_kwargs": {"a": 1}, "sanitize_control_tokens": true, "add_generation_prompt": true,
      "continue_final_message": false})"},
    {Route::chat, R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema",
      "json_schema": {"name": "n", "strict": true, "schema": {"$defs": {"d": {"type": "string", "pattern": "a"}, "e": {"type": "string", "maxLength": 5}},
      "type": "object", "properties": {"a": {"$ref": "#/$defs/d", "title": "t"}, "b": {"enum": [1, "x"]},
        "c": {"anyOf": [{"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, {"const": null}]},
        "d": {"type": "array", "items": {"type": "number"}, "prefixItems": [true], "minItems": 1, "maxItems": 3},
        "e": {"allOf": [{"type": "object", "properties": {"x": {}}, "additionalProperties": false}, {"required": ["x"]}]},
        "f": {"oneOf": [{"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
                        {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]}]},
        "g": {"type": "string", "format": "date"}, "h": {"type": "object", "minProperties": 1, "maxProperties": 2},
        "j": {"$ref": "#/$defs/e", "minLength": 1}, "i": {"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 2, "maximum": 3}]}},
      "required": ["a"], "additionalProperties": false}}}})"},
    {Route::messages,
     R"({"model": "quill", "max_tokens": 3, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
      "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "3"}]}]}],
      "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
      "thinking": {"type": "disabled"}, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}})"},
    {Route::chat,
     R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": -1, "functions": [], "modalities": ["text"],
      "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}})"},
    {Route::responses, R"({"model": "quill", "instructions": "s", "input": [{"role": "user", "content": "a"},
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}], "status": "completed"},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "d", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}", "status": "completed"},
      {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "3"}]}],
      "tools": [{"type": "function", "name": "f", "description": "d", "strict": true, "parameters": {"type": "object"}}],
      "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false, "max_output_tokens": 4,
      "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.1,
      "frequency_penalty": 0.1, "logit_bias": {"3": 1}, "seed": 1, "stop": ["x"], "stop_token_ids": [5],
      "ignore_eos": true, "skip_special_tokens": true, "chat_template_kwargs": {"a": 1}, "top_logprobs": 2,
      "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "reasoning": {"effort": "none", "summary": "auto"},
      "metadata": {"a": "b"}, "user": "u", "truncation": "auto", "store": true, "background": false, "conversation": null,
      "previous_response_id": null, "prompt": null, "stream": false, "stream_options": {"include_obfuscation": false}})"},
    {Route::responses, R"({"input": "a", "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n",
      "strict": true, "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}})"},
    {Route::responses, R"({"input": "a", "regex": "a+", "text": {"format": {"type": "text"}}, "tool_choice": "none",
      "tools": [{"type": "function", "name": "f"}]})"},
    {Route::responses, R"({"input": "a", "tools": [{"type": "function", "name": "f"}],
      "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}})"},
};

// Collects every place in a body, including the deepest.
void add_places(const Json& value, const Json::json_pointer& at, std::vector<Json::json_pointer>& all) {
  if (!at.empty()) all.push_back(at);
  if (value.is_object())
    for (const auto& [key, one] : value.items()) add_places(one, at / key, all);
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i) add_places(value[i], at / i, all);
}

TEST(Requests, WithAnythingAnywhereAreTakenOrRefused) {
  const std::vector<Json> anything = {nullptr,
                                      true,
                                      false,
                                      0,
                                      3,
                                      -1,
                                      2.5,
                                      1e300,
                                      UINT64_MAX,
                                      "",
                                      "x",
                                      "#",
                                      Json::array(),
                                      Json::object(),
                                      Json::array({Json::array()}),
                                      Json::array({"x"}),
                                      Json::array({nullptr}),
                                      Json{{"type", 1}},
                                      Json{{"type", "object"}, {"properties", 3}, {"required", 4}},
                                      Json{{"$ref", 1}},
                                      Json{{"$ref", "#"}}};
  int64_t taken = 0, refused = 0;
  for (const auto& [route, text] : kExamples) {
    const Json example = Json::parse(text);
    ASSERT_NO_THROW(read_call(route, example.dump(), model(), {"quill"})) << text;
    std::vector<Json::json_pointer> places;
    add_places(example, Json::json_pointer(), places);
    for (const Json::json_pointer& place : places)
      for (const Json& other : anything) {
        Json body = example;
        body[place] = other;
        try {
          read_call(route, body.dump(), model(), {"quill"});
          ++taken;
        } catch (const Error& e) {
          ++refused;
          EXPECT_STRNE(e.what(), "");
        } catch (const std::exception& e) {  // The server would answer it with 500.
          ADD_FAILURE() << place.to_string() << " = " << other << ": " << e.what();
        }
      }
  }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 500);
}

Call chat(const std::string& fields) { return read_call(Route::chat, "{" + fields + "}", model(), {"quill"}); }
std::string prompt_of(const std::string& messages) {
  return model().tokenizer.decode(chat("\"messages\": " + messages).prompts[0].prompt);
}

TEST(Requests, ControlTokensOfMessagesAreTextWhereThatIsAsked) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a</s>b"}])";
  const auto ends = [](const Call& call) {
    return std::count(call.prompts[0].prompt.begin(), call.prompts[0].prompt.end(), 2);
  };
  const std::string asked = messages + R"(, "sanitize_control_tokens": true)";
  EXPECT_EQ(ends(chat(messages)), 1);
  EXPECT_EQ(ends(chat(asked)), 0);
  EXPECT_THAT(model().tokenizer.decode(chat(asked).prompts[0].prompt, false), HasSubstr("user: a</s>b\n"));
  ServedModel strict = model();
  strict.sanitize_control_tokens = true;
  const auto read = [&](Route route, const std::string& body) {
    return read_call(route, "{" + body + "}", strict, {"quill"});
  };
  EXPECT_EQ(ends(read(Route::chat, messages)), 0);
  EXPECT_EQ(ends(read(Route::messages, messages + R"(, "max_tokens": 1)")), 0);
  EXPECT_EQ(ends(read(Route::responses, R"("input": "a</s>b")")), 0);
  EXPECT_THROW(read(Route::chat, messages + R"(, "sanitize_control_tokens": false)"), RequestError);
  EXPECT_EQ(ends(read_call(Route::messages, "{" + asked + R"(, "max_tokens": 1})", model(), {"quill"})), 0);
  EXPECT_EQ(
      ends(read_call(Route::responses, R"({"input": "a</s>b", "sanitize_control_tokens": true})", model(), {"quill"})),
      0);
}

TEST(Requests, SayTheSameInManyWays) {
  const std::string plain = prompt_of(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])");
  EXPECT_THAT(plain, HasSubstr("system: s\nuser: u\n"));
  EXPECT_EQ(prompt_of(R"([{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}])"), plain);
  // A client sends an answer that called a tool back in this form.
  EXPECT_THAT(prompt_of(R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": null, "refusal": null,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]}])"),
              HasSubstr("user: u\nassistant: \n"));
  const std::string messages = R"("messages": [{"role": "user", "content": "u"}])";
  const Call nulls = chat(messages + R"(, "stop": null, "tools": null, "tool_choice": null, "max_tokens": null,
    "response_format": null, "logit_bias": null, "seed": null, "n": null, "stream": null, "stream_options": null,
    "logprobs": null, "top_logprobs": null, "temperature": null, "top_p": null, "user": null)");
  EXPECT_EQ(nulls.n, 1);
  EXPECT_EQ(nulls.prompts[0].constraint, nullptr);
  EXPECT_TRUE(nulls.prompts[0].stop_strings.empty());
  EXPECT_FALSE(chat(messages + R"(, "top_logprobs": 0)").logprobs);
  EXPECT_EQ(chat(messages + R"(, "max_tokens": 5, "max_completion_tokens": 7)").prompts[0].max_tokens, 7);
  EXPECT_EQ(chat(messages + R"(, "max_tokens": -1)").prompts[0].max_tokens, chat(messages).prompts[0].max_tokens);
  EXPECT_EQ(chat(messages + R"(, "max_completion_tokens": -1)").prompts[0].max_tokens, INT32_MAX);
  for (const char* wrong : {"0", "-2"}) EXPECT_THROW(chat(messages + R"(, "max_tokens": )" + wrong), RequestError);
  chat(messages + R"(, "functions": [], "modalities": ["text"], "parallel_tool_calls": false, "store": false)");
  for (const char* undone : {R"("functions": [{"name": "f"}])", R"("modalities": ["text", "audio"])"})
    EXPECT_THROW(chat(messages + ", " + undone), RequestError);
}

// Reads a text with the call's constraint, by tokens of one byte each.
bool reads(const Call& call, const std::string& text) {
  Constraint& constraint = *call.prompts[0].constraint;
  Constraint::State state = constraint.start();
  for (const char c : text) {
    int32_t id = 0;
    while (model().tokens->bytes(id) != std::string(1, c)) ++id;
    if ((state = constraint.next(state, id)) == Constraint::kForbidden) return false;
  }
  return constraint.may_end(state);
}

TEST(Requests, TakeOfTheToolsThoseThatAreAllowed) {
  const std::string body = R"("messages": [{"role": "user", "content": "u"}], "tools": [
    {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}},
    {"type": "function", "function": {"name": "h"}}], "tool_choice": {"type": "allowed_tools", "allowed_tools": )";
  const auto named = [](const char* name) {
    return R"({"type": "function", "function": {"name": ")" + std::string(name) + "\"}}";
  };
  const Call call = chat(body + R"({"mode": "required", "tools": [)" + named("g") + "," + named("h") + "]}}");
  EXPECT_TRUE(reads(call, R"({"name": "g", "arguments": {}})"));
  EXPECT_TRUE(reads(call, R"({"name": "h", "arguments": {}})"));
  EXPECT_FALSE(reads(call, R"({"name": "f", "arguments": {}})"));
  EXPECT_EQ(chat(body + R"({"mode": "auto", "tools": [)" + named("g") + "]}}").prompts[0].constraint, nullptr);
  for (const char* wrong : {"null", "{}", R"({"mode": "auto", "tools": [{"function": {"name": "x"}}]})", "3"})
    EXPECT_THROW(chat(body + wrong + "}"), RequestError) << wrong;
}

TEST(Requests, OfMessagesHaveAFormAndASystemsMessageAnywhere) {
  const auto read = [](const std::string& fields) {
    return read_call(Route::messages,
                     R"({"max_tokens": 9, "messages": [{"role": "user", "content": "u"},
      {"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "v"}])" +
                         fields + "}",
                     model(), {"quill"});
  };
  EXPECT_THAT(model().tokenizer.decode(read("").prompts[0].prompt), HasSubstr("user: u\nsystem: s\nuser: v\n"));
  const Call call = read(R"(, "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {
    "type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false}}})");
  EXPECT_TRUE(reads(call, R"({"a": 1})"));
  EXPECT_FALSE(reads(call, R"({"a": 2})"));
  EXPECT_EQ(read(R"(, "output_config": {"effort": "low"}, "thinking": {"type": "adaptive"})").prompts[0].constraint,
            nullptr);
  for (const char* wrong :
       {"3", R"({"format": {"type": "json_schema"}})", R"({"format": {"type": "x", "schema": {}}})"})
    EXPECT_THROW(read(std::string(R"(, "output_config": )") + wrong), RequestError) << wrong;
}

// Returns the refusal of a body, which must exist.
std::string refusal_of(Route route, const std::string& fields) {
  try {
    read_call(route, "{" + fields + "}", model(), {"quill"});
  } catch (const RequestError& e) {
    return e.what();
  }
  ADD_FAILURE() << fields << " was taken";
  return "";
}

Call response(const std::string& fields) { return read_call(Route::responses, "{" + fields + "}", model(), {"quill"}); }

TEST(Requests, OfResponsesAskForWhatAChatAsksFor) {
  const std::string common =
                        R"("seed": 3, "top_k": 5, "temperature": 0.5, "stop": "x", "parallel_tool_calls": false, )",
                    function = R"("name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true})";
  const Call theirs = chat(common + R"("max_tokens": 7, "logprobs": true, "top_logprobs": 2, "messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": "ab"}, {"role": "assistant", "content": "c",
      "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                     {"id": "2", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "1", "content": "3"}, {"role": "tool", "tool_call_id": "2", "content": "4"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "3", "content": "5"}], "tools": [{"type": "function", "function": {)" +
                           function + "}]");
  const Call call = response(common + R"("max_output_tokens": 7, "top_logprobs": 2, "instructions": "s", "input": [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}"},
    {"type": "function_call", "call_id": "2", "name": "f", "arguments": ""},
    {"type": "function_call_output", "call_id": "1", "output": "3"},
    {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "4"}]},
    {"type": "reasoning", "summary": []}, {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "3", "output": "5"}], "tools": [{"type": "function", )" +
                             function + "]");
  const GenerationRequest &one = call.prompts[0], &other = theirs.prompts[0];
  EXPECT_EQ(model().tokenizer.decode(one.prompt), model().tokenizer.decode(other.prompt));
  EXPECT_EQ(
      std::tie(one.max_tokens, one.stop_strings, one.sampling.seed, one.sampling.top_k, one.alternatives),
      std::tie(other.max_tokens, other.stop_strings, other.sampling.seed, other.sampling.top_k, other.alternatives));
  EXPECT_TRUE(call.logprobs && call.tools && call.one_call);
  EXPECT_EQ(response(R"("input": "u")").prompts[0].prompt,
            response(R"("input": [{"role": "user", "content": "u"}])").prompts[0].prompt);
  EXPECT_FALSE(response(R"("input": "u", "include": ["reasoning.encrypted_content"])").logprobs);
  EXPECT_TRUE(response(R"("input": "u", "include": ["message.output_text.logprobs"])").logprobs);
  EXPECT_EQ(response(R"("input": "u")").prompts[0].max_tokens, INT32_MAX);
}

TEST(Requests, OfResponsesImposeFormsAndCalls) {
  const std::string body = R"("input": "u", )", tools = R"("tools": [{"type": "function", "name": "f"},
    {"type": "function", "name": "g", "parameters": null}, {"type": "function", "name": "h"}], "tool_choice": )";
  const Call form =
      response(body + R"("text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object",
    "properties": {"a": {"const": 1}}, "required": ["a"]}}})");
  EXPECT_TRUE(reads(form, R"({"a": 1})"));
  EXPECT_FALSE(reads(form, R"({"a": 2})"));
  EXPECT_TRUE(reads(response(body + R"("text": {"format": {"type": "json_object"}})"), R"({"b": 2})"));
  for (const char* none :
       {R"("text": {"format": {"type": "text"}})", R"("text": {"verbosity": "low"})", R"("text": null)"})
    EXPECT_EQ(response(body + none).prompts[0].constraint, nullptr);
  const auto takes = [&](const std::string& choice, const std::string& name) {
    return reads(response(body + tools + choice), "{\"name\": \"" + name + "\", \"arguments\": {}}");
  };
  EXPECT_TRUE(takes("\"required\"", "f") && takes("\"required\"", "h"));
  EXPECT_TRUE(takes(R"({"type": "function", "name": "g"})", "g"));
  EXPECT_FALSE(takes(R"({"type": "function", "name": "g"})", "f"));
  const char* some = R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "h"}]})";
  EXPECT_TRUE(takes(some, "h"));
  EXPECT_FALSE(takes(some, "g"));
  for (const char* free : {"\"auto\"", "\"none\"", "null"})
    EXPECT_EQ(response(body + tools + free).prompts[0].constraint, nullptr);
}

TEST(Requests, OfResponsesAreRefusedInTheirOwnWords) {
  const std::string body = R"("input": "u", )", tools = body + R"("tools": [{"type": "function", "name": "f"}], )";
  for (
      const auto& [fields, word] : std::vector<std::pair<std::string, std::string>>{
          {body + R"("previous_response_id": "resp_1")", "previous_response_id: expected none: nothing is stored"},
          {body + R"("suffix": "x")", "suffix: expected none: it is not done here"},
          {body + R"("functions": [{"name": "f"}])", "functions: expected none: give them as tools"},
          {body + R"("conversation": {"id": "c"})", "conversation: "},
          {body + R"("prompt": {"id": "p"})", "prompt: "},
          {body + R"("background": true)", "background: "},
          {body + R"("store": 1)", "store: "},
          {body + R"("max_output_tokens": 0)", "max_output_tokens: "},
          {body + R"("top_logprobs": 21)", "top_logprobs: "},
          {body + R"("include": "x")", "include: "},
          {body + R"("metadata": [])", "metadata: "},
          {body + R"("reasoning": {"effort": 3})", "reasoning.effort: "},
          {body + R"("tools": [{"type": "web_search"}])",
           "tools[0].type: expected function: this server has no web_search"},
          {body + R"("tools": [{"type": "function"}])", "tools[0].name: "},
          {body + R"("tools": [{"type": "function", "name": "f", "parameters": 5}])", "tools[0].parameters: "},
          {tools + R"("tool_choice": {"type": "function", "name": "g"})", "tool_choice: "},
          {tools + R"("tool_choice": {"type": "web_search"})", "tool_choice: "},
          {tools +
               R"("tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [{"type": "function", "name": "f"}]})",
           "tool_choice.mode: "},
          {tools + R"("tool_choice": "required", "text": {"format": {"type": "json_object"}})", "text.format: "},
          {body + R"("text": {"format": {"type": "xml"}})", "text.format.type: "},
          {body + R"("text": {"format": {"type": "json_schema"}})", "text.format.schema: "},
          {body + R"("text": {"format": {"type": "json_schema", "schema": {"not": {}}}})", "text.format.schema: "},
          {"", "input: "},
          {R"("input": [])", "input: "},
          {R"("input": [{"type": "reasoning", "summary": []}])", "input: "},
          {R"("input": [{"role": "user", "content": "u"}, {"type": "item_reference", "id": "x"}])", "input[1].type: "},
          {R"("input": [{"role": "tool", "content": "u"}])", "input[0].role: "},
          {R"("input": [{"role": "user", "content": [{"type": "input_text", "text": "u"}, {"type": "input_image"}]}])",
           "input[0].content[1].type: expected input_text or output_text: this server reads no input_image"},
          {R"("input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}])",
           "input[0].output[0].type: "},
          {R"("input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{x"}])",
           "input[0].arguments: "}})
    EXPECT_THAT(refusal_of(Route::responses, fields), ::testing::StartsWith(word)) << fields;
}

TEST(Requests, RefuseToolsThatCannotBeCalled) {
  const std::string body = R"("messages": [{"role": "user", "content": "u"}], "tools": [)",
                    good = R"({"type": "function", "function": {"name": "f"}})";
  chat(body + good + R"(, {"function": {"name": "g", "parameters": {}}}])");
  for (const auto& [tool, word] : {std::pair{"5", "tools[1]: expected an object"},
                                   {R"({"type": "web_search"})", "tools[1].type"},
                                   {R"({"type": "custom", "custom": {"name": "x"}})", "tools[1].type"},
                                   {R"({"type": "function"})", "tools[1].function"},
                                   {R"({"type": "function", "function": {}})", "tools[1].function.name"},
                                   {R"({"function": {"name": "g", "parameters": 5}})", "tools[1].function.parameters"}})
    EXPECT_THAT(refusal_of(Route::chat, body + good + ", " + tool + "]"), HasSubstr(word));
  EXPECT_THAT(
      refusal_of(Route::chat, R"("messages": [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls":
    [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{x"}}]}])"),
      HasSubstr("messages[1].tool_calls"));
}

TEST(Requests, MayAskForOneCallAtMost) {
  const std::string body = R"("messages": [{"role": "user", "content": "u"}], "max_tokens": 9, "tools": [)";
  const std::string tool = R"({"type": "function", "function": {"name": "f"}}])",
                    theirs = R"({"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto")";
  const auto messages = [&](const std::string& more) {
    return read_call(Route::messages, "{" + body + theirs + more + "}}", model(), {"quill"});
  };
  EXPECT_FALSE(chat(body + tool).one_call);
  EXPECT_FALSE(chat(body + tool + R"(, "parallel_tool_calls": true)").one_call);
  EXPECT_TRUE(chat(body + tool + R"(, "parallel_tool_calls": false)").one_call);
  EXPECT_FALSE(messages("").one_call);
  EXPECT_FALSE(messages(R"(, "disable_parallel_tool_use": false)").one_call);
  EXPECT_TRUE(messages(R"(, "disable_parallel_tool_use": true)").one_call);
}

TEST(Requests, RefuseToolsThatTheModelWouldNotSee) {
  ServedModel other = model();
  other.chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto read = [&](const std::string& choice) {
    return read_call(Route::chat,
                     R"({"messages": [{"role": "user", "content": "u"}], "tools": [
      {"type": "function", "function": {"name": "f"}}])" +
                         choice + "}",
                     other, {"quill"});
  };
  for (const char* choice : {"", R"(, "tool_choice": "auto")", R"(, "tool_choice": null)"}) try {
      read(choice);
      ADD_FAILURE() << choice;
    } catch (const RequestError& e) {
      EXPECT_EQ(e.status(), 400);
      EXPECT_THAT(e.what(), HasSubstr("tools: expected none, as quill's chat template shows it no tools"));
    }
  // Nothing is lost where no call is wanted, or where one is imposed.
  EXPECT_EQ(read(R"(, "tool_choice": "none")").prompts[0].constraint, nullptr);
  EXPECT_NE(read(R"(, "tool_choice": "required")").prompts[0].constraint, nullptr);
  other.chat->set_with_tools("{{ tools | tojson }}");
  EXPECT_THAT(other.tokenizer.decode(read("").prompts[0].prompt), HasSubstr("\"f\""));
}

TEST(Requests, OfMessagesAreRefusedInTheirOwnWords) {
  const auto refused = [](const std::string& messages, const std::string& fields = "") {
    return refusal_of(Route::messages, R"("max_tokens": 9, "messages": [)" + messages + "]" + fields);
  };
  const std::string user = R"({"role": "user", "content": "u"})",
                    tool = R"(, "tools": [{"name": "f", "input_schema": {"type": "object"}}])";
  EXPECT_THAT(refused(user, R"(, "stop_sequences": [""])"), HasSubstr("stop_sequences: "));
  EXPECT_THAT(refused(user, tool + R"(, "tool_choice": {"type": "tool", "name": "g"})"), HasSubstr("type auto, any"));
  EXPECT_THAT(refused(user, R"(, "tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
              HasSubstr("web_search_20250305"));
  EXPECT_THAT(
      refused(
          R"({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}]})"),
      HasSubstr("messages[0].content.content: "));
  for (const char* empty : {"[]", R"([{"type": "text", "text": ""}])"})
    EXPECT_THAT(refused(user + R"(, {"role": "user", "content": )" + empty + "}"), HasSubstr("messages[1].content"));
}

TEST(Requests, OfMessagesMayBeginAnAnswerWithNothing) {
  const auto prompt = [](const std::string& more) {
    return read_call(Route::messages,
                     R"({"max_tokens": 9, "messages": [{"role": "user", "content": "u"})" + more + "]}", model(),
                     {"quill"})
        .prompts[0]
        .prompt;
  };
  EXPECT_EQ(prompt(R"(, {"role": "assistant", "content": ""})"), prompt(""));
  EXPECT_EQ(prompt(R"(, {"role": "assistant", "content": []})"), prompt(""));
}

TEST(Requests, OfMessagesLeaveThinkingOut) {
  const ChatTemplate asks(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %} at once{% endif %}");
  ServedModel other = model();
  other.chat = asks;
  const auto prompt = [&](const std::string& fields) {
    const Call call =
        read_call(Route::messages, R"({"max_tokens": 9, "messages": [{"role": "user", "content": "u"}])" + fields + "}",
                  other, {"quill"});
    return other.tokenizer.decode(call.prompts[0].prompt);
  };
  EXPECT_EQ(prompt(R"(, "thinking": {"type": "disabled"})"), "u at once");
  EXPECT_EQ(prompt(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"), "u");
  EXPECT_EQ(prompt(R"(, "thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": true})"), "u");
}

TEST(Requests, OfResponsesAndChatLeaveThinkingOut) {
  ServedModel other = model();
  other.chat = ChatTemplate(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %} at once{% endif %}");
  const auto prompt = [&](Route route, const std::string& body) {
    return other.tokenizer.decode(read_call(route, body, other, {"quill"}).prompts[0].prompt);
  };
  const auto response = [&](const std::string& effort) {
    return prompt(Route::responses, R"({"input": "u", "reasoning": {"effort": )" + effort + "}}");
  };
  const auto chat = [&](const std::string& effort) {
    return prompt(Route::chat,
                  R"({"messages": [{"role": "user", "content": "u"}], "reasoning_effort": )" + effort + "}");
  };
  EXPECT_EQ(response("\"none\""), "u at once");
  EXPECT_EQ(chat("\"none\""), "u at once");
  for (const char* thinks : {"\"low\"", "null"}) EXPECT_EQ(response(thinks) + chat(thinks), "uu");
}

TEST(Requests, ImposeToolsWhoseParametersReferToThemselves) {
  const std::string tools = R"("messages": [{"role": "user", "content": "u"}], "tools": [
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g", "parameters": {"$defs": {"point": {"type": "object",
      "properties": {"x": {"type": "integer"}}, "required": ["x"]}}, "type": "object",
      "properties": {"at": {"$ref": "#/$defs/point"}, "more": {"type": "array", "items": {"$ref": "#/$defs/point"}}},
      "required": ["at"]}}}], )";
  for (const char* choice : {R"("required")", R"({"type": "function", "function": {"name": "g"}})"}) {
    const Call call = chat(tools + "\"tool_choice\": " + choice);
    EXPECT_TRUE(reads(call, R"({"name":"g","arguments":{"at":{"x":3},"more":[{"x":-1}]}})")) << choice;
    EXPECT_FALSE(reads(call, R"({"name":"g","arguments":{"at":{"x":"3"}}})")) << choice;
    EXPECT_EQ(reads(call, R"({"name":"f","arguments":{"anything":[1]}})"), choice[0] == '"');
  }
}

// Few forms are kept if they are as large as they may be.
TEST(Requests, OfManyLargeFormsDoNotFillTheMemory) {
  AnswerFormats formats(std::make_shared<grammar::TokenTree>(std::vector<std::string>{"a"}));
  std::vector<std::weak_ptr<Constraint>> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(
        formats.get(fmt::format("form {}", i), [] { return grammar::choice_grammar({std::string(190'000, 'a')}); }));
  EXPECT_TRUE(all.front().expired());
  EXPECT_FALSE(all[18].expired());
  EXPECT_FALSE(all.back().expired());
}

}  // namespace
}  // namespace fidelio::serve
