// In these tests a scripted model answers in messages, as gpt-oss does (text/channels.h), and each route returns what
// they say. The texts of one answer are also cut at every place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/rng.h"
#include "serve/parts/answer_parts.h"
#include "serve/parts/told.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;
using Pieces = std::vector<std::string>;

const Pieces kMarks = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"};

// Cuts a text into pieces: marks, and what stands between them.
Pieces pieces_of(const std::string& text) {
  Pieces pieces;
  size_t at = 0;
  while (at < text.size()) {
    size_t next = text.size();
    std::string found;
    for (const std::string& mark : kMarks)
      if (const size_t place = text.find(mark, at); place < next) next = place, found = mark;
    if (next > at) pieces.push_back(text.substr(at, next - at));
    if (!found.empty()) pieces.push_back(found);
    at = next + found.size();
  }
  return pieces;
}

Script answering(const std::string& text) {
  return {.pieces = pieces_of(text),
          .specials = kMarks,
          .prompt_end = "<|start|>assistant",
          .template_note = "<|channel|><|message|>",
          .stops = {"<|call|>", "<|return|>"}};
}

Json with_tools() { return asked({{"tools", kTools}}); }

struct Row {
  std::string answer;
  Told told;
};

// Every row is an answer and what it tells where tools are shown.
const std::vector<Row> kRows = {
    {"<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>",
     {"Easy.", "Paris.", "", "stop"}},
    {"<|channel|>final<|message|>Paris.<|return|>", {"", "Paris.", "", "stop"}},
    // The recipient stands in the channel's part or in the role's, with <|constrain|>, with the bare type or without.
    {"<|channel|>analysis<|message|>A note.<|end|><|start|>assistant<|channel|>commentary to=functions.save_note "
     "<|constrain|>json<|message|>{\"text\": \"a\"}<|call|>",
     {"A note.", "", "save_note{\"text\":\"a\"};", "tool_calls"}},
    {"<|channel|>analysis<|message|>A note.<|end|><|start|>assistant to=functions.save_note<|channel|>commentary "
     "<|constrain|>json<|message|>{\"text\": \"a\"}<|call|>",
     {"A note.", "", "save_note{\"text\":\"a\"};", "tool_calls"}},
    {" to=functions.save_note<|channel|>commentary json<|message|>{\"text\": \"a\", \"weight\": 1.50}<|call|>",
     {"", "", "save_note{\"text\":\"a\",\"weight\":1.50};", "tool_calls"}},
    {"<|channel|>commentary to=functions.save_note<|message|>{\"text\": \"a <|end|\"}<|call|>",
     {"", "", "save_note{\"text\":\"a <|end|\"};", "tool_calls"}},
    {"<|channel|>commentary to=functions.save_note<|channel|>json<|message|>{\"text\": \"a\"}<|call|>",
     {"", "", "save_note{\"text\":\"a\"};", "tool_calls"}},
    {"<|channel|>analysis to=functions.g code<|message|>{}<|call|>", {"", "", "g{};", "tool_calls"}},
    {"<|channel|>commentary to=functions.g <|constrain|>json<|message|><|call|>", {"", "", "g{};", "tool_calls"}},
    // A preamble is shown, and several messages of a kind have a break between them.
    {"<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary<|message|>I note "
     "it.<|end|><|start|>assistant<|channel|>analysis<|message|>Second.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.g <|constrain|>json<|message|>{}<|call|>",
     {"First.\n\nSecond.", "I note it.", "g{};", "tool_calls"}},
    {"<|channel|>commentary<|message|>One<|end|><|start|>assistant<|channel|>final<|message|>two<|return|>",
     {"", "One\n\ntwo", "", "stop"}},
    // A message to the assistant or to nobody of note is no call.
    {"<|channel|>commentary to=assistant<|message|>Well.<|end|><|start|>functions.g to=assistant<|channel|>commentary"
     "<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
     {"", "Well.\n\n{}\n\nSo.", "", "stop"}},
    // These headers lack parts, or are none.
    {"Paris, of course.<|return|>", {"", "Paris, of course.", "", "stop"}},
    {"  to be\nor not.<|return|>", {"", "  to be\nor not.", "", "stop"}},
    {"<|message|>Paris.<|return|>", {"", "Paris.", "", "stop"}},
    {"<|channel|>musings<|message|>Paris.<|return|>", {"", "Paris.", "", "stop"}},
    {"<|channel|>analysis We think.<|end|><|start|>assistant<|channel|>final Paris.<|return|>",
     {" We think.", " Paris.", "", "stop"}},
    {"<|channel|>analysis<|message|>Easy.<|channel|>final<|message|>Paris.<|return|>", {"Easy.", "Paris.", "", "stop"}},
    {"<|channel|>analysis<|message|>Easy.<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}<|return|>",
     {"Easy.", "{}", "", "stop"}},
    {"<|channel|>analysis<|message|>Easy.<|end|>Paris.<|return|>", {"Easy.", "Paris.", "", "stop"}},
    {"<|channel|>final<|message|>a<|message|>b<|return|>", {"", "ab", "", "stop"}},
    // These calls are none.
    {"<|channel|>commentary to=functions.save_note json<|message|>{\"text\": <|call|>",
     {"", "{\"text\": ", "", "stop"}},
    {"<|channel|>commentary to=functions.save_note code<|message|>print(1)<|call|>", {"", "print(1)", "", "stop"}},
    // Answers that were cut off in a header have not said anything in it.
    {"<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>fin", {"Easy.", "", "", "stop"}},
    {"<|channel|>commentary to=functions.save_note", {"", "", "", "stop"}},
    {"<|channel|>analysis<|message|>Ea", {"Ea", "", "", "stop"}},
};

TEST(Messages, AreToldByEveryRoute) {
  for (const Row& row : kRows) expect_told(answering(row.answer), with_tools(), row.told);
}

// Marks that are spelt in ordinary tokens are a text.
TEST(Messages, QuoteMarks) {
  Script script = answering("");
  script.pieces = {"<|channel|>", "final", "<|message|>", "It ends with <|e", "nd|> or <|", "return|>.", "<|return|>"};
  expect_told(script, with_tools(), {"", "It ends with <|end|> or <|return|>.", "", "stop"});
}

// The reader gets the answer in two parts, cut at every place, and one character at a time.
TEST(Messages, AreToldAlikeHoweverTheyArrive) {
  auto tools = std::make_shared<Tools>();
  for (const Json& tool : kTools) tools->push_back({tool["function"]["name"], tool["function"]["parameters"]});
  PartsRules rules{.thinking = {}, .tools = tools, .one_call = false};
  rules.thinking.channels = Channels{"assistant", {}};
  for (const Row& row : kRows) {
    std::string text = with_mark_texts(row.answer);
    for (const ChannelMark& stop : {kChannelCall, kChannelReturn})
      if (text.ends_with(stop.text)) text.resize(text.size() - stop.text.size());
    const auto told = [&](const std::vector<std::string_view>& pieces) {
      AnswerParts parts(rules);
      std::vector<Part> all;
      for (const std::string_view piece : pieces)
        for (Part& part : parts.push(std::string(piece))) append(all, std::move(part));
      for (Part& part : parts.finish()) append(all, std::move(part));
      Told what;
      for (const Part& part : all) {
        if (part.kind == Part::Kind::call) what.calls += call_text(part.name, part.text);
        (part.kind == Part::Kind::thought ? what.thought : what.text) +=
            part.kind == Part::Kind::call ? "" : part.joined();
      }
      what.reason = row.told.reason;
      return what;
    };
    const std::string_view whole = text;
    for (size_t cut = 0; cut <= text.size(); ++cut)
      EXPECT_EQ(told({whole.substr(0, cut), whole.substr(cut)}), row.told) << row.answer << " at " << cut;
    std::vector<std::string_view> characters;
    for (size_t at = 0; at < text.size(); ++at) characters.push_back(whole.substr(at, 1));
    EXPECT_EQ(told(characters), row.told) << row.answer;
  }
}

// Whatever arrives, what is told at once is told by parts, too.
TEST(Messages, OfAnyKindAreToldAlike) {
  const Pieces words = {kChannelStart.text.data(),
                        kChannelName.text.data(),
                        kChannelMessage.text.data(),
                        kChannelConstrain.text.data(),
                        kChannelEnd.text.data(),
                        "assistant",
                        "analysis",
                        "final",
                        "commentary",
                        " to=functions.g",
                        " ",
                        "json",
                        "{}",
                        "\n",
                        "word",
                        "\xF3\xB0\x80",
                        "é"};
  PartsRules rules{.thinking = {}, .tools = std::make_shared<Tools>(), .one_call = false};
  rules.thinking.channels = Channels{"assistant", {}};
  uint64_t random = 7;
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += words[(random = splitmix64(random)) % words.size()];
    const auto told = [&](size_t size) {
      AnswerParts parts(rules);
      std::string all;
      std::vector<Part> said;
      for (size_t at = 0; at < text.size(); at += size)
        for (Part& part : parts.push(text.substr(at, size))) append(said, std::move(part));
      for (Part& part : parts.finish()) append(said, std::move(part));
      for (const Part& part : said)
        all += fmt::format("{}{}({})", static_cast<int>(part.kind), part.name, part.joined());
      return all;
    };
    const std::string whole = told(text.size());
    for (const size_t size : {1u, 2u, 5u, 13u}) ASSERT_EQ(told(size), whole) << with_mark_tokens(text);
  }
}

// A message of the prompt is continued.
TEST(Messages, ContinueThoseOfThePrompt) {
  Script script = answering("the end.<|return|>");
  script.prompt_end = "<|start|>assistant<|channel|>final<|message|>This is ";
  expect_told(script, asked(), {"", "the end.", "", "stop"});
  script = answering("hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>");
  script.prompt_end = "<|start|>assistant<|channel|>analysis<|message|>";
  expect_told(script, asked(), {"hm.", "So.", "", "stop"});
  script = answering("assistant<|channel|>final<|message|>So.<|return|>");
  script.prompt_end = "<|start|>";
  expect_told(script, asked(), {"", "So.", "", "stop"});
}

TEST(Messages, CallNothingWhereNoToolsAreShown) {
  const std::string call = " to=functions.g<|channel|>commentary json<|message|>{\"a\": 1}<|call|>";
  expect_told(answering(call), asked(), {"", "{\"a\": 1}", "", "stop"});
  expect_told(answering("<|channel|>analysis to=python code<|message|>print(1)<|call|>"), asked(),
              {"print(1)", "", "", "stop"});
}

// A tool that takes one text alone may be given it without JSON around it.
TEST(Messages, GiveCodeToToolsThatTakeATextAlone) {
  const Json python = Json::parse(R"([{"type": "function", "function": {"name": "python", "parameters":
      {"type": "object", "properties": {"code": {"type": "string"}}}}}])");
  expect_told(answering("<|channel|>analysis to=python code<|message|>print(\"1\")\n<|call|>"),
              asked({{"tools", python}}), {"", "", "python{\"code\":\"print(\\\"1\\\")\\n\"};", "tool_calls"});
}

TEST(Messages, StopInWhatTheyShow) {
  const std::string answer =
      "<|channel|>analysis<|message|>We look.<|end|><|start|>assistant<|channel|>commentary<|message|>I will "
      "see.<|end|><|start|>assistant<|channel|>final<|message|>A final look.<|return|>";
  const auto stopped = [&](const Json& stop, const std::string& text) {
    expect_told(answering(answer), asked({{"stop", stop}}), {"We look.", text, "", "stop"});
  };
  stopped({"look"}, "I will see.\n\nA final ");
  stopped({"final"}, "I will see.\n\nA ");
  stopped({"assistant", "commentary", "We"}, "I will see.\n\nA final look.");
  stopped({"see."}, "I will ");
  stopped({"<|end|>"}, "I will see.");
  stopped({"ook.<|end|>", "will see.<|end|>"}, "I ");
}

TEST(Messages, HaveTheirFormInTheLastOne) {
  const Json body = asked({{"response_format", kOneNumber}});
  const std::string thought = "<|channel|>analysis<|message|>{\"a\": 2} or so.<|end|><|start|>assistant";
  const std::string said = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant";
  const Told told{"{\"a\": 2} or so.", "{\"a\": 1}", "", "stop"};
  expect_told(answering(thought + "<|channel|>final<|message|>{\"a\": 1}<|return|>"), body, told);
  expect_told(answering(thought + "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}"), body, told);
  expect_told(answering(thought + said + "<|channel|>final<|message|>{\"a\": 1}"), body,
              {told.thought, "Wait.\n\n{\"a\": 1}", "", "stop"});
  Script longer = answering("<|channel|>final<|message|>{\"a\": 1}");
  longer.pieces.push_back(", and more");
  expect_told(longer, body, {"", "{\"a\": 1}", "", "stop"});
  Script begun = answering("Hm.<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}");
  begun.prompt_end = "<|start|>assistant<|channel|>analysis<|message|>";
  expect_told(begun, body, {"Hm.", "{\"a\": 1}", "", "stop"});
}

// A call that is asked for is imposed as the model writes calls.
TEST(Messages, CallTheToolThatIsAskedFor) {
  const std::string thought = "<|channel|>analysis<|message|>A note.<|end|><|start|>assistant";
  const std::string call =
      "<|channel|>commentary to=functions.save_note <|constrain|>json<|message|>{\"text\": \"a\"}<|call|>";
  const Told told{"A note.", "", "save_note{\"text\":\"a\"};", "tool_calls"};
  Json tools = kTools;
  tools.push_back({{"type", "function"}, {"function", {{"name", "other"}, {"parameters", {{"type", "object"}}}}}});
  expect_told(answering(thought + call), asked({{"tools", tools}, {"tool_choice", "required"}}), told);
  const auto serving = serve_script(answering(thought + call));
  const Json named = {{"type", "function"}, {"function", {{"name", "save_note"}}}};
  const Json body = asked({{"tools", tools}, {"tool_choice", named}});
  EXPECT_EQ(of_chat(serving->chat(body).json()), told);
  EXPECT_EQ(of_stream(serving->chat(with(body, {{"stream", true}}))), told);
}

// Headers are counted with the thought that they begin, and are no part of a text's tokens.
TEST(Messages, CountTheTokensOfThoughts) {
  const auto serving = serve_script(answering(kRows[0].answer));
  const Json usage = serving->chat(asked()).json()["usage"];
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 5);
  const Json answer =
      serving->ask(post("/v1/responses", R"({"input": "hello", "temperature": 0, "top_logprobs": 1})")).json();
  ASSERT_EQ(answer["output"].size(), 2u) << answer;
  const Json logprobs = answer["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 2u) << logprobs;  // The last token ends the answer.
  EXPECT_EQ(logprobs[0]["token"], "Paris.");
}

}  // namespace
}  // namespace fidelio::serve
