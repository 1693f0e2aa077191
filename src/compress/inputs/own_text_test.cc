// These tests are about parts of documents, and about text that the model writes itself, as sets of documents hold
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>
#include <set>

#include "compress/inputs/own_text.h"
#include "compress/self_samples.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "io/checkpoint.h"
#include "runtime/texts/bundled.h"
#include "runtime/texts/words.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

Document talk(const std::string& name, std::vector<TokenSpan> apart) {
  Document d{"tools", name, "hash of " + name, std::vector<int32_t>(20, 1)};
  d.apart = std::move(apart);
  return d;
}

FidelityReport report_of(const TextSet& set) {
  FidelityReport report;
  for (size_t i = 0; i < set.texts.size(); ++i) {
    WindowFidelity w;
    w.text = static_cast<int32_t>(i);
    w.sums.positions = 19;
    w.sums.kl = 0.19 * static_cast<double>(i + 1);
    w.sums.ear = 18;
    w.sums.agreements = 17;
    if (!set.documents[i].apart.empty()) {
      w.apart.positions = 4;
      w.apart.kl = 0.08 * static_cast<double>(i + 1);
      w.apart.ear = 3.5;
      w.apart.agreements = 3;
    }
    report.windows.push_back(w);
  }
  return report;
}

TEST(Sets, ArgumentsOfCallsAreADomainOfTheirOwn) {
  const TextSet set =
      text_set({talk("a", {{3, 7}}), talk("b", {}), talk("c", {{3, 5}, {9, 11}}), talk("d", {{30, 40}})}, 64, 100);
  EXPECT_EQ(set.counts(),
            (std::map<std::string, int64_t>{{"tools", 4}, {"tools/arguments", 2}}));  // those of d lie behind its end
  EXPECT_EQ(set.texts[2].apart.size(), 2u);
  const std::vector<DocumentFidelity> documents = documents_of(report_of(set), set);
  const std::vector<DomainFidelity> domains = by_domain(documents);
  ASSERT_EQ(domains.size(), 2u);
  EXPECT_EQ(domains[0].domain, "tools");
  EXPECT_EQ(domains[0].tokens, 4 * 19 - 2 * 4);
  EXPECT_EQ(domains[1].domain, "tools/arguments");
  EXPECT_EQ(domains[1].documents, 2);
  EXPECT_EQ(domains[1].tokens, 8);
  EXPECT_NEAR(domains[1].kl.value, 0.08 * (1 + 3) / 8, 1e-12);
  EXPECT_NEAR(domains[0].kl.value, (0.19 * 10 - 0.08 * 4) / 68, 1e-12);
  // Over all text together a document is one draw, whatever parts it has.
  const DomainFidelity all = as_one(documents);
  EXPECT_EQ(all.documents, 4);
  EXPECT_EQ(all.windows, 4);
  EXPECT_EQ(all.tokens, 4 * 19);
  EXPECT_NEAR(all.kl.value, 0.19 * 10 / 76, 1e-12);
}

TEST(Sets, ASetFromItsPlacesKeepsWhatIsApart) {
  Corpus corpus;
  for (int i = 0; i < 4; ++i) {
    corpus.documents.push_back(talk(fmt::format("talk{}", i), {{3, 7}}));
    corpus.documents.back().sha256 = fmt::format("{:012x}{:052x}", i + 1, 0);
    corpus.documents.back().given = 2;
  }
  const TextSet set = text_set(corpus.documents, 64, 100), again = set_of_places(corpus, 64, place_names(set));
  EXPECT_EQ(again.sha256, set.sha256);
  EXPECT_EQ(again.counts(), set.counts());
  EXPECT_EQ(again.texts[0].given, 2);
}

class OwnText : public testing::Test {
 protected:
  OwnText() : source_(Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m")) {}
  std::vector<OwnAnswer> answers(int64_t side_by_side, uint64_t seed = 3) const {
    OwnAnswerOptions how;
    how.sampling.temperature = 0.8;
    how.sampling.seed = seed;
    how.longest = 20;
    how.context = 64;
    how.side_by_side = side_by_side;
    const std::vector<std::vector<int32_t>> prompts = {{5, 6, 7}, {8, 9}, {5, 6, 7}, {11, 12, 13, 14}};
    return own_answers(maker(), RunnerOptions{}, prompts, how);
  }
  std::function<std::unique_ptr<Runner>(const RunnerOptions&)> maker() const {
    return [this](const RunnerOptions& options) { return make_cpu_runner(source_, options); };
  }
  Checkpoint source_;
};

TEST_F(OwnText, DependsOnTheSeedAndOnNothingElse) {
  const std::vector<OwnAnswer> one = answers(1), four = answers(4), other = answers(4, 4);
  ASSERT_EQ(one.size(), 4u);
  std::set<std::vector<int32_t>> different;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].ids, four[i].ids);
    EXPECT_EQ(std::ssize(one[i].ids), one[i].given + 20);
    different.insert(one[i].ids);
    different.insert(other[i].ids);
  }
  EXPECT_EQ(different.size(), 8u);  // Two prompts are the same, but their random numbers differ.
}

TEST_F(OwnText, IsReadBackFromItsFileAsItWasWritten) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-1m");
  Corpus own;
  for (const OwnAnswer& a : answers(4))
    own.documents.push_back(document_of_ids(fmt::format("own-{}", own.documents.size() + 1), "own", a.ids, a.given));
  const std::string file = testing::TempDir() + "/own_text_test.jsonl";
  write_file_atomically(file, own_text(own, tokenizer));
  const Corpus read = read_corpus({file}, tokenizer, nullptr, 64);
  std::filesystem::remove(file);
  ASSERT_EQ(read.documents.size(), own.documents.size());
  for (size_t i = 0; i < read.documents.size(); ++i) {
    EXPECT_EQ(read.documents[i].sha256, own.documents[i].sha256);
    EXPECT_EQ(read.documents[i].ids, own.documents[i].ids);
    EXPECT_EQ(read.documents[i].given, own.documents[i].given);
    EXPECT_EQ(read.documents[i].name, own.documents[i].name);
  }
}

// A document that stands twice in a set would count as two that happen to be alike.
TEST_F(OwnText, AnswersThatRepeatOthersAreLeftOut) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-1m");
  std::vector<Document> starts;
  for (int32_t i = 0; i < 16; ++i)
    starts.push_back({"text", fmt::format("{}", i), "", std::vector<int32_t>(20, i / 2 + 5)});
  const World world{source_, tokenizer, nullptr, maker(), {}, {}};
  Job job;
  job.context = 64;
  const auto own = [&](int64_t documents) { return own_corpus(world, job, starts, documents, OwnAnswers::stand_ins); };
  EXPECT_THAT([&] { own(16); }, testing::ThrowsMessage<Error>(HasSubstr("only 8 of the model's own answers")));
  for (int32_t i = 8; i < 16; ++i)
    starts.push_back({"text", fmt::format("{}", i), "", std::vector<int32_t>(20, i + 5)});
  const Corpus made = own(24);
  EXPECT_EQ(made.documents.size(), 16u);
  EXPECT_EQ(made.sha256, sha256_hex(own_text(made, tokenizer)));
}

// A dry run counts no less than a run has, and runs no model for that.
TEST_F(OwnText, StandInsAreAsLongAsAnAnswerMayBe) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-1m");
  const Corpus text =
      read_corpus({FIDELIO_SOURCE_DIR "/models/data/docs-heldout.txt"}, tokenizer, nullptr, 512, Shingles::none);
  Job job;
  job.context = 128;
  World world{source_, tokenizer, nullptr, maker(), {}, {}};
  const Corpus written = own_corpus(world, job, text.documents, 12, OwnAnswers::written);
  world.make_runner = [](const RunnerOptions&) -> std::unique_ptr<Runner> { throw Error("a model is run"); };
  EXPECT_THROW(own_corpus(world, job, text.documents, 12, OwnAnswers::written), Error);
  const Corpus counted = own_corpus(world, job, text.documents, 12, OwnAnswers::stand_ins);
  ASSERT_EQ(counted.documents.size(), 12u);
  ASSERT_LE(written.documents.size(), 12u);
  for (const Document& d : counted.documents) {
    EXPECT_EQ(std::ssize(d.ids), 128);
    EXPECT_EQ(d.given, 16);
  }
  for (size_t i = 0; i < written.documents.size(); ++i) EXPECT_LE(std::ssize(written.documents[i].ids), 128);
}

TEST_F(OwnText, PromptsOfWholeAnswersAreNoneOfItsOwn) {
  const Tokenizer tokenizer = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  const ChatTemplate chat("{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto asked = answer_prompts(tokenizer, &chat, {}, 24);
  EXPECT_EQ(asked.size(), 24u);
  const std::string questions = read_text(bundled_text("chat.txt"));
  const size_t first = questions.find(tokenizer.decode(asked[0]));
  ASSERT_NE(first, questions.npos);
  EXPECT_EQ(std::count(questions.begin(), questions.begin() + static_cast<int64_t>(first), '\n'), 64);
  EXPECT_THAT([&] { answer_prompts(tokenizer, &chat, {}, 1000); },
              testing::ThrowsMessage<Error>(HasSubstr("ask for no more")));
  // Without a template, the prompts are beginnings of documents, of every domain in turn.
  TextSet set;
  for (const char* domain : {"a", "a", "b"}) {
    set.documents.push_back({domain, domain, "", {}});
    set.texts.push_back({domain, "", std::vector<int32_t>(40, static_cast<int32_t>(set.texts.size()))});
  }
  const auto begun = answer_prompts(tokenizer, nullptr, set, 3);
  ASSERT_EQ(begun.size(), 3u);
  EXPECT_EQ(begun[0][0], 0);
  EXPECT_EQ(begun[1][0], 2);
  EXPECT_EQ(begun[2][0], 1);
  EXPECT_THROW(answer_prompts(tokenizer, nullptr, set, 4), Error);
}

}  // namespace
}  // namespace fidelio
