// These tests check the words that stand for texts, and that the two sets of `tools` have nothing in common.
#include "runtime/texts/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "runtime/texts/corpus.h"

namespace fidelio {
namespace {

using ::testing::HasSubstr;

TEST(TextWords, AreWordsWhereverTheyStandAlone) {
  EXPECT_TRUE(is_text_word("tools"));
  EXPECT_TRUE(is_text_word("own"));
  EXPECT_TRUE(is_text_word("own:24"));
  for (const char* path : {"./tools", "./own", "own.jsonl", "tools/x", "tools:docs", "owner:3"})
    EXPECT_FALSE(is_text_word(path)) << path;
  EXPECT_EQ(own_documents("own"), kOwnDocuments);
  EXPECT_EQ(own_documents("own:24"), 24);
  EXPECT_EQ(own_documents("tools"), std::nullopt);
  for (const char* wrong : {"own:", "own:0", "own:11", "own:x", "own:24x", "own:-24", "own:9999999999999999999"})
    EXPECT_THROW(own_documents(wrong), Error) << wrong;
}

TEST(TextWords, StandForTheirTexts) {
  const std::vector<std::string> all = {"a.txt:docs", "tools", "own:12"};
  EXPECT_EQ(without_words(all, TextUse::heldout, "m/own-text.jsonl"),
            (std::vector<std::string>{"a.txt:docs", "fidelio:/tools-heldout.jsonl", "m/own-text.jsonl"}));
  EXPECT_EQ(without_words({"tools"}, TextUse::calibration, "")[0], "fidelio:/tools-calibration.jsonl");
}

TEST(TextWords, ToolsNeedATemplateThatTakesThem) {
  const ChatTemplate takes("{{ tools }}"), none("{{ messages }}");
  EXPECT_NO_THROW(check_takes_words({"tools"}, &takes, "m"));
  EXPECT_NO_THROW(check_takes_words({"own", "x"}, nullptr, "m"));
  EXPECT_THROW(check_takes_words({"x", "tools"}, &none, "m"), Error);
  EXPECT_THROW(check_takes_words({"tools"}, nullptr, "m"), Error);
}

// No conversation or template that a model is calibrated on may be in the text that it is certified on.
TEST(TextWords, ToolsOfBothSetsShareNoConversation) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  const ChatTemplate chat(
      "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role + ': ' + m.content }}"
      "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}|{% endfor %}");
  const auto read = [&](TextUse use) { return read_corpus(without_words({"tools"}, use, ""), tokenizer, &chat, 4096); };
  const Corpus calibration = read(TextUse::calibration), heldout = read(TextUse::heldout);
  std::set<std::string> seen, templates;
  for (const Document& d : calibration.documents) {
    seen.insert(d.sha256);
    templates.insert(d.name.substr(0, d.name.find('-')));
    EXPECT_EQ(d.domain, "tools");
    EXPECT_FALSE(d.apart.empty()) << d.name;
  }
  EXPECT_GE(seen.size() + heldout.documents.size(), 250u);
  for (const Document& d : heldout.documents) {
    EXPECT_FALSE(seen.contains(d.sha256)) << d.name;
    EXPECT_FALSE(templates.contains(d.name.substr(0, d.name.find('-')))) << d.name;
    ASSERT_FALSE(d.apart.empty()) << d.name;
    for (const TokenSpan& s : d.apart) {
      EXPECT_LT(s.begin, s.end);
      const std::string text = tokenizer.decode(
          std::span(d.ids).subspan(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin)));
      EXPECT_THAT(text, HasSubstr("\":")) << d.name;  // a member of a JSON object
    }
  }
}

}  // namespace
}  // namespace fidelio
