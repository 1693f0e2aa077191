#include "eval/studies/text_difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/test_support.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

const Tokenizer& quill_tokenizer() {
  static const Tokenizer t = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  return t;
}

class TextDifferences : public testing::Test {
 protected:
  TextDifferences() : runner_({.vocabulary = quill_tokenizer().vocab_size(), .context = 128}, room()) {
    TaskItem item;
    item.task = "task";
    for (const char* id : {"a", "b", "c", "d"}) {
      item.id = id;
      item.question = std::string("What about ") + id + "?";
      set_.items.push_back(item);
      ItemResult r;
      r.task = item.task;
      r.id = id;
      r.text = "one two three";
      r.finish_reason = "stop";
      results_.push_back(r);
      others_[id] = r.text;
    }
    options_.stop_ids = {0, 2};
  }
  static RunnerOptions room() {
    RunnerOptions options;
    options.cache_tokens = 256;
    return options;
  }
  TextComparison compare() { return compare_texts(model_, set_, options_, results_, others_); }
  // Returns the logits after question `i` and the text said so far.
  std::vector<float> logits(size_t i, const std::string& said) {
    const ChatMessage message{"user", set_.items[i].question};
    auto ids = model_.prompt(std::span(&message, 1));
    for (int32_t id : quill_tokenizer().encode(said, false)) ids.push_back(id);
    return runner_.logits_after(ids);
  }
  static int32_t only_token(const std::string& text) {
    const auto ids = quill_tokenizer().encode(text, false);
    EXPECT_EQ(ids.size(), 1u) << text;
    return ids[0];
  }

  FakeRunner runner_;
  TaskModel model_{&runner_, &quill_tokenizer(), plain_prompt(quill_tokenizer())};
  TaskSet set_;
  TaskOptions options_;
  std::vector<ItemResult> results_;
  std::map<std::string, std::string> others_;
};

TEST_F(TextDifferences, EqualTextsAreNotListed) {
  const TextComparison c = compare();
  EXPECT_EQ(c.compared, 4);
  EXPECT_TRUE(c.differences.empty());
  EXPECT_EQ(c.equal().value, 1);
  EXPECT_TRUE(runner_.steps.empty());
}

TEST_F(TextDifferences, PositionAndLogitsAtTheFirstDifference) {
  others_["b"] = "one two four";
  const TextComparison c = compare();
  ASSERT_EQ(c.differences.size(), 1u);
  const TextDifference& d = c.differences[0];
  EXPECT_EQ(d.id, "b");
  EXPECT_EQ(d.position, static_cast<int64_t>(quill_tokenizer().encode("one two", false).size()));
  EXPECT_EQ(d.own, only_token(" three"));
  EXPECT_EQ(d.other, only_token(" four"));
  const auto row = logits(1, "one two");
  EXPECT_EQ(d.own_logit, row[static_cast<size_t>(d.own)]);
  EXPECT_EQ(d.other_logit, row[static_cast<size_t>(d.other)]);
  EXPECT_DOUBLE_EQ(c.equal().value, 0.75);
  EXPECT_THAT(to_text(to_table(c, quill_tokenizer(), "other.jsonl")), HasSubstr("\" three\""));
  const nlohmann::json j = to_json(c, quill_tokenizer());
  EXPECT_EQ(j["differences"][0]["other_token"], "\" four\"");
  EXPECT_EQ(j["differences"][0]["position"], d.position);
}

TEST_F(TextDifferences, AnEndIsTheLikelierStopToken) {
  others_["a"] = "one two";
  results_[2].text = "one";
  results_[3].text = "one two";
  results_[3].finish_reason = "length";
  const TextComparison c = compare();
  ASSERT_EQ(c.differences.size(), 3u);
  const auto after = logits(0, "one two"), early = logits(2, "one");
  EXPECT_EQ(c.differences[0].own, only_token(" three"));
  EXPECT_EQ(c.differences[0].other, after[0] > after[2] ? 0 : 2);
  EXPECT_EQ(c.differences[1].own, early[0] > early[2] ? 0 : 2);
  EXPECT_EQ(c.differences[1].other, only_token(" two"));
  EXPECT_EQ(c.differences[2].own, -1);  // the answer was cut off, so there is no token of its own
  EXPECT_TRUE(std::isnan(c.differences[2].own_logit));
  EXPECT_TRUE(to_json(c, quill_tokenizer())["differences"][2]["logit"].is_null());
}

TEST_F(TextDifferences, Refusals) {
  others_.erase("c");
  EXPECT_THROW(compare(), Error);
  set_.method = TaskMethod::likelihood;
  EXPECT_THROW(compare(), Error);
}

TEST(AnswerFiles, TextsByIdAndBadLines) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/answers.jsonl";
  const auto refusal = [&](const std::string& text) -> std::string {
    write_file_atomically(path, text);
    try {
      read_answers(path);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("{\"id\": \"a\", \"text\": \"1\"}\n\n{\"id\": \"b\", \"text\": \"\"}\n"), "accepted");
  EXPECT_EQ(read_answers(path).at("a"), "1");
  EXPECT_THAT(refusal("{\"id\": \"a\", \"text\": \"1\"}\n{\"id\": \"a\", \"text\": \"2\"}\n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("{\"id\": 1, \"text\": \"1\"}\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("hello\n"), HasSubstr("line 1: not valid JSON"));
  EXPECT_THAT(refusal("\n"), HasSubstr("holds no texts"));
}

}  // namespace
}  // namespace fidelio
