// In these tests a scripted model writes answers in every family's form, token by token, and each route returns them
// streamed and whole. docs/serving.md has the table of forms, of which each row is tested here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "serve/parts/told.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;
using Pieces = std::vector<std::string>;

struct FormRow {
  Pieces pieces, specials;
  std::string calls, text = "";
};
// Each row is a form as the models of its family write it, with the arguments that must result.
const std::vector<FormRow> kForms = {
    // This is the form of Hermes, Qwen 2.5 and 3, SmolLM3 and Granite 4. The first row quotes its own mark.
    {{"<tool_call>", "\n{\"name\": \"save_note\", \"arguments\": {\"text\": \"close with ", "</tool_call>",
      " here\"}}\n", "</tool_call>\n"},
     {},
     "save_note{\"text\":\"close with </tool_call> here\"};"},
    {{"I note it.\n", "<tool_call>", "\n{\"name\": \"save_note\", ", "\"arguments\": {\"text\": \"a\"}}",
      "\n</tool_call>", "\n", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n"},
     {"<tool_call>"},
     "save_note{\"text\":\"a\"};g{};",
     "I note it."},
    // This is the form of Qwen3-Coder. Types are those of the schema, and marks inside a value end nothing.
    {{"<tool_call>\n", "<function=save_note>\n", "<parameter=text>\n", "buy milk\n", "</parameter>\n", "</function>\n",
      "</tool_call>"},
     {},
     "save_note{\"text\":\"buy milk\"};"},
    {{"<tool_call>\n<function=save_note>\n<parameter=text>\n", "a </parameter> b\n</parameter>\n</function> c",
      "\n</parameter>",
      "\n<parameter=copies>\n3\n</parameter>\n<parameter=urgent>\nTrue\n</parameter>\n<parameter=tags>\n[\"x\", ",
      "\"y\"]\n</parameter>\n<parameter=weight>\n1.50\n</parameter>\n</function>", "\n</tool_call>\n"},
     {},
     "save_note{\"text\":\"a </parameter> b\\n</parameter>\\n</function> "
     "c\",\"copies\":3,\"urgent\":true,\"tags\":[\"x\",\"y\"],\"weight\":1.50};"},
    {{"<function=save_note>\n<parameter=text>\n", "12", "\n</parameter>\n</function>", "\n</tool_call>"},
     {},
     "save_note{\"text\":\"12\"};"},
    // Qwen3.5 and its successors call several tools one after the other.
    {{"Both.\n\n", "<tool_call>", "\n<function=save_note>\n<parameter=text>\n", "  a\n\n{\"b\": 1}\n", "</parameter>\n",
      "<parameter=weight>\nNone\n</parameter>\n</function>\n", "</tool_call>", "\n", "<tool_call>\n<function=g>\n",
      "</function>\n</tool_call>"},
     {},
     "save_note{\"text\":\"  a\\n\\n{\\\"b\\\": 1}\",\"weight\":null};g{};",
     "Both."},
    // Here two functions stand between one pair of marks, and the next rows lack the marks behind values.
    {{"<tool_call>\n<function=save_note>\n<parameter=text>\na\n", "</parameter>\n</function>\n",
      "<function=g>\n<parameter=x>\n1\n</parameter>\n</function>\n", "</tool_call>"},
     {},
     "save_note{\"text\":\"a\"};g{\"x\":\"1\"};"},
    {{"<tool_call>\n<function=save_note>\n<parameter=text>\nls -l\n", "<parameter=copies>\n2\n", "</function>\n",
      "</tool_call>"},
     {},
     "save_note{\"text\":\"ls -l\",\"copies\":2};"},
    // The tool has no parameter `other`, and has got its text already, so these lines are the value's own.
    {{"<tool_call>\n<function=save_note>\n<parameter=text>\na\n", "<parameter=other>\n", "<parameter=text>\nb\n",
      "</function>\n</tool_call>"},
     {},
     "save_note{\"text\":\"a\\n<parameter=other>\\n<parameter=text>\\nb\"};"},
    // These are Llama 3.1's form of a function, JSON by itself, JSON after its tag, and the lists of 3.2.
    {{"<function=save_note>", "{\"text\": \"</function>\"}", "</function>"},
     {},
     "save_note{\"text\":\"</function>\"};"},
    {{"{\"name\": \"save_note\", ", "\"parameters\": {\"text\": \"a\"}}"}, {}, "save_note{\"text\":\"a\"};"},
    {{"<|python_tag|>", "{\"name\": \"save_note\", \"parameters\": {\"text\": \"a\"}}; ",
      "{\"name\": \"save_note\", \"parameters\": {\"copies\": 2}}"},
     {"<|python_tag|>"},
     "save_note{\"text\":\"a\"};save_note{\"copies\":2};"},
    {{"<|python_tag|>", "save_note.call(", "text=\"a)\")"}, {"<|python_tag|>"}, "save_note{\"text\":\"a)\"};"},
    {{"[save_note(text='it\\'s', ", "tags=['x', \"y\"], urgent=True), ", "save_note(weight=None, copies=-3)]"},
     {},
     "save_note{\"text\":\"it's\",\"tags\":[\"x\",\"y\"],\"urgent\":true};save_note{\"weight\":null,\"copies\":-3};"},
    // These are Mistral's old form and those of 2025.
    {{"[TOOL_CALLS]", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"[TOOL_CALLS]\"}}",
      ", {\"name\": \"g\", \"arguments\": {}}]"},
     {"[TOOL_CALLS]"},
     "save_note{\"text\":\"[TOOL_CALLS]\"};g{};"},
    {{"[TOOL_CALLS]", "save_note", "[ARGS]", "{\"text\": \"[ARGS] {\"}"},
     {"[TOOL_CALLS]", "[ARGS]"},
     "save_note{\"text\":\"[ARGS] {\"};"},
    {{"[TOOL_CALLS]", "save_note", "[CALL_ID]", "abcdefghi", "[ARGS]", "{\"text\": \"a\"}"},
     {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
     "save_note{\"text\":\"a\"};"},
    // These are the forms of DeepSeek R1 and V3.1.
    {{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
      "save_note\n```json\n{\"text\": \"```\"}\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
      "<｜tool▁calls▁end｜>"},
     "save_note{\"text\":\"```\"};"},
    {{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "save_note", "<｜tool▁sep｜>", "{\"text\": \"a\"}",
      "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
      "<｜tool▁calls▁end｜>"},
     "save_note{\"text\":\"a\"};"},
    // These are the forms of Granite 3, Phi-4-mini (both of them), Nemotron and Hunyuan.
    {{"<|tool_call|>", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}}]"},
     {"<|tool_call|>"},
     "save_note{\"text\":\"a\"};"},
    {{"<|tool_call|>", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}}]", "<|/tool_call|>"},
     {"<|tool_call|>", "<|/tool_call|>"},
     "save_note{\"text\":\"a\"};"},
    {{"functools", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}}]"}, {}, "save_note{\"text\":\"a\"};"},
    {{"<TOOLCALL>", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}}]", "</TOOLCALL>"},
     {},
     "save_note{\"text\":\"a\"};"},
    {{"<tool_calls>", "[{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}}]", "</tool_calls>"},
     {},
     "save_note{\"text\":\"a\"};"},
    // This is the form of Gemma 3 as its makers prompt it; FunctionGemma has a test of its own.
    {{"```tool_code\n", "print(save_note(text=\"a\", copies=2))\n", "```"},
     {},
     "save_note{\"text\":\"a\",\"copies\":2};"},
    {{"```json\n", "{\"name\": \"save_note\", \"parameters\": {\"text\": \"a\"}}\n", "```"},
     {},
     "save_note{\"text\":\"a\"};"},
    // These are the forms of OLMo 3, GLM and Seed-OSS.
    {{"<function_calls>\n", "save_note(text=\"a\")\nsave_note(copies=1)\n", "</function_calls>"},
     {},
     "save_note{\"text\":\"a\"};save_note{\"copies\":1};"},
    {{"<tool_call>save_note\n", "<arg_key>text</arg_key>\n<arg_value>", "a </arg_value> b",
      "</arg_value>\n<arg_key>copies</arg_key>\n", "<arg_value>2</arg_value>\n", "</tool_call>"},
     {},
     "save_note{\"text\":\"a </arg_value> b\",\"copies\":2};"},
    {{"<seed:tool_call>\n<function=save_note>\n<parameter=text>", "a</parameter>\n</function>\n", "</seed:tool_call>"},
     {},
     "save_note{\"text\":\"a\"};"},
};

TEST(ScriptedAnswers, CallToolsInEveryFamilysForm) {
  for (const FormRow& row : kForms)
    expect_told({row.pieces, row.specials}, asked({{"tools", kTools}}), {"", row.text, row.calls, "tool_calls"});
}

TEST(ScriptedAnswers, CallToolsInFunctionGemmasForm) {
  expect_told({{"<start_function_call>", "call:save_note{text:", "<escape>", "a, {b}",
                "<escape>,copies:2,tags:[<escape>x", "<escape>]}", "<end_function_call>"},
               {"<start_function_call>", "<end_function_call>", "<escape>"}},
              asked({{"tools", kTools}}),
              {"", "", "save_note{\"text\":\"a, {b}\",\"copies\":2,\"tags\":[\"x\"]};", "tool_calls"});
}

// Texts stand between marks of their own, and everything else is bare. Gemma 4 ends its answer where a result follows.
TEST(ScriptedAnswers, CallToolsInGemma4sForm) {
  const Pieces marks = {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_response>", "<|channel>", "<channel|>"};
  const std::string q = "<|\"|>";
  const auto told = [&](const Pieces& pieces, const Told& expected) {
    expect_told(
        {.pieces = pieces, .specials = marks, .template_note = "<|channel>thought", .stops = {"<|tool_response>"}},
        asked({{"tools", kTools}}), expected);
  };
  told({"<|tool_call>", "call:save_note{copies:2,tags:[", q, "x", q, ",", q, "y, ]", q, "],text:", q,
        "a: {\"b\"}, <c>\n</tool_call> é", q, ",urgent:true,weight:1.50}", "<tool_call|>", "<|tool_response>", "lost"},
       {"", "",
        "save_note{\"copies\":2,\"tags\":[\"x\",\"y, ]\"],\"text\":\"a: {\\\"b\\\"}, <c>\\n</tool_call> "
        "é\",\"urgent\":true,\"weight\":1.50};",
        "tool_calls"});
  told({"<|tool_call>", "call:g{a:{b:[{c:null},[],-0.0,12345678901234567890],", q, "d e", q,
        ":{}},f:false,h:None,i:", q, q, "}", "<tool_call|>", "<|tool_call>", "call:ns:save_note{}", "<tool_call|>"},
       {"", "",
        "g{\"a\":{\"b\":[{\"c\":null},[],-0.0,12345678901234567890],\"d "
        "e\":{}},\"f\":false,\"h\":null,\"i\":\"\"};save_note{};",
        "tool_calls"});
  told({"<|channel>", "thought\n", "A note.\n", "<channel|>", "Yes.", "<|tool_call>", "call:g{}", "<tool_call|>"},
       {"A note.\n", "Yes.", "g{};", "tool_calls"});
  told({"<|channel>", "thought", "\n", "<channel|>", "Yes."}, {"", "Yes.", "", "stop"});
  // These are no calls.
  const std::string cut = "<|tool_call>call:g{a:" + q + "b}";
  told({"<|tool_call>", "call:g{a:", q, "b}"}, {"", cut, "", "stop"});
  told({"<|tool_call>", "g{}", "<tool_call|>"}, {"", "<|tool_call>g{}<tool_call|>", "", "stop"});
}

TEST(ScriptedAnswers, ThatCallNoToolStayText) {
  for (const Pieces& pieces :
       {Pieces{"{\"name\": \"Alice\", ", "\"age\": 3}"}, Pieces{"[1, 2", ", 3]"}, Pieces{"[citation](needed)", " here"},
        Pieces{"<tool_call>", "no call</tool_call>", " end"}, Pieces{"<function=", "no name"},
        Pieces{"```json\n", "{\"a\": 1}\n", "```"}, Pieces{"Use ```tool_code", " like f(x)"},
        Pieces{"[save_note(text=\"a\")]", " is how"},
        Pieces{"<tool_call>", "{\"name\": \"save_note\", \"arguments\": {\"text\": \"a\"}", "</tool_call>"},
        Pieces{"<tool_call>\n<function=save_note>\n", "<parameter=text\nls</parameter>",
               "\n</function></tool_call>"}}) {
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    expect_told({pieces}, asked({{"tools", kTools}}), {"", text, "", "stop"});
  }
}

TEST(ScriptedAnswers, KeepTheDigitsOfNumbers) {
  const std::string arguments =
      "{\"a\":1.0,\"b\":1e400,\"c\":12345678901234567890,\"d\":-0.0,\"e\":[0.10,1E-2],\"f\":\"x\\u00e9\"}";
  expect_told({{"<tool_call>", "{\"name\": \"f\", \"arguments\": ", arguments, "}</tool_call>"}},
              asked({{"tools", kTools}}), {"", "", "f" + arguments + ";", "tool_calls"});
}

TEST(ScriptedAnswers, HaveMarksThatAreDocumented) {
  std::string page = read_text_file(FIDELIO_SOURCE_DIR "/docs/serving.md");
  // Cells of a table have this escape.
  for (size_t at = 0; (at = page.find("\\|", at)) != std::string::npos; ++at) page.erase(at, 1);
  for (const ThinkingMarks& marks : thinking_marks()) {
    EXPECT_THAT(page, HasSubstr(std::string(marks.begin.substr(0, marks.begin.find(' ')))));
    EXPECT_THAT(page, HasSubstr(std::string(marks.end.substr(0, marks.end.find(' ')))));
  }
  for (const CallForm& form : call_forms())
    EXPECT_THAT(page, HasSubstr(std::string(form.mark.substr(form.mark.find_first_not_of('`')))));
}

// The tests below are about thinking.
TEST(ScriptedAnswers, ThinkBetweenEveryFamilysMarks) {
  for (const ThinkingMarks& marks : thinking_marks())
    for (const bool special : {false, true}) {
      const std::string begin(marks.begin), end(marks.end);
      const Script script{{begin, "I should be short.", end, "\n\n", "Paris"}, special ? Pieces{begin, end} : Pieces{}};
      expect_told(script, asked(), {"I should be short.", "Paris", "", "stop"});
      // The model does not write the opening mark of a thought if the prompt has already opened it.
      const Script opened{{"Short", end, "Paris"}, special ? Pieces{begin, end} : Pieces{}, begin};
      expect_told(opened, asked(), {"Short", "Paris", "", "stop"});
    }
  expect_told(
      {{"<think>\n", "I call it <tool_call>", "\n</think>\n\n", "<tool_call>", "{\"name\": \"g\"}", "</tool_call>"}},
      asked({{"tools", kTools}}), {"\nI call it <tool_call>\n", "", "g{};", "tool_calls"});
}

// Qwen3.5 forgets now and then to end its thought before it calls. Other calls in a thought are quotations.
TEST(ScriptedAnswers, CallAtTheEndOfAThought) {
  const Pieces call = {"<tool_call>", "\n<function=save_note>\n<parameter=text>\na\n</parameter>\n</function>\n",
                       "</tool_call>"};
  std::string quoted;
  for (const std::string& piece : call) quoted += piece;
  const auto with_call = [&](Pieces pieces, const Pieces& behind) {
    pieces.insert(pieces.end(), call.begin(), call.end());
    pieces.insert(pieces.end(), behind.begin(), behind.end());
    return Script{pieces, {}, "<think>\n"};
  };
  const Json body = asked({{"tools", kTools}});
  const std::string called = "save_note{\"text\":\"a\"};";
  for (const Pieces& behind : {Pieces{}, Pieces{" \n", "</think>"}, Pieces{"\n</th", "ink>\n\n"}})
    expect_told(with_call({"I keep it.\n"}, behind), body, {"I keep it.\n", "", called, "tool_calls"});
  expect_told(
      with_call({"I keep both."}, {" \n", "<tool_call>{\"name\": \"save_note\", \"arguments\": {}}</tool_call>"}), body,
      {"I keep both.", "", called + "save_note{};", "tool_calls"});
  expect_told(with_call({"I would write "}, {" but wait.", "</think>", "No."}), body,
              {"I would write " + quoted + " but wait.", "No.", "", "stop"});
  expect_told(with_call({"I write "}, {"\n</think>\n\n", "<tool_call>\n", "{\"name\": \"g\"}", "\n</tool_call>"}), body,
              {"I write " + quoted + "\n", "", "g{};", "tool_calls"});
  expect_told({{"Perhaps ", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"}, {}, "<think>\n"}, body,
              {"Perhaps <tool_call>\n<function=unknown>\n</function>\n</tool_call>", "", "", "stop"});
  expect_told(with_call({"No tools. "}, {}), asked(), {"No tools. " + quoted, "", "", "stop"});
}

TEST(ScriptedAnswers, StopInWhatTheySayAlone) {
  const Script thinks{{"<think>\n", "First,\n\nlook.", "\n</think>\n\n", "Paris", " is\n\n", "nice to look at"}};
  const auto stopped = [&](const Json& stop, const std::string& text) {
    expect_told(thinks, asked({{"stop", stop}}), {"\nFirst,\n\nlook.\n", text, "", "stop"});
  };
  stopped({"look"}, "Paris is\n\nnice to ");
  stopped({"\n\n"}, "Paris is");
  stopped({"First", " is"}, "Paris");
  stopped({"nowhere"}, "Paris is\n\nnice to look at");
  expect_told({{"First, look.", "\n</think>\n\n", "Paris, look"}, {}, "<think>\n"}, asked({{"stop", {"look"}}}),
              {"First, look.\n", "Paris, ", "", "stop"});
  // Without a thought the whole text is the answer.
  expect_told({{"\n<th", "is> way"}}, asked({{"stop", {"<th"}}}), {"", "\n", "", "stop"});
}

TEST(ScriptedAnswers, StopAtSpecialTokens) {
  const Script script{{"Hello", "\n", "<|start|>", "user", " says"}, {"<|start|>"}};
  const auto stopped = [&](const Json& stop, const std::string& text) {
    expect_told(script, asked({{"stop", stop}}), {"", text, "", "stop"});
  };
  stopped({"<|start|>"}, "Hello\n");
  stopped({"\n<|start|>user"}, "Hello");
  stopped({"<|start|>nobody"}, "Hello\nuser says");
  stopped({"start"}, "Hello\nuser says");  // It is not in the text.
  stopped({"\nuser"}, "Hello");
  // Stop strings have no effect inside a thought.
  expect_told({{"[THINK]", "Hm ", "<|start|>", "so", "[/THINK]", "Paris", "<|stop|>", "xyz"},
               {"[THINK]", "[/THINK]", "<|start|>", "<|stop|>"}},
              asked({{"stop", {"<|start|>", "<|stop|>"}}}), {"Hm so", "Paris", "", "stop"});
}

// The tests below are about forms.
TEST(ScriptedAnswers, HaveTheirFormBehindTheThought) {
  const Json body = asked({{"response_format", kOneNumber}});
  const Told expected{"\nLet me think. ", "{\"a\": 1}", "", "stop"};
  expect_told({{"<think>\n", "Let me think. ", "</think>\n\n", "{\"a\": ", "1}"}}, body, expected);
  expect_told({{"Let me think. ", "</think>\n\n", "{\"a\": ", "1}"}, {}, "<think>\n"}, body,
              {"Let me think. ", "{\"a\": 1}", "", "stop"});
  expect_told({{"[THINK]", "Let me think. ", "[/THINK]", "{\"a\": ", "1}"}, {"[THINK]", "[/THINK]"}}, body,
              {"Let me think. ", "{\"a\": 1}", "", "stop"});
  // The end of the answer's form is not that of the thought, and a thought must be closed before the answer may end.
  expect_told({{"<think>", "{\"a\": 2}", "</think>", "{\"a\": ", "1}"}}, body,
              {"{\"a\": 2}", "{\"a\": 1}", "", "stop"});
  // Here there is no thought, and then one that the prompt has closed.
  expect_told({{"{\"a\": ", "1}", "<think>"}}, body, {"", "{\"a\": 1}", "", "stop"});
  expect_told({{"{\"a\": ", "1}", "<think>"}, {}, "<think>\n\n</think>\n\n"}, body, {"", "{\"a\": 1}", "", "stop"});
  // Stop strings apply to the answer.
  expect_told({{"<think>\n", "Let me think: ", "</think>\n\n", "{\"a\": ", "1}"}}, with(body, {{"stop", {":"}}}),
              {"\nLet me think: ", "{\"a\"", "", "stop"});
}

TEST(ScriptedAnswers, CallTheToolThatIsAskedForBehindTheThought) {
  expect_told(
      {{"<think>\n", "A note. ", "</think>\n\n", "{\"name\": \"save_note\", \"arguments\": {\"text\": \"", "a\"}}"}},
      asked({{"tools", kTools}, {"tool_choice", "required"}}),
      {"\nA note. ", "", "save_note{\"text\":\"a\"};", "tool_calls"});
  const auto serving = serve_script(
      {{"[THINK]", "A note. ", "[/THINK]", "{\"name\": \"save_note\", \"arguments\": {\"text\": \"", "a\"}}"},
       {"[THINK]", "[/THINK]"}});
  const Json named = {{"type", "function"}, {"function", {{"name", "save_note"}}}};
  const Json body = asked({{"tools", kTools}, {"tool_choice", named}});
  const Told expected{"A note. ", "", "save_note{\"text\":\"a\"};", "tool_calls"};
  EXPECT_EQ(of_chat(serving->chat(body).json()), expected);
  EXPECT_EQ(of_stream(serving->chat(with(body, {{"stream", true}}))), expected);
}

}  // namespace
}  // namespace fidelio::serve
