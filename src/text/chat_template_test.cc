#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/test_support.h"

namespace fidelio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ChatFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  std::string load_failure() {
    try {
      ChatTemplate::load(folder_);
      return "no error";
    } catch (const Error& e) {
      return e.what();
    }
  }
  static std::optional<int32_t> id_of(std::string_view token) {
    return token == "<end>" ? std::optional<int32_t>(5) : std::nullopt;
  }

  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  const std::vector<ChatMessage> hello_ = {{"user", "hi"}};
};

TEST_F(ChatFolder, BundledModel) {
  auto t = ChatTemplate::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->render(hello_), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(t->render(hello_, {.add_generation_prompt = false, .enable_thinking = {}, .tools_json = {}}),
            "<|im_start|>user\nhi<|im_end|>\n");
}

TEST_F(ChatFolder, SourcesInOrder) {
  EXPECT_FALSE(ChatTemplate::load(folder_));
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "d");
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", "bos_token": "<s>",
                                     "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "<s></s>False");
  write("chat_template.jinja", "file {{ bos_token }}\n");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "file <s>");
}

TEST_F(ChatFolder, AProcessorsTemplateIsReadWhereThereIsNoOther) {
  write("chat_template.json", R"({"chat_template": "{{ bos_token }}p"})");
  write("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "<s>p");
  EXPECT_THAT(chat_template_files(folder_), ElementsAre("chat_template.json"));
  write("tokenizer_config.json", R"({"chat_template": "t"})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "t");
  write("chat_template.jinja", "j");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "j");
  std::filesystem::remove(folder_ + "/chat_template.jinja");
  std::filesystem::remove(folder_ + "/tokenizer_config.json");
  write("chat_template.json", R"({"chat_template": {"default": "d", "tool_use": "u"}})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "d");
  write("chat_template.json", R"({"chat_template": 4})");
  EXPECT_THAT(load_failure(), HasSubstr("chat_template.json: chat_template: expected a string or a list"));
}

TEST_F(ChatFolder, ToolsHaveATemplateOfTheirOwn) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"},
                              {"name": "tool_use", "template": "{{ bos_token }}t{{ tools | length }}"}],
            "bos_token": "<s>"})");
  ChatOptions tools;
  tools.tools_json = R"([{"a": 1}])";
  const auto loaded = ChatTemplate::load(folder_);
  EXPECT_EQ(loaded->render(hello_), "d");
  EXPECT_EQ(loaded->render(hello_, tools), "<s>t1");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "\n{% if %}"}]})");
  EXPECT_THAT(load_failure(), HasSubstr("line 2"));
  write("chat_template.jinja", "file");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_, tools), "file");
}

// transformers writes more than one template in this way since version 4.51.
TEST_F(ChatFolder, FurtherTemplatesStandInAFolder) {
  ChatOptions tools;
  tools.tools_json = R"([{"a": 1}])";
  std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "t{{ tools | length }}");
  write("additional_chat_templates/rag.jinja", "r");
  write("additional_chat_templates/notes.txt", "n");
  EXPECT_THAT(load_failure(), HasSubstr("expected chat_template.jinja beside"));
  write("tokenizer_config.json", R"({"chat_template": "older"})");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "older");
  write("chat_template.jinja", "d");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_), "d");
  EXPECT_EQ(ChatTemplate::load(folder_)->render(hello_, tools), "t1");
  EXPECT_THAT(chat_template_files(folder_), ElementsAre("chat_template.jinja", "additional_chat_templates/rag.jinja",
                                                        "additional_chat_templates/tool_use.jinja"));
  const TextFiles in_memory("m.gguf",
                            {{"chat_template.jinja", "d"}, {"additional_chat_templates/tool_use.jinja", "t"}});
  EXPECT_EQ(ChatTemplate::load(in_memory)->render(hello_, tools), "t");
}

TEST_F(ChatFolder, OptionsReachTheTemplate) {
  ChatTemplate t("{{ add_generation_prompt }} {{ enable_thinking }} {{ tools | tojson }} {{ messages }}");
  EXPECT_EQ(t.render(hello_), "True  null [{'role': 'user', 'content': 'hi'}]");
  ChatOptions options{.add_generation_prompt = false, .enable_thinking = false, .tools_json = R"([{"z": 1, "a": 2}])"};
  EXPECT_EQ(t.render({}, options), "False False [{\"z\": 1, \"a\": 2}] []");
  options.tools_json = "{";
  EXPECT_THROW(t.render(hello_, options), Error);
  options.tools_json = "{}";
  EXPECT_THROW(t.render(hello_, options), Error);
  EXPECT_THROW(t.render_json(nlohmann::ordered_json::object(), nlohmann::ordered_json::object()), Error);
}

TEST_F(ChatFolder, MalformedFilesAreNamed) {
  write("tokenizer_config.json", "{");
  EXPECT_THAT(load_failure(), HasSubstr("tokenizer_config.json: not valid JSON"));
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(load_failure(), HasSubstr("expected a string or a list, found number"));
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THAT(load_failure(), HasSubstr("named \"default\""));
  write("tokenizer_config.json", R"({"chat_template": ["x"]})");
  EXPECT_THAT(load_failure(), HasSubstr("{name, template}"));
  write("tokenizer_config.json", R"({"chat_template": "x", "bos_token": 1})");
  EXPECT_THAT(load_failure(), HasSubstr("bos_token"));
  write("tokenizer_config.json", R"({"chat_template": "\n{% if %}"})");
  EXPECT_THAT(load_failure(), HasSubstr("line 2"));
}

TEST_F(ChatFolder, StopTokensAreAUnion) {
  EXPECT_TRUE(stop_token_ids(folder_, id_of).empty());
  write("config.json", R"({"eos_token_id": 9})");
  write("generation_config.json", R"({"eos_token_id": [7, 9, 2]})");
  write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  EXPECT_THAT(stop_token_ids(folder_, id_of), ElementsAre(2, 5, 7, 9));
  write("tokenizer_config.json", R"({"eos_token": "<unknown>"})");
  EXPECT_THAT(stop_token_ids(folder_, id_of), ElementsAre(2, 7, 9));
  write("config.json", R"({"eos_token_id": "x"})");
  EXPECT_THROW(stop_token_ids(folder_, id_of), Error);
}

// Models that also see pictures have the text model's ids in a part of config.json, and some files forget the end of a
// turn, which ChatML's templates write.
TEST_F(ChatFolder, StopTokensAreThoseOfTheTextModelAndOfTheTemplate) {
  const auto id_in_chatml = [](std::string_view token) {
    return token == "<|im_end|>" ? std::optional<int32_t>(6) : std::nullopt;
  };
  write("config.json", R"({"text_config": {"eos_token_id": 4}, "vision_config": {"eos_token_id": 3}})");
  EXPECT_THAT(stop_token_ids(folder_, id_in_chatml), ElementsAre(4));
  write("chat_template.jinja", "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>\n' }}{% endfor %}");
  EXPECT_THAT(stop_token_ids(folder_, id_in_chatml), ElementsAre(4, 6));
  EXPECT_THAT(stop_token_ids(folder_, id_of), ElementsAre(4));
  // gpt-oss ends an answer with a call, but not with <|end|>. Gemma 4 ends one where a result of a tool follows.
  const auto id_of_end = [](std::string_view token) {
    constexpr std::string_view ends[] = {"<|end|>", "<|return|>", "<|call|>", "<turn|>", "<|tool_response>"};
    const auto at = std::find(std::begin(ends), std::end(ends), token);
    return at == std::end(ends) ? std::nullopt : std::optional(static_cast<int32_t>(at - std::begin(ends)) + 10);
  };
  write("chat_template.jinja", "{{ '<|start|>a<|end|>' }}{% if tools %}<|call|>{% endif %}<|return|>");
  EXPECT_THAT(stop_token_ids(folder_, id_of_end), ElementsAre(4, 11, 12));
  write("chat_template.jinja", "{{ '<|turn>model' }}<turn|>{% if tools %}<|tool_response>{% endif %}");
  EXPECT_THAT(stop_token_ids(folder_, id_of_end), ElementsAre(4, 13, 14));
  write("config.json", R"({"text_config": {"eos_token_id": [-1]}})");
  EXPECT_THROW(stop_token_ids(folder_, id_of), Error);
}

TEST_F(ChatFolder, GenerationDefaults) {
  EXPECT_FALSE(GenerationDefaults::load(folder_).temperature);
  write("generation_config.json", R"({"do_sample": true, "temperature": 1, "top_k": 20, "top_p": 0.8, "min_p": null,
                                      "repetition_penalty": 1.05})");
  GenerationDefaults d = GenerationDefaults::load(folder_);
  EXPECT_EQ(d.do_sample, true);
  EXPECT_EQ(d.temperature, 1.0);
  EXPECT_EQ(d.top_k, 20);
  EXPECT_EQ(d.top_p, 0.8);
  EXPECT_EQ(d.min_p, std::nullopt);
  EXPECT_EQ(d.repetition_penalty, 1.05);
  write("generation_config.json", R"({"top_k": "many"})");
  EXPECT_THROW(GenerationDefaults::load(folder_), Error);
}

// The tests below are about the arguments of calls in the wire form.
std::string rendered_call(const std::string& source, const std::string& arguments) {
  const nlohmann::ordered_json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "u"}},
                                           {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}}};
  const std::string each =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}" + source + "{% endfor %}{% endfor %}";
  return ChatTemplate(each).render_wire(messages, nlohmann::ordered_json::object());
}

TEST(ChatTemplate, GivesArgumentsAsTheTemplateWantsThem) {
  const std::string text = R"({"command": "ls"})";
  EXPECT_EQ(rendered_call("{{ c.function.arguments.command }}", text), "ls");
  EXPECT_EQ(rendered_call("{{ c.function | tojson }}", text), R"({"name": "f", "arguments": {"command": "ls"}})");
  EXPECT_EQ(rendered_call("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", text),
            "command=ls");
  // DeepSeek's templates append the arguments to a text, others print or join them. They need the text that the client
  // sent.
  EXPECT_EQ(rendered_call("{{ '```json\n' + c['function']['arguments'] + '\n```' }}", text),
            "```json\n" + text + "\n```");
  EXPECT_EQ(rendered_call("{{ '' + c.function.arguments }}", "{}"), "{}");
  EXPECT_EQ(rendered_call("{{ c.function.arguments }}", text), text);
  EXPECT_EQ(rendered_call("{{ 'a' ~ c.function.arguments }}", text), "a" + text);
  EXPECT_EQ(rendered_call("{{ c.function.arguments | trim }}", text), text);
  // A template that accepts both forms gets first the one that most templates are written for.
  const char* either =
      "{% if c.function.arguments is string %}text{% else %}{{ c.function.arguments | tojson }}{% endif %}";
  EXPECT_EQ(rendered_call(either, text), text);
  EXPECT_EQ(rendered_call("{{ c.function.arguments | tojson }}", ""), "{}");
  EXPECT_THROW(rendered_call("{{ raise_exception('no') }}", text), Error);
}

TEST(ChatTemplate, KeepsTheDigitsOfArguments) {
  const std::string text =
      R"({"a": 1.0, "b": 1e400, "c": 12345678901234567890, "d": -0.0, "e": [0.10, 1E-2], "f": -7})";
  EXPECT_EQ(rendered_call("{{ c.function.arguments | tojson }}", text), text);
  EXPECT_EQ(rendered_call("{{ c.function.arguments.c }} {{ c.function.arguments.e[0] }}", text),
            "12345678901234567890 0.10");
  EXPECT_EQ(rendered_call("{{ c.function.arguments.f + 1 }} {{ c.function.arguments.a + 1 }}", text), "-6 2.0");
}

}  // namespace
}  // namespace fidelio
