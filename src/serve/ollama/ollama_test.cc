// These tests use Ollama's API over loopback, with quill-1m as the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/ollama/ollama_request.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

std::vector<Json> lines_of(const std::string& body) {
  std::vector<Json> all;
  for (size_t at = 0, end; (end = body.find('\n', at)) != std::string::npos; at = end + 1)
    all.push_back(Json::parse(body.substr(at, end - at)));
  return all;
}

const Json kHello = {{"model", "quill:latest"}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
const Json kFew = {{"options", {{"temperature", 0}, {"num_predict", 12}}}};

TEST(Ollama, ChatsAsTheOtherFormsDo) {
  Serving serving;
  const Json same = serving.chat({{"messages", kHello["messages"]}, {"temperature", 0}, {"max_tokens", 12}}).json();
  const Json whole = serving.ask(post("/api/chat", with(with(kHello, kFew), {{"stream", false}}).dump())).json();
  EXPECT_EQ(whole["message"]["content"], same["choices"][0]["message"]["content"]);
  EXPECT_EQ(whole["message"]["role"], "assistant");
  EXPECT_EQ(whole["model"], "quill:latest");
  EXPECT_EQ(whole["done"], true);
  EXPECT_EQ(whole["done_reason"], same["choices"][0]["finish_reason"]);
  const std::string time = whole["created_at"];  // It looks like 2026-11-28T13:29:38.863028576Z.
  EXPECT_EQ(time.size(), 30u) << time;
  EXPECT_EQ(time.find_first_not_of("0123456789"), 4u) << time;
  EXPECT_EQ(time.substr(10, 1) + time.substr(19, 1) + time.substr(29), "T.Z") << time;
  EXPECT_EQ(whole["prompt_eval_count"], same["usage"]["prompt_tokens"]);
  EXPECT_EQ(whole["eval_count"], same["usage"]["completion_tokens"]);
  const auto first = whole["prompt_eval_duration"].get<int64_t>(), rest = whole["eval_duration"].get<int64_t>();
  EXPECT_GT(first, 0);
  EXPECT_LE(std::abs(whole["total_duration"].get<int64_t>() - first - rest), 2);  // Each is cut to a nanosecond.
  // The answer is a stream by default.
  const Reply stream = serving.ask(post("/api/chat", with(kHello, kFew).dump()));
  EXPECT_THAT(stream.head, HasSubstr("application/x-ndjson"));
  std::string text;
  const std::vector<Json> lines = lines_of(stream.body);
  for (const Json& line : lines) text += line["message"]["content"].get<std::string>();
  EXPECT_EQ(text, whole["message"]["content"]);
  EXPECT_EQ(lines.back()["done"], true);
  EXPECT_EQ(lines.back()["eval_count"], whole["eval_count"]);
  EXPECT_EQ(lines.front()["done"], false);
}

TEST(Ollama, GeneratesInTheTemplateOrRaw) {
  Serving serving;
  const auto response = [&](const Json& more) {
    const Reply reply = serving.ask(post("/api/generate", with(with(kFew, {{"stream", false}}), more).dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["response"];
  };
  const auto text = [&](const Json& more) {
    return serving.complete(with(kGreedy, more)).json()["choices"][0]["text"];
  };
  const Json short_one = {{"max_tokens", 12}, {"ignore_eos", false}};
  EXPECT_EQ(response({{"prompt", "The package"}, {"raw", true}}), text(with(short_one, {{"prompt", "The package"}})));
  EXPECT_EQ(
      response({{"prompt", "Hello"}, {"system", "Be brief"}}),
      text(with(short_one, {{"prompt", "system: Be brief\nuser: Hello\nassistant: "}, {"add_special_tokens", false}})));
  const std::vector<Json> lines =
      lines_of(serving.ask(post("/api/generate", with(kFew, {{"prompt", "Hello"}}).dump())).body);
  ASSERT_GT(lines.size(), 1u);
  EXPECT_TRUE(lines[0]["response"].is_string());
  EXPECT_EQ(lines.back()["done"], true);
}

TEST(Ollama, HonoursOptionsAndForms) {
  Serving serving;
  const auto ask = [&](const Json& options, const Json& more = Json::object()) {
    Json body = with(with(kHello, {{"stream", false}, {"options", options}}), more);
    return serving.ask(post("/api/chat", body.dump())).json();
  };
  const auto chat = [&](const Json& fields) {
    return serving.chat(with({{"messages", kHello["messages"]}, {"max_tokens", 16}}, fields))
        .json()["choices"][0]["message"]["content"];
  };
  const Json sampled = {{"temperature", 0.9}, {"top_p", 0.9}, {"top_k", 20}, {"seed", 4}, {"min_p", 0.01}};
  EXPECT_EQ(ask(with(sampled, {{"num_predict", 16}}))["message"]["content"], chat(sampled));
  EXPECT_EQ(ask({{"temperature", 0}, {"num_predict", 16}, {"repeat_penalty", 1.3}, {"repeat_last_n", -1}})["message"]
                                                                                                          ["content"],
            chat({{"temperature", 0}, {"repetition_penalty", 1.3}}));
  EXPECT_EQ(ask({{"temperature", 0}, {"num_predict", 16}, {"repeat_penalty", 1.3}, {"repeat_last_n", 0}})["message"]
                                                                                                         ["content"],
            chat({{"temperature", 0}}));
  // Prompt and answer together end at num_ctx.
  const Json five = serving.chat({{"messages", kHello["messages"]}, {"temperature", 0}, {"max_tokens", 5}}).json();
  const int64_t prompt = five["usage"]["prompt_tokens"];
  const Json bounded = ask({{"temperature", 0}, {"num_ctx", prompt + 5}});
  EXPECT_EQ(bounded["message"]["content"], five["choices"][0]["message"]["content"]);
  EXPECT_EQ(bounded["done_reason"], five["choices"][0]["finish_reason"]);
  const Json object =
      ask({{"temperature", 0}, {"num_predict", 60}},
          {{"format", {{"type", "object"}, {"properties", {{"a", {{"type", "boolean"}}}}}, {"required", {"a"}}}}});
  EXPECT_TRUE(Json::parse(object["message"]["content"].get<std::string>())["a"].is_boolean());
  const Json scored = ask({{"num_predict", 2}}, {{"logprobs", true}, {"top_logprobs", 2}});
  EXPECT_EQ(scored["logprobs"].size(), scored["eval_count"].get<size_t>());
  EXPECT_EQ(scored["logprobs"][0]["top_logprobs"].size(), 2u);
}

TEST(Ollama, RefusesByNameWhatItCannotDo) {
  Serving serving;
  const auto refused = [&](const std::string& path, const Json& more, const std::string& word, int status = 400) {
    Json body = with(kHello, more);
    if (path == "/api/generate") body.erase("messages");
    const Reply reply = serving.ask(post(path, body.dump()));
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_THAT(reply.json()["error"].get<std::string>(), HasSubstr(word));
  };
  refused("/api/chat", {{"messages", {{{"role", "user"}, {"content", "a"}, {"images", {"aGk="}}}}}},
          "messages[0].images");
  refused("/api/generate", {{"prompt", "a"}, {"images", {"aGk="}}}, "images");
  refused("/api/generate", {{"prompt", "a"}, {"suffix", "b"}}, "suffix");
  refused("/api/generate", {{"prompt", "a"}, {"template", "{{ .Prompt }}"}}, "template");
  refused("/api/generate", {{"prompt", "a"}, {"context", {1, 2}}}, "context");
  refused("/api/generate", {{"prompt", "a"}, {"stop", "b"}}, "stop: expected none: give it in options");
  refused("/api/chat", {{"options", {{"max_tokens", 3}}}}, "options.max_tokens: expected none");
  refused("/api/generate", {{"prompt", "a"}, {"raw", true}, {"system", "b"}}, "system");
  refused("/api/chat", {{"model", "llama3"}}, "llama3", 404);
  refused("/api/show", {{"model", "llama3"}}, "llama3", 404);
  refused("/api/chat", {{"format", "xml"}}, "format");
  refused("/api/chat", {{"think", "much"}}, "think");
  for (const auto& [name, value] : {std::pair<const char*, Json>{"mirostat", 2}, {"typical_p", 0.5}, {"tfs_z", 0.5}})
    refused("/api/chat", {{"options", {{name, value}}}}, std::string("options.") + name);
  refused("/api/chat", {{"options", {{"repeat_penalty", 1.1}, {"repeat_last_n", 64}}}}, "repeat_last_n");
  refused("/api/chat", {{"options", {{"num_ctx", 2}}}}, "options.num_ctx");
  refused("/api/chat", {{"options", 3}}, "options");
  refused("/api/pull", Json::object(), "no others", 404);
  for (const char* path : {"/api/embed", "/api/embeddings"}) refused(path, Json::object(), "embeddings", 404);
  const Reply embeddings = serving.ask(post("/v1/embeddings", R"({"input":"a"})"));
  EXPECT_EQ(embeddings.status, 404);
  EXPECT_THAT(embeddings.json()["error"]["message"].get<std::string>(), HasSubstr("serve an embedding model"));
}

TEST(Ollama, TellsOfItsModel) {
  Serving serving;
  const Json tags = serving.ask(get("/api/tags")).json()["models"];
  ASSERT_EQ(tags.size(), 1u);
  EXPECT_EQ(tags[0]["model"], "quill:latest");
  EXPECT_EQ(serving.ask(get("/api/ps")).json()["models"][0]["name"], "quill:latest");
  EXPECT_TRUE(serving.ask(get("/api/version")).json()["version"].is_string());
  const Json shown = serving.ask(post("/api/show", R"({"model":"quill"})")).json();
  EXPECT_EQ(shown["template"], kTemplate);
  EXPECT_EQ(shown["capabilities"], Json({"completion", "tools"}));
  // The curl lines of Ollama's pages send this content type.
  const std::string form = "Content-Type: application/x-www-form-urlencoded\r\n";
  const Json loaded = serving.ask(post("/api/generate", R"({"model":"quill"})", form)).json();
  EXPECT_EQ(loaded["done_reason"], "load");
  EXPECT_EQ(serving.ask(post("/api/chat", R"({"model":"quill","messages":[],"keep_alive":0})")).json()["done"], true);
}

// Calls and their results get the ids that templates need, in their order.
TEST(Ollama, SaysToolsThoughtsAndResultsInWordsOfChat) {
  const Json call = {{"function", {{"name", "find"}, {"arguments", {{"a", 1}, {"b", 1.0}}}}}};
  const Json body = {{"messages",
                      {{{"role", "user"}, {"content", "x"}, {"images", Json::array()}},
                       {{"role", "assistant"}, {"content", ""}, {"thinking", "hm"}, {"tool_calls", {call, call}}},
                       {{"role", "tool"}, {"content", "1"}, {"tool_name", "find"}},
                       {{"role", "tool"}, {"content", "2"}}}},
                     {"think", false}};
  const OllamaRequest read = read_ollama(Route::ollama_chat, body, body.dump(), true);
  const Json& messages = read.body["messages"];
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  for (const size_t i : {0, 1}) EXPECT_EQ(messages[1]["tool_calls"][i]["id"], messages[2 + i]["tool_call_id"]);
  EXPECT_NE(messages[2]["tool_call_id"], messages[3]["tool_call_id"]);
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"], R"({"a":1,"b":1.0})");
  EXPECT_EQ(messages[2]["name"], "find");
  EXPECT_FALSE(messages[0].contains("images"));
  EXPECT_EQ(read.body["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(read.body["stream"], true);
}

}  // namespace
}  // namespace fidelio::serve
