// In these tests answers that a chat template writes into its history are read back. A model writes what it saw there,
// so a thought, a text and calls must come out as they went in, wherever the stream is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/file.h"
#include "serve/parts/answer_parts.h"
#include "serve/parts/reading.h"
#include "text/chat_template.h"

namespace fidelio::serve {
namespace {

// The schema of f names the kinds of its arguments; g has none.
const Json kWrittenTools = Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d",
  "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"},
    "ratio": {"type": "number"}, "flag": {"type": "boolean"}, "list": {"type": "array"}, "object": {"type": "object"},
    "other": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}},
  {"type": "function", "function": {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}}}])");

class Writer {
 public:
  explicit Writer(unsigned seed) : random_(seed) {}

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  std::string words(std::initializer_list<const char*> list) {
    std::string text;
    for (size_t n = below(8); n > 0; --n) text += *(list.begin() + below(list.size()));
    return text;
  }
  // A value may quote every mark, except where the form goes on behind it: nobody could tell that from the end.
  std::string value() {
    for (;;) {
      const std::string text = words({"a",
                                      " ",
                                      "\n",
                                      "\n\n",
                                      "é",
                                      "</parameter>",
                                      "<parameter=",
                                      "<parameter=text>",
                                      "<function=f>",
                                      "</function>",
                                      "<tool_call>",
                                      "</tool_call>",
                                      "</think>",
                                      "12",
                                      "True",
                                      "{\"x\": 1}",
                                      "\"",
                                      "\\n",
                                      "<b>",
                                      "🙂"});
      std::string close = text;
      std::erase_if(close, [](char c) { return kSpace.find(c) != std::string_view::npos; });
      const auto has = [&](const char* mark) { return close.find(mark) != std::string::npos; };
      if (!has("</parameter><parameter=") && !has("</parameter></function>") && !has("</function></tool_call>"))
        return text;
    }
  }
  Json arguments() {
    Json all = Json::object();
    const auto add = [&](const char* key, Json one) {
      if (below(2) == 0) all[key] = std::move(one);
    };
    add("text", value());
    add("count", below(2) == 0 ? Json(-7) : Json(12345678901234));
    add("ratio", below(2) == 0 ? Json(0.25) : Json(3));
    add("flag", below(2) == 0);
    add("list", Json::array({1, value(), nullptr, Json::array()}));
    add("object", {{"key", value()}, {"more", {{"deep", true}}}});
    add("other", below(2) == 0 ? Json() : Json(4));
    return all;
  }
  Json calls() {
    Json all = Json::array();
    for (size_t n = below(4); n > 0; --n) {
      const bool f = below(4) > 0;
      const std::string json = (f ? arguments() : Json::object()).dump();
      all.push_back({{"type", "function"}, {"function", {{"name", f ? "f" : "g"}, {"arguments", json}}}});
    }
    return all;
  }

 private:
  std::mt19937 random_;
};

std::string rendered(const ChatTemplate& chat, const Json& messages, bool prompts) {
  return chat.render_wire(messages, {{"tools", kWrittenTools}, {"add_generation_prompt", prompts}});
}

// Returns the parts of an answer that arrives in pieces of a few bytes.
std::vector<Part> parts_of(const PartsRules& rules, const std::string& answer, Writer& writer) {
  AnswerParts parts(rules);
  std::vector<Part> all;
  const auto take = [&](std::vector<Part> more) {
    for (Part& part : more) append(all, std::move(part));
  };
  for (size_t at = 0, size = 0; at < answer.size(); at += size) {
    size = 1 + writer.below(12);
    take(parts.push(answer.substr(at, size)));
  }
  take(parts.finish());
  return all;
}

TEST(WrittenCalls, AreReadAsTheyWereMeant) {
  const Json fixture = Json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/chat/families.json"));
  const auto tools = std::make_shared<Tools>();
  for (const Json& tool : kWrittenTools) tools->push_back({tool["function"]["name"], tool["function"]["parameters"]});
  Writer writer(7);
  size_t called = 0;
  for (const char* family : {"qwen3", "qwen3-coder", "qwen3.5", "qwen3.6", "qwen3.8"}) {
    const ChatTemplate chat(fixture["templates"][family].get<std::string>());
    const bool thinks = chat.source().find("<think>") != std::string::npos;
    for (int round = 0; round < 400; ++round) {
      const Json question = {{"role", "user"}, {"content", "q"}};
      const std::string text = trimmed(writer.words({"Yes", " ", "\n", "<b>", "it is", "</p>", "é"}));
      const std::string thought =
          thinks ? trimmed(writer.words({"Hm", " ", "\n", "<tool_call>", "<function=f>", "so", "é"})) : "";
      Json said = {{"role", "assistant"}, {"content", text}, {"reasoning_content", thought}};
      if (Json calls = writer.calls(); !calls.empty()) said["tool_calls"] = std::move(calls);
      const std::string prompt = rendered(chat, Json::array({question}), true), end = "<|im_end|>\n";
      std::string whole = rendered(chat, Json::array({question, said}), false);
      ASSERT_TRUE(whole.starts_with(prompt) && whole.ends_with(end)) << family << "\n" << whole;
      const std::string answer = whole.substr(prompt.size(), whole.size() - end.size() - prompt.size());

      PartsRules rules{.thinking = {}, .tools = tools, .one_call = false};
      rules.thinking.marks = {thinking_marks()[0]};
      rules.thinking.opened = opened_by(prompt, thinking_marks());
      std::string thought_read, text_read;
      Json calls_read = Json::array(), meant = Json::array();
      for (const Part& part : parts_of(rules, answer, writer)) {
        if (part.kind == Part::Kind::thought) thought_read += part.text;
        if (part.kind == Part::Kind::text) text_read += part.text;
        if (part.kind == Part::Kind::call) calls_read.push_back({part.name, Json::parse(part.text)});
      }
      for (const Json& call : said.value("tool_calls", Json::array()))
        meant.push_back({call["function"]["name"], Json::parse(call["function"]["arguments"].get<std::string>())});
      called += meant.size();
      EXPECT_EQ(trimmed(thought_read), thought) << family << "\n" << answer;
      EXPECT_EQ(trimmed(text_read), text) << family << "\n" << answer;
      ASSERT_EQ(calls_read, meant) << family << "\n" << answer;
    }
  }
  EXPECT_GT(called, 1000u);
}

}  // namespace
}  // namespace fidelio::serve
