#include "eval/tasks/task_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/test_support.h"
#include "eval/tasks/task_score.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TaskFiles : public testing::Test {
 protected:
  TaskSet read(const std::string& text) {
    write_file_atomically(folder_ + "/tasks.jsonl", text);
    return read_tasks(folder_ + "/tasks.jsonl");
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
};

TEST_F(TaskFiles, BundledQuestions) {
  const std::string path = FIDELIO_SOURCE_DIR "/models/data/tasks.jsonl";
  const TaskSet set = read_tasks(path);
  EXPECT_EQ(set.items.size(), 3000u);
  EXPECT_EQ(set.method, TaskMethod::generate);
  EXPECT_EQ(set.match, Match::exact);
  EXPECT_EQ(set.sha256, sha256_file(path));
  EXPECT_EQ(set.items[0].id, "word_problem-0");
  EXPECT_EQ(set.items[0].answer, "The answer is 270.");
}

TEST_F(TaskFiles, ArcNestedAndFlat) {
  for (
      const char* text :
      {R"({"id":"Mercury_1","question":{"stem":"Why?","choices":[{"text":"this","label":"A"},{"text":"that","label":"B"}]},"answerKey":"B"})",
       R"({"id":"Mercury_1","question":"Why?","choices":{"text":["this","that"],"label":["A","B"]},"answerKey":"B"})"}) {
    const TaskSet set = read(text);
    EXPECT_EQ(set.method, TaskMethod::likelihood);
    EXPECT_EQ(set.items[0].task, "arc");
    EXPECT_EQ(set.items[0].question, "Question: Why?\nAnswer:");
    EXPECT_THAT(set.items[0].choices, ElementsAre("this", "that"));
    EXPECT_EQ(set.items[0].correct, 1);
  }
}

TEST_F(TaskFiles, OpenBookQaIsContinuedNotAsked) {
  for (
      const char* text :
      {R"({"id":"8-376","question":{"stem":"Fog is","choices":[{"text":"wet","label":"A"},{"text":"dry","label":"B"}]},"answerKey":"A"})",
       R"({"id":"8-376","question_stem":"Fog is","choices":{"text":["wet","dry"],"label":["A","B"]},"answerKey":"A"})"}) {
    const TaskSet set = read(text);
    EXPECT_EQ(set.items[0].task, "openbookqa");
    EXPECT_EQ(set.items[0].question, "Fog is");
    EXPECT_EQ(set.items[0].correct, 0);
  }
}

TEST_F(TaskFiles, PiqaWithLabelsInsideOrBeside) {
  const std::string line = R"({"goal":"Open it","sol1":"pull","sol2":"push"})";
  EXPECT_THAT(refusal(line), HasSubstr("tasks-labels.lst"));
  write_file_atomically(folder_ + "/tasks-labels.lst", "1\n0\n");
  const TaskSet set = read(line + "\n" + line + "\n");
  EXPECT_EQ(set.items[0].correct, 1);
  EXPECT_EQ(set.items[1].correct, 0);
  EXPECT_EQ(set.items[0].question, "Question: Open it\nAnswer:");
  EXPECT_THAT(refusal(line), HasSubstr("2 labels for the 1 questions"));
  EXPECT_EQ(read(R"([{"goal":"Open it","sol1":"pull","sol2":"push","label":1}])").items[0].correct, 1);
}

TEST_F(TaskFiles, WinograndeScoresWhatFollowsTheBlank) {
  const TaskSet set =
      read(R"({"qID":"x","sentence":"Ann met Eve because _ was late.","option1":"Ann","option2":"Eve","answer":"2"})");
  EXPECT_THAT(set.items[0].contexts, ElementsAre("Ann met Eve because Ann", "Ann met Eve because Eve"));
  EXPECT_THAT(set.items[0].choices, ElementsAre("was late.", "was late."));
  EXPECT_EQ(set.items[0].correct, 1);
  EXPECT_THAT(refusal(R"({"sentence":"no blank","option1":"a","option2":"b","answer":"1"})"), HasSubstr("blank"));
}

TEST_F(TaskFiles, HellaswagIsCleanedOfMarkup) {
  const TaskSet set = read(
      R"({"ind":4,"activity_label":"Baking","ctx_a":"A man stirs.","ctx_b":"he","endings":["stops [step] now","goes on [title] then","a","b"],"label":"0"})");
  EXPECT_EQ(set.items[0].id, "4");
  EXPECT_EQ(set.items[0].question, "Baking: A man stirs. He");
  EXPECT_EQ(set.items[0].choices[0], "stops now");
  EXPECT_EQ(set.items[0].choices[1], "goes on. then");
}

TEST_F(TaskFiles, Boolq) {
  const TaskSet set = read(R"({"question":"is it so","passage":"It is so.","answer":true})");
  EXPECT_EQ(set.items[0].question, "It is so.\nQuestion: is it so?\nAnswer:");
  EXPECT_EQ(set.items[0].correct, 1);
  EXPECT_EQ(read(R"({"question":"is it so","passage":"It is so.","label":0})").items[0].correct, 0);
}

TEST_F(TaskFiles, MathematicsIsGenerated) {
  const TaskSet gsm = read(R"({"question":"How many?","answer":"First.\n#### 1,234"})");
  EXPECT_EQ(gsm.method, TaskMethod::generate);
  EXPECT_EQ(gsm.items[0].answer, "1234");
  EXPECT_EQ(gsm.items[0].worked_answer, "First.\n#### 1,234");
  EXPECT_EQ(gsm.pattern, "####");
  const TaskSet math = read(R"({"problem":"x?","solution":"so \\boxed{3}","answer":"3","unique_id":"a/1.json"})");
  EXPECT_EQ(math.match, Match::boxed);
  EXPECT_EQ(math.items[0].id, "a/1.json");
  const TaskSet instruction = read(
      R"([{"instruction":"Choose. Answer format: answer1/answer2","input":"","output":"the correct answer is answer2","answer":"answer2"}])");
  EXPECT_TRUE(
      is_correct("the correct answer is answer2", instruction.items[0], instruction.match, instruction.pattern));
  EXPECT_FALSE(
      is_correct("the correct answer is answer1", instruction.items[0], instruction.match, instruction.pattern));
}

TEST_F(TaskFiles, RefusesWhatItDoesNotKnowWithThePlace) {
  EXPECT_THAT(refusal(""), HasSubstr("empty"));
  EXPECT_THAT(refusal("[]"), HasSubstr("no questions"));
  EXPECT_THAT(refusal("[1"), HasSubstr("array"));
  EXPECT_THAT(refusal("{\"a\":1}"), HasSubstr("no known layout"));
  EXPECT_THAT(refusal("{\"task\":\"t\",\"question\":\"q\",\"answer\":\"a\"}\nnot json"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("{\"task\":\"t\",\"question\":\"q\",\"answer\":\"a\"}\n{\"task\":\"t\",\"question\":\"q\"}"),
              HasSubstr("question 2"));
  EXPECT_THAT(refusal("{\"task\":\"t\",\"question\":\"q\",\"answer\":\"a\",\"choices\":3}"), HasSubstr("question 1"));
  EXPECT_THAT(refusal(R"({"id":"M","question":"Why?","choices":{"text":["x"],"label":["A"]},"answerKey":"C"})"),
              HasSubstr("choice 1 of 1"));
  EXPECT_THROW(read_tasks(folder_ + "/none.jsonl"), Error);
}

TEST(TaskScore, TheAnswerIsWhatFollowsTheThinking) {
  EXPECT_EQ(answer_part("<think>\n1 + 1\n</think>\n\n The answer is 2. \n"), "The answer is 2.");
  EXPECT_EQ(answer_part("plain "), "plain");
  EXPECT_EQ(answer_part("<think> never closed 42"), "");
  EXPECT_EQ(answer_part("opened by the template</think>yes"), "yes");
}

class FewShot : public testing::Test {
 protected:
  static TaskItem item(const std::string& task, const std::string& question) {
    TaskItem i;
    i.task = task;
    i.id = question;
    i.question = question;
    return i;
  }
  std::string refusal(const TaskSet& source, int64_t shots) {
    TaskSet set = asked_;
    try {
      add_examples(set, source, shots);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
  TaskSet asked_{"asked.jsonl", "", TaskMethod::generate, Match::exact, "", {item("a", "1"), item("b", "2")}};
  TaskSet source_{"shown.jsonl",
                  "",
                  TaskMethod::generate,
                  Match::exact,
                  "",
                  {item("b", "3"), item("c", "4"), item("a", "5"), item("b", "6"), item("a", "7"), item("b", "8")}};
};

TEST_F(FewShot, FirstOfEachTaskThatIsAsked) {
  add_examples(asked_, source_, 2);
  std::vector<std::string> ids;
  for (const TaskItem& e : asked_.examples) ids.push_back(e.id);
  EXPECT_THAT(ids, testing::UnorderedElementsAre("5", "7", "3", "6"));
}

TEST_F(FewShot, Refusals) {
  EXPECT_EQ(refusal(source_, 2), "accepted");
  EXPECT_THAT(refusal(source_, 3), HasSubstr("shown.jsonl has 2 questions of the task a, 3 are to be shown"));
  source_.items[0].question = "2";  // asked.jsonl asks the same question
  EXPECT_THAT(refusal(source_, 2), HasSubstr("shows b 3 with its answer, and asked.jsonl asks it"));
  source_.method = TaskMethod::likelihood;
  EXPECT_THAT(refusal(source_, 2), HasSubstr("different kinds"));
}

// Files of strangers may contain anything; they must be refused, or read within bounded time and memory.
TEST_F(TaskFiles, HostileFilesAreRefusedOrReadCheaply) {
  const auto hostile = [&](const std::string& text) {
    return message_of_hostile(2 * text.size(), [&] { read(text); });
  };
  for (size_t depth : {40'000u, 300'000u}) {
    EXPECT_THAT(hostile("{\"task\": " + repeated("[", depth) + repeated("]", depth) + "}"), HasSubstr("nested"));
    EXPECT_THAT(hostile(repeated("[", depth) + repeated("]", depth)), HasSubstr("nested"));
  }
  EXPECT_THAT(hostile("[" + repeated("[1],", 100) + "[1]]"), HasSubstr("question 1 is not a JSON object"));
  const auto swag = [&](const std::string& words) {
    return hostile(R"({"activity_label": "L", "ctx_a": ")" + words +
                   R"(", "ctx_b": "", "endings": ["a", "b"], "label": "0"})");
  };
  for (const std::string part : {" ", "[", " [title]", "[x]", "  [", "]["})
    EXPECT_EQ(swag(repeated(part, 300'000)), "") << part;
  const std::string swag_line =
      R"({"activity_label": "L", "ctx_a": "a", "ctx_b": "", "endings": ["a", "b"], "label": "0"})";
  EXPECT_THAT(hostile(swag_line + "\n{\"activity_label\": \"L\", \"ctx_a\": \"a\", \"ctx_b\": \"\", \"label\": \"0\"}"),
              HasSubstr("question 2"));
  EXPECT_THAT(hostile(R"({"goal": "g", "sol1": "a", "sol2": "b", "label": "99999999999999999999999"})"),
              HasSubstr("label"));
  EXPECT_THAT(hostile(R"({"passage": "p", "question": "q"})"), HasSubstr("label"));
  EXPECT_THAT(hostile(repeated("{\"task\": 1, \"x\": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}\n", 300'000)),
              testing::Not(""));
}

TEST_F(TaskFiles, MarkupOfWikiHowIsCleaned) {
  const TaskSet set = read(
      R"({"activity_label": "L", "ctx_a": "A [title] B [step] C  [x [y] z] [open", "ctx_b": "", "endings": [" a  [x]  b ", "[]c"], "label": "0"})");
  EXPECT_EQ(set.items[0].question, "L: A. B C z] [open");
  EXPECT_EQ(set.items[0].choices, (std::vector<std::string>{"a b", "c"}));
}

TEST(TaskScore, Extraction) {
  EXPECT_EQ(extract_answer("so 3 and $1,234.50.", Match::last_number, ""), "1234.5");
  EXPECT_EQ(extract_answer("it is -7", Match::last_number, ""), "-7");
  EXPECT_EQ(extract_answer("none", Match::last_number, ""), "");
  EXPECT_EQ(extract_answer("5 #### 12,000 apples 9", Match::after_marker, "####"), "12000");
  EXPECT_EQ(extract_answer("5", Match::after_marker, "####"), "");
  EXPECT_EQ(extract_answer("The answer is (B). Or (C)?", Match::regex, "\\(([A-D])\\)"), "C");
  EXPECT_EQ(extract_answer("a \\boxed{\\frac{1}{2}} b", Match::boxed, ""), "\\frac{1}{2}");
  EXPECT_EQ(extract_answer("\\boxed{unclosed", Match::boxed, ""), "");
  EXPECT_THROW(extract_answer("x", Match::regex, "("), Error);
}

// Any answer that a model writes until it is stopped is read in bounded time and memory, even if it is no text.
TEST(TaskScore, PatternsAreBoundedInTheAnswer) {
  const std::string pattern = "(true|false|(?:answer|solution|option|ending)[1-5])";
  for (const std::string& filler :
       {std::string("a"), std::string("answer"), std::string("option6 "), std::string("\n")})
    EXPECT_EQ(extract_answer(repeated(filler, 200'000) + "answer3" + repeated(filler, 100'000), Match::regex, pattern),
              "answer3");
  EXPECT_EQ(extract_answer(repeated("x", 500'000), Match::regex, "(\\w+)"), std::string(500'000, 'x'));
  EXPECT_EQ(extract_answer("answer1 \xf0\x9f", Match::regex, pattern), "answer1");
  // ^ matches at the beginning of the text, not of a line.
  EXPECT_EQ(extract_answer("one\ntwo\n", Match::regex, "^(\\w+)"), "one");
  EXPECT_EQ(extract_answer("one\ntwo\n", Match::regex, "(\\w+)$"), "two");
  EXPECT_EQ(extract_answer("B C", Match::regex, "(A)|[BC]"), "");  // the group took no part in the match
  EXPECT_EQ(extract_answer("ab", Match::regex, "x*"), "");
  EXPECT_THAT(message_of_hostile(0, [] { extract_answer(repeated("a", 60'000), Match::regex, "[^b]*b"); }),
              HasSubstr("[^b]*b"));
}

// Numbers in an answer are read whole, however long they are.
TEST(TaskScore, NumbersMayBeOfAnyLength) {
  const std::string digits(1'000'000, '7');
  EXPECT_EQ(extract_answer(digits, Match::last_number, ""), digits);
  EXPECT_EQ(extract_answer("#### " + digits, Match::after_marker, "####"), digits);
  for (const auto& [text, number] : {std::pair{"--7", "-7"},
                                     {"-$-8", "-8"},
                                     {"$-", ""},
                                     {"-$5,", "-5"},
                                     {"1.2.3", "3"},
                                     {"1..2", "2"},
                                     {"4.x", "4"},
                                     {"6,,7.50,", "67.5"},
                                     {".5-", "5"},
                                     {"3-4", "-4"},
                                     {"$$9.0", "9"},
                                     {"12$", "12"}})
    EXPECT_EQ(extract_answer(text, Match::last_number, ""), number) << text;
}

TEST(TaskScore, CorrectnessNormalisesBothSides) {
  TaskItem item;
  item.answer = "\\dfrac{1}{2}";
  EXPECT_TRUE(is_correct("<think>x</think> \\boxed{ \\frac{1}{2} }", item, Match::boxed, ""));
  EXPECT_FALSE(is_correct("\\boxed{\\frac{1}{3}}", item, Match::boxed, ""));
  item.answer = "72";
  EXPECT_TRUE(is_correct("#### 72.00", item, Match::after_marker, "####"));
  EXPECT_FALSE(is_correct("", item, Match::after_marker, "####"));
  item.answer = "";
  EXPECT_FALSE(is_correct("", item, Match::exact, ""));  // an empty answer is never right
}

}  // namespace
}  // namespace fidelio
