#include "text/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "text/conversation.h"

namespace fidelio {
namespace {

using Sent = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

const ChatTemplate& family(const std::string& name) {
  static const Sent fixture = Sent::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/chat/families.json"));
  static std::map<std::string, ChatTemplate> all;
  return all.try_emplace(name, fixture["templates"][name].get<std::string>()).first->second;
}

std::string prompt_of(const std::string& name, const Sent& messages) {
  const ChatTemplate& chat = family(name);
  return chat.render_wire(wire_messages(messages, chat), {{"add_generation_prompt", true}});
}

Sent call_of(const std::string& name, const std::string& id) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", R"({"a": 1.50})"}}}};
}
Sent result_of(const std::string& id, const std::string& text) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
}

// A client sends two calls of one message back, with their results in another order.
const Sent kCalls = {{{"role", "system"}, {"content", "Be brief."}},
                     {{"role", "developer"}, {"content", "Be kind."}},
                     {{"role", "user"}, {"content", "go"}},
                     {{"role", "assistant"},
                      {"content", "Two."},
                      {"reasoning_content", "Both."},
                      {"tool_calls", {call_of("f", "1"), call_of("g", "2")}}},
                     result_of("2", "second"),
                     result_of("1", "first")};

TEST(History, OfGptOssHasOneCallAMessage) {
  const std::string prompt = prompt_of("gpt-oss", kCalls);
  EXPECT_THAT(prompt, HasSubstr("# Instructions\n\nBe brief.\n\nBe kind.\n\n<|end|>"));
  EXPECT_THAT(
      prompt,
      HasSubstr("<|start|>user<|message|>go<|end|><|start|>assistant<|channel|>analysis<|message|>Both.\n\nTwo.<|end|>"
                "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1.50}<|call|>"
                "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"first\"<|end|>"
                "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{\"a\": 1.50}<|call|>"
                "<|start|>functions.g to=assistant<|channel|>commentary<|message|>\"second\"<|end|>"
                "<|start|>assistant"));
  // The thought of a turn that has ended is left out.
  Sent ended = kCalls;
  ended.push_back({{"role", "assistant"}, {"content", "Done."}, {"reasoning_content", "So."}});
  ended.push_back({{"role", "user"}, {"content", "more"}});
  EXPECT_THAT(prompt_of("gpt-oss", ended), Not(HasSubstr("Both.")));
  EXPECT_THAT(prompt_of("gpt-oss", ended), HasSubstr("final<|message|>Done.<|end|>"));
}

TEST(History, OfGptOssHasInstructionsAtTheBeginning) {
  Sent late = kCalls;
  late.push_back({{"role", "system"}, {"content", "Stop."}});
  try {
    prompt_of("gpt-oss", late);
    FAIL();
  } catch (const FieldError& error) {
    EXPECT_EQ(error.field(), "messages[6].role");
  }
}

TEST(History, OfGptOssMayHaveToolsWithoutADescription) {
  Sent record = {{"messages", {{{"role", "user"}, {"content", "go"}}}},
                 {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  EXPECT_THAT(render_wire_record(family("gpt-oss"), record), HasSubstr("// \ntype f = () => any;"));
}

// The results stand behind the calls in all of Gemma 4's templates, whichever way they read them.
TEST(History, OfGemma4HasResultsBehindTheCalls) {
  for (const char* name : {"gemma4", "gemma4-first"}) {
    Sent messages = kCalls;
    messages.erase(0);
    messages[2].erase("content");
    EXPECT_THAT(prompt_of(name, messages),
                HasSubstr("<|turn>model\n<|channel>thought\nBoth.\n<channel|><|tool_call>call:f{a:1.50}<tool_call|>"
                          "<|tool_call>call:g{a:1.50}<tool_call|>"
                          "<|tool_response>response:g{value:<|\"|>second<|\"|>}<tool_response|>"
                          "<|tool_response>response:f{value:<|\"|>first<|\"|>}<tool_response|>"))
        << name;
  }
}

TEST(History, NamesThoughtsAsTheTemplateDoes) {
  const auto shown = [](const char* source, const char* given) {
    const Sent messages = {{{"role", "assistant"}, {"content", ""}, {given, "Hm"}}};
    const ChatTemplate chat(std::string("{% for message in messages %}") + source + "{% endfor %}");
    return chat.render_wire(wire_messages(messages, chat), Sent::object());
  };
  for (const char* given : {"reasoning_content", "reasoning", "thinking"}) {
    EXPECT_EQ(shown("{{ message.reasoning_content }}", given), "Hm");
    EXPECT_EQ(shown("{{ message['thinking'] }}", given), "Hm");
    EXPECT_EQ(shown("{{ message.get('reasoning') }}", given), "Hm");
  }
}

}  // namespace
}  // namespace fidelio
