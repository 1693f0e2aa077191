// These tests are about answers in the form of OpenAI's responses: the events of a stream in their order, and the whole
// response with which they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/forms/answer_form.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<AnswerForm> form_of_response() {
  static const Loaded loaded = load();
  return responses_form({"resp_1", "quill", "fp_test", 7, loaded.model, false, {{"store", false}}});
}

// Returns the events of a form and checks that "event:" and type are equal.
std::vector<Json> events_of(const std::string& bytes) {
  Reply reply;
  reply.body = bytes;
  const std::vector<Json> events = reply.events();
  for (const Json& event : events)
    EXPECT_THAT(bytes, HasSubstr("event: " + event["type"].get<std::string>() + "\ndata: " + event.dump() + "\n\n"));
  return events;
}

// Removes the random ids.
Json without_ids(Json response) {
  response.erase("completed_at");
  for (Json& item : response["output"]) item.erase("id");
  return response;
}

const std::vector<Part> kParts = {{Part::Kind::thought, "Well"},
                                  {Part::Kind::text, "It"},
                                  {Part::Kind::call, R"({"x":1})", "f", "call1"},
                                  {Part::Kind::call, "{}", "g", "call2"},
                                  {Part::Kind::text, "is."}};
const Usage kUsage = {.prompt_tokens = 5, .completion_tokens = 8, .reused = 3, .thought = 2};

TEST(Responses, TellTheirItemsAsTheyCome) {
  const auto form = form_of_response();
  Choice choice;
  std::string bytes = form->opening(choice, kUsage);
  std::vector<Part> pieces = kParts;
  pieces.insert(pieces.begin(), {Part::Kind::thought, "Hm. "});
  for (const Part& part : pieces) bytes += form->delta(choice, {part}, {});
  choice.finish_reason = "stop";
  bytes += form->finish(choice, kUsage) + form->end(kUsage);
  const std::vector<Json> events = events_of(bytes);
  std::string kinds;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    kinds += events[i]["type"].get<std::string>().substr(9) + " ";
  }
  const std::string
      text =
          "output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done ",
      call = "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done ";
  EXPECT_EQ(kinds,
            "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.delta "
            "reasoning_text.done content_part.done output_item.done " +
                text + call + call + text + "completed ");
  // Each event belongs to the item that was added last, and the finished item equals the one in the whole response.
  const Json response = events.back()["response"];
  Json item;
  int64_t done = 0;
  for (const Json& event : events) {
    if (event["type"] == "response.output_item.added") item = event["item"];
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], item["id"]);
    }
    if (event["type"] == "response.output_item.done") {
      EXPECT_EQ(event["output_index"], done);
      EXPECT_EQ(event["item"], response["output"][static_cast<size_t>(done++)]);
      EXPECT_EQ(event["item"]["id"], item["id"]);
      EXPECT_EQ(event["item"]["status"], "completed");
    }
  }
  ASSERT_EQ(response["output"].size(), 5u);
  EXPECT_EQ(response["output"][0]["content"][0], (Json{{"type", "reasoning_text"}, {"text", "Hm. Well"}}));
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "It");
  EXPECT_EQ(response["output"][1]["content"][0]["annotations"], Json::array());
  EXPECT_EQ(response["output"][2]["call_id"], "call1");
  EXPECT_EQ(response["output"][3]["name"], "g");
}

TEST(Responses, AreToldWholeAsAStreamEnds) {
  for (const char* reason : {"stop", "length"}) {
    Choice choice{.parts = kParts};
    choice.finish_reason = reason;
    const Json whole = Json::parse(form_of_response()->whole({choice}, kUsage));
    const auto form = form_of_response();
    const std::string told = form->delta(choice, kParts, {});
    const std::vector<Json> events = events_of(told + form->finish(choice, kUsage));
    EXPECT_EQ(without_ids(whole), without_ids(events.back()["response"]));
    const bool stopped = std::string(reason) == "stop";
    EXPECT_EQ(events.back()["type"], stopped ? "response.completed" : "response.incomplete");
    EXPECT_EQ(whole["status"], stopped ? "completed" : "incomplete");
    EXPECT_EQ(whole["incomplete_details"], stopped ? Json(nullptr) : Json({{"reason", "max_output_tokens"}}));
    EXPECT_EQ(whole["completed_at"].is_null(), !stopped);
    EXPECT_EQ(whole["output"][4]["status"], whole["status"]);
    EXPECT_EQ(whole["usage"],
              Json::parse(R"({"input_tokens": 5, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
      "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 13})"));
    EXPECT_EQ(whole["id"], "resp_1");
    EXPECT_EQ(whole["store"], false);
  }
}

TEST(Responses, SayThatTheyFailedAfterTheyBegan) {
  const auto form = form_of_response();
  form->opening({}, kUsage);
  form->delta({}, {{Part::Kind::text, "It"}}, {});
  const std::vector<Json> events = events_of(form->error(RequestError(500, "not finite")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["type"], "response.failed");
  EXPECT_EQ(events[0]["response"]["status"], "failed");
  EXPECT_EQ(events[0]["response"]["error"], (Json{{"code", "server_error"}, {"message", "not finite"}}));
}

TEST(Responses, ThatSayNothingAreAMessageWithoutWords) {
  Choice choice;
  choice.finish_reason = "stop";
  const Json output = Json::parse(form_of_response()->whole({choice}, kUsage))["output"];
  ASSERT_EQ(output.size(), 1u);
  EXPECT_EQ(output[0]["content"][0]["text"], "");
}

TEST(Responses, SayWhatAChatSays) {
  Serving serving;
  const Json body = {{"input", "Hello"},
                     {"instructions", "Be brief."},
                     {"max_output_tokens", 12},
                     {"temperature", 0},
                     {"metadata", {{"a", "b"}}}};
  const auto ask = [&](const Json& more) { return serving.ask(post("/v1/responses", with(body, more).dump())); };
  const Json answer = ask({{"top_logprobs", 2}}).json();
  const Json chat =
      serving
          .chat(
              {{"messages", {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}}},
               {"max_tokens", 12},
               {"temperature", 0},
               {"logprobs", true},
               {"top_logprobs", 2}})
          .json();
  const Json& said = answer["output"][0]["content"][0];
  EXPECT_EQ(said["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(said["logprobs"], chat["choices"][0]["logprobs"]["content"]);
  EXPECT_EQ(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  const Json repeated = {{"object", "response"},
                         {"model", "quill"},
                         {"instructions", "Be brief."},
                         {"max_output_tokens", 12},
                         {"temperature", 0},
                         {"metadata", {{"a", "b"}}},
                         {"tools", Json::array()},
                         {"tool_choice", "auto"},
                         {"truncation", "disabled"},
                         {"previous_response_id", nullptr},
                         {"text", {{"format", {{"type", "text"}}}}},
                         {"store", false}};
  for (const auto& [name, value] : repeated.items()) EXPECT_EQ(answer.at(name), value) << name;
  const std::vector<Json> events = ask({{"top_logprobs", 2}, {"stream", true}}).events();
  EXPECT_EQ(events.back()["response"]["output"][0]["content"], answer["output"][0]["content"]);
  std::string text;
  Json tokens = Json::array();
  for (const Json& event : events) {
    if (event["type"] != "response.output_text.delta") continue;
    text += event["delta"].get<std::string>();
    for (const Json& token : event["logprobs"]) tokens.push_back(token);
  }
  EXPECT_EQ(text, said["text"]);
  EXPECT_EQ(tokens.size(), said["logprobs"].size());
}

TEST(Responses, AreNotStored) {
  Serving serving;
  for (const char* path : {"/v1/responses/resp_1", "/v1/responses/resp_1/input_items"}) {
    const Reply reply = serving.ask(get(path));
    EXPECT_EQ(reply.status, 404);
    EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr("not stored"));
  }
  EXPECT_EQ(serving.ask("DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 404);
  EXPECT_EQ(serving.ask(post("/v1/responses/resp_1/cancel", "")).status, 404);
  EXPECT_EQ(serving.ask(get("/v1/responses")).status, 405);
}

}  // namespace
}  // namespace fidelio::serve
