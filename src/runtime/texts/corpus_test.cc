// These tests check that conversations among texts are read as a server reads them. tests/sets_test.cc checks other
// kinds of documents.
#include "runtime/texts/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "runtime/dataset.h"
#include "text/shingles.h"

namespace fidelio {
namespace {

using ::testing::HasSubstr;
using Record = nlohmann::ordered_json;

class CorpusTest : public ::testing::Test {
 protected:
  Corpus read(const std::string& chat_template, const Record& record) const {
    const std::string path = ::testing::TempDir() + "/corpus_test.jsonl";
    write_file_atomically(path, record.dump() + "\n");
    const ChatTemplate chat(chat_template);
    Corpus corpus = read_corpus({path}, tokenizer_, &chat, 512);
    std::filesystem::remove(path);
    return corpus;
  }
  const Tokenizer tokenizer_ = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
};

TEST_F(CorpusTest, ConversationsInTheWireFormAreRenderedAsAServerDoes) {
  const std::string twenty = "one two three four five six seven eight nine ten one two three four five six seven eight";
  const Record call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", R"({"a": 1})"}}}};
  const Record record = {{"messages",
                          {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", twenty}}}}},
                           {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}}}},
                         {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  const std::string chat =
      "{% for t in tools %}{{ t.function.name }}|{% endfor %}{% for m in messages %}{{ m.role + ': ' + m.content }}"
      "{% for c in m.tool_calls %}{{ c.function.arguments.a + 1 }}{% endfor %}|{% endfor %}";
  const Corpus corpus = read(chat, record);
  ASSERT_EQ(corpus.documents.size(), 1u);
  EXPECT_EQ(corpus.documents[0].sha256, sha256_hex("f|user: " + twenty + "|assistant: 2|"));
  EXPECT_EQ(corpus.documents[0].domain, "chat");
  const ChatTemplate rendered(chat);
  const std::string path = ::testing::TempDir() + "/corpus_test_calibration.jsonl";
  write_file_atomically(path, record.dump() + "\n");
  EXPECT_EQ(read_dataset({path}, tokenizer_, &rendered, {512, 0}).sequences[0], corpus.documents[0].ids);
  std::filesystem::remove(path);
}

// Shingles of a conversation are made from what is said in it, so the same talk under another template or system
// prompt has the same ones.
TEST_F(CorpusTest, ShinglesOfAConversationAreOfWhatIsSaid) {
  std::string said;
  for (int i = 0; i < 40; ++i) said += "word" + std::to_string(i) + " ";
  const auto talk = [&](const std::string& system) {
    return Record{{"messages", {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", said}}}}};
  };
  const std::string path = ::testing::TempDir() + "/corpus_test_shingles.jsonl";
  const auto shingles = [&](const Record& record, const std::string& chat_template, int64_t most) {
    write_file_atomically(path, record.dump() + "\n");
    const ChatTemplate chat(chat_template);
    return read_corpus({path}, tokenizer_, &chat, 512, Shingles::kept, most);
  };
  const std::string plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const Corpus one = shingles(talk("Be brief."), plain, 1000);
  EXPECT_EQ(one.documents[0].shingles, shingles_of(said));
  EXPECT_EQ(shingles(talk("Be kind."), "{{ messages[0].content }}" + plain, 1000).documents[0].shingles,
            one.documents[0].shingles);
  EXPECT_EQ(shingles({{"text", said}}, plain, 1000).documents[0].shingles, one.documents[0].shingles);
  EXPECT_EQ(one.shingle_mask, 0u);
  // At most as many are kept as asked for, and only those that the mask lets pass.
  const Corpus few = shingles(talk(""), plain, 8);
  EXPECT_LE(few.documents[0].shingles.size(), 8u);
  EXPECT_GT(few.shingle_mask, 0u);
  std::vector<uint64_t> passed = one.documents[0].shingles;
  std::erase_if(passed, [&](uint64_t hash) { return (hash & few.shingle_mask) != 0; });
  EXPECT_EQ(few.documents[0].shingles, passed);
  std::filesystem::remove(path);
}

TEST_F(CorpusTest, ConversationsThatAreWrongAreNamed) {
  try {
    read("{{ messages }}", {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}});
    FAIL() << "an image was read as text";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("corpus_test.jsonl line 1: messages[0].content: expected a string or parts of type text"));
  }
}

// An answer of the model itself must be read back as the very ids that were sampled. Those of the prompt are not
// scored.
TEST_F(CorpusTest, AnswersOfTheModelItselfAreTheirIds) {
  std::vector<int32_t> ids = tokenizer_.encode("one two three four five six seven eight nine ten eleven twelve", false);
  while (ids.size() < 40) ids.push_back(static_cast<int32_t>(ids.size() % 7 + 20));
  const std::string path = ::testing::TempDir() + "/corpus_test_ids.jsonl";
  const auto read_back = [&](const std::string& lines) {
    write_file_atomically(path, lines);
    return read_corpus({path}, tokenizer_, nullptr, 512);
  };
  const Corpus corpus = read_back(ids_record("own-3", "own", ids, 5, tokenizer_) + "\n" +
                                  ids_record("short", "own", std::span(ids).first(20), 5, tokenizer_) + "\n");
  ASSERT_EQ(corpus.documents.size(), 1u);
  EXPECT_EQ(corpus.too_short, 1);  // 15 tokens are scored
  const Document expected = document_of_ids("own-3", "own", ids, 5);
  EXPECT_EQ(corpus.documents[0].ids, ids);
  EXPECT_EQ(corpus.documents[0].given, 5);
  EXPECT_EQ(corpus.documents[0].domain, "own");
  EXPECT_EQ(corpus.documents[0].sha256, expected.sha256);
  for (const char* wrong : {R"({"ids": [1, -1]})", R"({"ids": [1, 99999999]})", R"({"ids": "x"})", R"({"ids": [1.5]})"})
    EXPECT_THROW(read_back(std::string(wrong) + "\n"), Error) << wrong;
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace fidelio
