// These tests are about the content of answers and the forms that requests can ask for: logprobs, messages, calls,
// constraints. They also check the law that an answer is the same whatever else is served, however it is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "engine/generate.h"
#include "serve/parts/answer_parts.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

TEST(Answers, ScorePromptsAsTheyScoreWhatTheyGenerate) {
  Serving serving;
  const Json generated = serving.complete(with(kGreedy, {{"logprobs", 3}})).json()["choices"][0];
  // The answer has the scores that it was generated with also as a part of a prompt.
  const auto prompt = tokenizer().encode("The package contains");
  auto ids = prompt;
  const std::vector<std::string> spelled = bytes_of_tokens(tokenizer());
  for (const Json& event : serving.complete(with(kGreedy, {{"stream", true}, {"logprobs", 0}})).events())
    for (const Json& choice : event["choices"])
      if (!choice["logprobs"].is_null())
        for (const Json& token : choice["logprobs"]["tokens"]) {
          // Tokens of single bytes come first and are spelt like ordinary ones, of which answers consist.
          const auto found = std::find(spelled.rbegin(), spelled.rend(), token.get<std::string>());
          ASSERT_NE(found, spelled.rend()) << token;
          ids.push_back(static_cast<int32_t>(spelled.rend() - found) - 1);
        }
  ASSERT_EQ(ids.size(), prompt.size() + 24);
  for (const int most : {0, 1}) {
    const Json body = {{"prompt", ids}, {"max_tokens", most}, {"echo", true}, {"logprobs", 3}, {"temperature", 0}};
    const Json answer = serving.complete(body).json();
    const Json scored = answer["choices"][0]["logprobs"];
    ASSERT_EQ(scored["tokens"].size(), ids.size() + static_cast<size_t>(most)) << answer;
    EXPECT_TRUE(scored["token_logprobs"][0].is_null());
    EXPECT_TRUE(scored["top_logprobs"][0].is_null());
    // Offsets count characters of the text. The token that the tokenizer puts before it is no part of the text: it has
    // a name and no bytes.
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(scored["text_offset"][i], tokenizer().decode(std::span(ids).first(i)).size()) << i;
    for (size_t i = 0; i < 24; ++i) {
      const size_t at = prompt.size() + i;
      EXPECT_EQ(scored["tokens"][at], generated["logprobs"]["tokens"][i]);
      EXPECT_EQ(scored["token_logprobs"][at], generated["logprobs"]["token_logprobs"][i]);
      EXPECT_EQ(scored["top_logprobs"][at], generated["logprobs"]["top_logprobs"][i]);
      // Sampling is greedy, so no alternative is likelier.
      ASSERT_GE(scored["top_logprobs"][at].size(), 3u);
      for (const Json& other : scored["top_logprobs"][at]) EXPECT_LE(other, scored["token_logprobs"][at]);
    }
  }
}

// The tokenizer removes a space where a text begins, but an answer does not begin a text.
TEST(Answers, ContinueThePromptsText) {
  Serving serving;
  const std::string prompt = "The package";
  const Json body = with(kGreedy, {{"prompt", prompt}, {"logprobs", 0}, {"max_tokens", 6}});
  GenerationRequest request{.prompt = tokenizer().encode(prompt), .max_tokens = 6};
  GenerationOptions options;
  options.reading = Activations::a16;
  const std::vector<int32_t> made = generate(*make_runner(), {request}, options)[0].ids;
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), made.begin(), made.end());
  const std::string whole = tokenizer().decode(all), text = whole.substr(prompt.size());
  ASSERT_TRUE(whole.starts_with(prompt + " ")) << whole;
  const Json plain = serving.complete(body).json()["choices"][0];
  EXPECT_EQ(plain["text"], text);
  EXPECT_EQ(streamed_text(serving.complete(with(body, {{"stream", true}}))), text);
  for (const bool streams : {false, true}) {
    const Reply echoed = serving.complete(with(body, {{"echo", true}, {"stream", streams}}));
    EXPECT_EQ(streams ? streamed_text(echoed) : echoed.json()["choices"][0]["text"].get<std::string>(), whole);
    if (streams) continue;
    const Json scored = echoed.json()["choices"][0]["logprobs"];
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(scored["text_offset"][i], tokenizer().decode(std::span(all).first(i)).size()) << i;
  }
  for (size_t i = 0; i < made.size(); ++i)
    EXPECT_EQ(plain["logprobs"]["text_offset"][i],
              tokenizer().decode(std::span(all).first(request.prompt.size() + i)).size() - prompt.size());
  const Json special = serving.complete(with(body, {{"echo", true}, {"skip_special_tokens", false}})).json();
  EXPECT_EQ(special["choices"][0]["text"], tokenizer().decode(all, false));
  EXPECT_EQ(special["choices"][0]["logprobs"]["text_offset"][1], std::string("<s>").size());
}

// A continued message is a text like any other, on every route.
TEST(Answers, ContinueAMessagesText) {
  Serving serving;
  const Json messages = {{{"role", "user"}, {"content", "Hello"}}, {{"role", "assistant"}, {"content", "The package"}}};
  const Json bare = with(
      kGreedy, {{"prompt", "user: Hello\nassistant: The package"}, {"max_tokens", 8}, {"add_special_tokens", false}});
  const std::string expected = serving.complete(bare).json()["choices"][0]["text"];
  ASSERT_TRUE(expected.starts_with(" ")) << expected;
  const Json chat = {{"messages", messages},
                     {"temperature", 0},
                     {"max_tokens", 8},
                     {"ignore_eos", true},
                     {"continue_final_message", true}};
  EXPECT_EQ(serving.chat(chat).json()["choices"][0]["message"]["content"], expected);
  EXPECT_EQ(streamed_text(serving.chat(with(chat, {{"stream", true}}))), expected);
  const Json anthropic = {{"messages", messages}, {"temperature", 0}, {"max_tokens", 8}};
  const Json answer = serving.ask(post("/v1/messages", anthropic.dump())).json();
  EXPECT_TRUE(expected.starts_with(answer["content"][0]["text"].get<std::string>())) << answer;
  EXPECT_TRUE(answer["content"][0]["text"].get<std::string>().starts_with(" ")) << answer;
}

TEST(Answers, TellTheBestTokensOfAChat) {
  Serving serving;
  const Json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                     {"temperature", 0},
                     {"max_tokens", 8},
                     {"ignore_eos", true},
                     {"logprobs", true},
                     {"top_logprobs", 4}};
  const Json tokens = serving.chat(body).json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(tokens.size(), 8u);
  for (const Json& token : tokens) {
    ASSERT_EQ(token["top_logprobs"].size(), 4u);
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
    EXPECT_EQ(token["top_logprobs"][0]["bytes"], token["bytes"]);
    double sum = 0;
    for (size_t i = 0; i < 4; ++i) {
      sum += std::exp(token["top_logprobs"][i]["logprob"].get<double>());
      if (i == 0) continue;
      EXPECT_LE(token["top_logprobs"][i]["logprob"], token["top_logprobs"][i - 1]["logprob"]);
    }
    EXPECT_LT(sum, 1 + 1e-5);  // These are four terms, each rounded to 2^-24, with weights exact to 2^-22.
  }
  EXPECT_EQ(serving.chat(with(body, {{"logprobs", false}})).status, 400);
}

TEST(Answers, KeepTheBestOfSeveral) {
  Serving serving;
  const Json body = with(kGreedy, {{"temperature", 1.0}, {"seed", 3}, {"logprobs", 0}});
  const Json six = serving.complete(with(body, {{"n", 6}})).json()["choices"];
  const auto mean = [](const Json& choice) {
    double sum = 0;
    for (const Json& x : choice["logprobs"]["token_logprobs"]) sum += x.get<double>();
    return sum / static_cast<double>(choice["logprobs"]["token_logprobs"].size());
  };
  std::vector<std::pair<double, std::string>> order;
  for (const Json& choice : six) order.push_back({-mean(choice), choice["text"]});
  std::sort(order.begin(), order.end());
  const Json two = serving.complete(with(body, {{"n", 2}, {"best_of", 6}})).json()["choices"];
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0]["text"], order[0].second);
  EXPECT_EQ(two[1]["text"], order[1].second);
}

TEST(Answers, InAnthropicsForm) {
  Serving serving;
  const Json body = {{"max_tokens", 12},
                     {"temperature", 0},
                     {"system", "Be brief."},
                     {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hello"}}}}}}}};
  const auto ask = [&](const Json& request) { return serving.ask(post("/v1/messages", request.dump())); };
  const Json answer = ask(body).json();
  const Json chat =
      serving
          .chat(
              {{"messages", {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}}},
               {"max_tokens", 12},
               {"temperature", 0}})
          .json();
  EXPECT_EQ(answer["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["type"], "message");
  std::string text, kinds;
  for (const Json& event : ask(with(body, {{"stream", true}})).events()) {
    kinds += event["type"].get<std::string>() + " ";
    if (event["type"] == "content_block_delta") text += event["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(text, answer["content"][0]["text"].get<std::string>());
  EXPECT_TRUE(kinds.starts_with("message_start content_block_start content_block_delta ")) << kinds;
  EXPECT_TRUE(kinds.ends_with("content_block_stop message_delta message_stop ")) << kinds;
  const std::string stop = text.substr(3, 2);
  const Json stopped = ask(with(body, {{"stop_sequences", {stop}}})).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], stop);
  Json continued = body;
  continued["messages"].push_back({{"role", "assistant"}, {"content", text.substr(0, 6)}});
  EXPECT_EQ(ask(continued).status, 200);
  const Reply wrong = ask({{"messages", Json::array()}, {"max_tokens", 1}});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.json()["type"], "error");
  EXPECT_EQ(wrong.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(serving.ask(post("/v1/messages/count_tokens", body.dump())).json()["input_tokens"],
            answer["usage"]["input_tokens"]);
}

// The tests below are about the parts of an answer.
std::string spelled(const std::string& text, bool thinking, size_t piece, bool one_call = false) {
  PartsRules rules{{{thinking_marks().begin(), thinking_marks().end()}}, std::make_shared<const Tools>(), one_call};
  if (thinking) rules.thinking.opened = thinking_marks().front();
  AnswerParts parts(rules);
  std::vector<Part> all;
  for (size_t at = 0; at < text.size(); at += piece)
    for (Part& part : parts.push(text.substr(at, piece))) append(all, std::move(part));
  for (Part& part : parts.finish()) append(all, std::move(part));
  std::string out;
  for (const Part& part : all)
    out += part.kind == Part::Kind::call ? "[" + part.name + part.text + "]"
                                         : (part.kind == Part::Kind::thought ? "(" : "\"") + part.text + "|";
  return out;
}

TEST(Answers, AreTakenApart) {
  const std::vector<std::array<std::string, 2>> cases = {
      {"Plain <b>text</b> [and] <tool", "\"Plain <b>text</b> [and] <tool|"},
      {"<think>\nWhy?</think>\n\nSo.", "(\nWhy?|\"So.|"},
      {"<think>never closed", "(never closed|"},
      {"Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, "
       "\"}\"]}}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
       "\"Let me see.|[f{\"x\":[1,\"}\"]}][g{}]"},
      {"<tool_call>no JSON</tool_call> end", "\"<tool_call>no JSON</tool_call> end|"},
      {"Two \n<tool_call>no JSON</tool_call>", "\"Two \n<tool_call>no JSON</tool_call>|"},
      {"Three [TOOL_CALLS] no", "\"Three [TOOL_CALLS] no|"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "[f{}]"},
      {"<tool_call>{\"name\": \"f\"}</tool_call>\n That is  all. ", "[f{}]\"That is  all. |"},
      {"{\"name\": \"f\", \"parameters\": {\"y\": 2}}", "[f{\"y\":2}]"},
      {"<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"z\": null}}",
       "[f{}][g{\"z\":null}]"},
      {"{\"answer\": 3}", "\"{\"answer\": 3}|"},
      {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
       "[f{\"a\":1}][g{}]"},
      {"Well [TOOL_CALLS]f[ARGS]{\"a\": \"[ARGS]\"}[TOOL_CALLS]g{}", "\"Well|[f{\"a\":\"[ARGS]\"}][g{}]"},
  };
  for (const auto& [text, expected] : cases)
    for (const size_t piece : {1u, 3u, 1000u}) EXPECT_EQ(spelled(text, false, piece), expected) << piece;
  EXPECT_EQ(spelled("I wonder</think>Yes", true, 2), "(I wonder|\"Yes|");
}

TEST(Answers, EndWithTheirFirstCallWhereOneAloneIsWanted) {
  const std::string first = "{\"name\": \"f\", \"arguments\": {}}", second = "{\"name\": \"g\", \"arguments\": {}}";
  for (const std::string& text :
       {"<tool_call>" + first + "</tool_call>\n<tool_call>" + second + "</tool_call>", first + "; " + second,
        "[TOOL_CALLS][" + first + ", " + second + "]", std::string("[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g{}"),
        "<tool_call>" + first + "</tool_call> and more"})
    for (const size_t piece : {1u, 3u, 1000u}) EXPECT_EQ(spelled(text, false, piece, true), "[f{}]") << text;
  EXPECT_EQ(spelled("Well, <tool_call>no</tool_call> is none", false, 1, true),
            "\"Well, <tool_call>no</tool_call> is none|");
}

// The tests below are about forms of answers.
const Json kSchema = Json::parse(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
  "count": {"type": "integer", "minimum": 1, "maximum": 40}, "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b"]}}},
  "required": ["name", "count", "tags"], "additionalProperties": false})");

Json in_schema(const Json& schema) {
  return {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}};
}

TEST(Answers, InTheFormThatWasAskedFor) {
  for (const bool speculates : {false, true}) {
    Serving serving({}, {.speculates = speculates});
    for (int seed = 0; seed < 8; ++seed) {
      const Json body = with(
          kGreedy, {{"temperature", seed % 2}, {"seed", seed}, {"max_tokens", 200}, {"ignore_eos", seed % 4 == 3}});
      const Json choice = serving.complete(with(body, in_schema(kSchema))).json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "stop");
      const Json value = Json::parse(choice["text"].get<std::string>());
      EXPECT_LE(value["name"].get<std::string>().size(), 48u);
      EXPECT_GE(value["count"], 1);
      EXPECT_LE(value["count"], 40);
      EXPECT_EQ(value.size(), 3u);
      const std::string text =
          serving.complete(with(body, {{"regex", "[A-C]{3}-\\d{2}"}})).json()["choices"][0]["text"];
      EXPECT_TRUE(std::regex_match(text, std::regex("[A-C]{3}-\\d{2}"))) << text;
    }
    // vLLM's clients ask for a form in this way.
    const auto structured = [&](const Json& form) {
      const Json body = with(kGreedy, {{"max_tokens", 100}, {"structured_outputs", form}});
      return serving.complete(body).json()["choices"][0]["text"].get<std::string>();
    };
    EXPECT_THAT((std::vector<std::string>{"yes, it is", "no"}),
                testing::Contains(structured({{"choice", {"yes, it is", "no"}}})));
    EXPECT_TRUE(std::regex_match(structured({{"regex", "[A-C]{3}"}, {"choice", nullptr}}), std::regex("[A-C]{3}")));
    EXPECT_EQ(structured({{"json", R"({"const": 42})"}}), "42");
    EXPECT_EQ(structured({{"json", {{"const", 42}}}}), "42");
    // This answer is complete before its first token, whether or not a token may come that says so.
    for (const bool no_stop : {false, true}) {
      const Reply reply = serving.complete(with(kGreedy, {{"regex", ""}, {"ignore_eos", no_stop}}));
      ASSERT_EQ(reply.status, 200) << reply.body;
      EXPECT_EQ(reply.json()["choices"][0]["text"], "");
      EXPECT_EQ(reply.json()["choices"][0]["finish_reason"], "stop");
    }
    const Json call =
        serving
            .chat({{"messages",
                    {{{"role", "user"}, {"content", "Hello"}},
                     // A continued answer does not begin with a thought, as quill's answers otherwise may.
                     {{"role", "assistant"}, {"content", "Here is"}, {"prefix", true}}}},
                   {"temperature", 0},
                   {"tools", {{{"type", "function"}, {"function", {{"name", "find"}, {"parameters", kSchema}}}}}},
                   {"tool_choice", "required"}})
            .json()["choices"][0];
    EXPECT_EQ(call["finish_reason"], "tool_calls");
    EXPECT_EQ(call["message"]["tool_calls"][0]["function"]["name"], "find");
    EXPECT_EQ(Json::parse(call["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()).size(), 3u);
    EXPECT_EQ(serving.ask(get("/health")).status, 200);
  }
}

// The test below runs the examples of the documentation.
TEST(Answers, ToTheExamplesOfTheDocumentation) {
  Serving serving;
  std::ifstream page(FIDELIO_SOURCE_DIR "/docs/serving.md");
  const std::string curl = "curl http://127.0.0.1:8000", data = " --json '";
  int64_t examples = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(curl)) continue;
    const size_t body = line.find(data);
    ASSERT_NE(body, std::string::npos) << line;
    const std::string path = line.substr(curl.size(), body - curl.size());
    const Reply reply = serving.ask(post(path, line.substr(body + data.size(), line.rfind('\'') - body - data.size()),
                                         "Content-Type: application/json\r\n"));
    EXPECT_EQ(reply.status, 200) << line << reply.body;
    ++examples;
  }
  EXPECT_GE(examples, 5);
  EXPECT_THAT(serving.ask(get("/")).body, HasSubstr("<!doctype html>"));
  const Json document = serving.ask(get("/openapi.json")).json();
  for (const auto& [path, methods] : document["paths"].items())
    if (!path.ends_with("}")) {
      EXPECT_NE(serving.ask(get(path)).status, 404) << path;
    }
}

// The tests below check the law of equal answers with requests of every kind. The first requests are so long that they
// still run when the others have arrived, on a machine of any speed. Six of them together fill a small cache more than
// twice, so some are preempted.
std::vector<std::pair<std::string, Json>> requests() {
  std::vector<std::pair<std::string, Json>> all;
  for (int i = 0; i < 64; ++i) {
    const bool long_one = i >= 1 && i <= 9;
    Json body = {{"max_tokens", long_one ? 150 : 12 + i % 40},
                 {"seed", i},
                 {"temperature", (i % 3) * 0.6},
                 {"ignore_eos", long_one || i % 5 != 0}};
    const std::string text = "Number " + std::to_string(i * i) + std::string(static_cast<size_t>(i), '.');
    if (i % 4 == 1) {
      body.update({{"messages", {{{"role", "user"}, {"content", text}}}}, {"logprobs", true}, {"top_logprobs", i % 3}});
      all.push_back({"/v1/chat/completions", body});
      continue;
    }
    body["prompt"] = text;
    if (i % 4 == 2) body.update({{"logprobs", i % 4}, {"echo", i % 8 == 2}});
    if (i % 4 == 3) body.update(in_schema(kSchema));
    if (i % 16 == 0) body["n"] = 3;
    all.push_back({"/v1/completions", body});
  }
  return all;
}

// Removes the parts of an answer that do not depend on its request alone.
Json lasting(Json answer) {
  answer.erase("id"), answer.erase("created");
  answer["usage"].erase("completion_tokens_details"), answer["usage"].erase("prompt_tokens_details");
  for (Json& choice : answer["choices"])
    if (!choice["logprobs"].is_null() && choice["logprobs"].contains("content"))
      for (Json& token : choice["logprobs"]["content"]) token.erase("drafted");
  return answer;
}

TEST(Laws, TheSameAnswerAloneAmongOthersSpeculatedAndPreempted) {
  const auto all = requests();
  const auto together = [&](Serving& serving) {
    std::vector<std::unique_ptr<Client>> clients;
    for (const auto& [path, body] : all) {
      clients.push_back(std::make_unique<Client>(serving.port()));
      clients.back()->send(post(path, body.dump()));
    }
    std::vector<Json> answers;
    for (auto& client : clients) answers.push_back(lasting(client->read().json()));
    return answers;
  };
  Serving plain, speculating({}, {.speculates = true}), small({}, {.cache_tokens = 384}), both({}, {320, true});
  const std::vector<Json> expected = together(plain);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_TRUE(expected[i].contains("choices")) << expected[i];
  for (size_t i = 0; i < all.size(); i += 5)
    EXPECT_EQ(lasting(plain.ask(post(all[i].first, all[i].second.dump())).json()), expected[i]) << all[i].second;
  for (Serving* other : {&speculating, &small, &both}) {
    const std::vector<Json> answers = together(*other);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(answers[i], expected[i]) << all[i].second;
    EXPECT_EQ(other->server().status().free_pages, other->server().status().pages);
  }
  EXPECT_GT(speculating.server().status().counters.accepted, 0);
  EXPECT_GT(small.server().status().counters.preemptions, 0);
  EXPECT_GT(both.server().status().counters.preemptions, 0);
}

}  // namespace
}  // namespace fidelio::serve
