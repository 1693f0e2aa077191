// These tests are about the sets of text that a plan is searched, tried and certified on, and about how they are
// judged.
#include "compress/inputs/sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/certificate/judge.h"
#include "compress/certificate/words.h"
#include "core/error.h"
#include "core/file.h"
#include "core/rng.h"
#include "models.h"

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kContext = 16;

// Returns words of letters. The tokenizer below, which knows only bytes, makes as many tokens of them as they have
// bytes.
std::string words(int64_t bytes, uint64_t seed) {
  Rng rng(seed);
  std::string text;
  for (int64_t i = 0; i < bytes; ++i) text += static_cast<char>(i % 7 == 6 ? ' ' : 'a' + rng.below(26));
  return text;
}

Tokenizer byte_tokenizer(bool with_bos) {
  nlohmann::json vocabulary;
  for (int c = 0; c < 26; ++c) vocabulary[std::string(1, static_cast<char>('a' + c))] = c;
  vocabulary["\u0120"] = 26;  // This is a blank, as byte-level tokenizers write it.
  vocabulary["<s>"] = 27;
  nlohmann::json file = {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 27},
         {"content", "<s>"},
         {"special", true},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  if (with_bos)
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {27}}, {"tokens", {"<s>"}}}}}}};
  return Tokenizer::from_json(file.dump());
}

struct Texts : TestFolder {
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    write_file_atomically(*this / name, text);
  }
  Corpus read(const std::vector<std::string>& names, bool with_bos = false) const {
    std::vector<std::string> sources;
    for (const std::string& name : names) sources.push_back(*this / name);
    return read_corpus(sources, byte_tokenizer(with_bos), nullptr, kContext);
  }
};

std::set<std::string> hashes(const std::vector<Document>& documents) {
  std::set<std::string> all;
  for (const Document& d : documents) all.insert(d.sha256 + "@" + std::to_string(d.begin));
  return all;
}

TEST(Corpus, FilesFoldersLinesAndFormFeedsAreDocuments) {
  const Texts folder;
  folder.write("plain.txt", words(100, 1));
  folder.write("parts.txt", words(50, 2) + "\f" + words(60, 3) + "\f \n\f" + words(3, 4));
  folder.write("all/b.txt", words(40, 5));
  folder.write("all/code/a.c", words(40, 6));
  folder.write("all/code/picture", std::string(40, '\0'));
  folder.write("lines.jsonl", R"({"text": ")" + words(40, 7) + R"(", "domain": "prose", "id": "one"})" + "\n\n" +
                                  R"({"prompt": ")" + words(20, 8) + R"(", "completion": ")" + words(20, 9) + "\"}\n" +
                                  R"({"messages": [{"role": "user", "content": "x"}]})" + "\n");
  EXPECT_EQ(folder.read({"plain.txt"}).documents.size(), 1u);
  const Corpus parts = folder.read({"parts.txt"});
  ASSERT_EQ(parts.documents.size(), 2u);
  EXPECT_EQ(parts.documents[1].name, "parts.txt, part 2");
  EXPECT_EQ(parts.too_short, 1);
  folder.write("short.txt", words(3, 10));
  try {
    folder.read({"short.txt"});
    FAIL() << "a text of three words is no document";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("short.txt: no document has 16 tokens or more"));
  }
  const Corpus all = folder.read({"all"});
  ASSERT_EQ(all.documents.size(), 2u);
  EXPECT_EQ(all.domains(), (std::vector<std::string>{"code", "text"}));
  EXPECT_EQ(folder.read({"all:mine"}).domains(), std::vector<std::string>{"mine"});
  const Corpus lines = folder.read({"lines.jsonl"});
  ASSERT_EQ(lines.documents.size(), 2u);
  EXPECT_EQ(lines.documents[0].domain + " " + lines.documents[0].name, "prose one");
  EXPECT_EQ(lines.documents[1].ids.size(), 40u);
  EXPECT_EQ(lines.without_template, 1);  // There is no template to render it.
  EXPECT_THROW(folder.read({"nothing.txt"}), Error);
  folder.write("bad.jsonl", "{\"text\": 3}\n");
  EXPECT_THAT([&] { folder.read({"bad.jsonl"}); }, testing::ThrowsMessage<Error>(HasSubstr("bad.jsonl line 1")));
  folder.write("name.jsonl", R"({"text": "x", "domain": "a b"})");
  EXPECT_THAT([&] { folder.read({"name.jsonl"}); }, testing::ThrowsMessage<Error>(HasSubstr("a b")));
}

// Every window begins as the model is served: with BOS, where the tokenizer puts one before a text.
TEST(Corpus, EveryWindowBeginsWithBos) {
  const Texts folder;
  folder.write("plain.txt", words(40, 1));
  const Corpus with = folder.read({"plain.txt"}, true), without = folder.read({"plain.txt"}, false);
  ASSERT_EQ(without.documents[0].ids.size(), 40u);
  ASSERT_EQ(with.documents[0].ids.size(), 43u);  // They are windows of 15 with one more token each.
  for (size_t i = 0; i < 43; ++i) {
    if (i % kContext == 0)
      EXPECT_EQ(with.documents[0].ids[i], 27);
    else
      EXPECT_EQ(with.documents[0].ids[i], without.documents[0].ids[i - i / kContext - 1]);
  }
}

TEST(Sets, AreDisjointByDocumentAndTheSameFromAnyOrder) {
  const Texts folder;
  for (int i = 0; i < 30; ++i) {
    folder.write(fmt::format("x/a/{}.txt", i), words(100, static_cast<uint64_t>(i)));
    folder.write(fmt::format("x/b/{}.txt", i), words(30, static_cast<uint64_t>(100 + i)));
  }
  const Corpus corpus = folder.read({"x"});
  const Division two = divide(units_of(corpus, kContext, "x"), 3);
  EXPECT_EQ(two.first.size(), 20u);
  EXPECT_EQ(two.second.size(), 40u);
  for (const std::string& hash : hashes(two.first)) EXPECT_FALSE(hashes(two.second).contains(hash));
  Corpus turned = corpus;
  std::reverse(turned.documents.begin(), turned.documents.end());
  EXPECT_EQ(hashes(divide(units_of(turned, kContext, "x"), 3).first), hashes(two.first));

  // Windows are shared equally by the domains, and a document gives only a limited number.
  const TextSet set = text_set(two.second, kContext, 40);
  EXPECT_EQ(set.domains(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(set.windows, 40);
  EXPECT_EQ(set.documents.size(), 40u);
  for (const EvalText& text : set.texts) EXPECT_EQ(text.ids.size(), static_cast<size_t>(kContext));
  // Each domain has 25 of 50 windows, and all 20 documents of each are read before any gives a second window.
  const TextSet dealt = text_set(two.second, kContext, 50);
  EXPECT_EQ(dealt.windows, 45);
  EXPECT_EQ(dealt.documents.size(), 40u);
  std::map<std::string, int64_t> second;
  for (size_t i = 0; i < dealt.texts.size(); ++i)
    second[dealt.documents[i].domain] += dealt.texts[i].ids.size() == 2 * kContext;
  EXPECT_EQ(second["a"], 5);
  EXPECT_EQ(set_of_places(corpus, kContext, place_names(dealt)).sha256, dealt.sha256);
  const TextSet more = text_set(two.second, kContext, 1000);
  EXPECT_EQ(more.windows, 20 * kWindowsOfOne + 20);
  EXPECT_NE(more.sha256, set.sha256);

  // The places that a certificate names are found again, in any order; an invalid name is reported.
  const TextSet again = set_of_places(turned, kContext, place_names(set));
  EXPECT_EQ(again.sha256, set.sha256);
  for (size_t i = 0; i < set.texts.size(); ++i) EXPECT_EQ(again.texts[i].ids, set.texts[i].ids);
  for (const std::string bad : {"", "zz", "0123456789ab@0+16", "0123456789ab@x+16"})
    EXPECT_THROW(set_of_places(corpus, kContext, {bad}), Error) << bad;
  std::string beyond = place_names(set)[0];
  beyond.replace(beyond.find('+'), std::string::npos, "+99999999999999999999");
  EXPECT_THROW(set_of_places(corpus, kContext, {beyond}), Error);
  EXPECT_THROW(set_of_places(corpus, kContext, {}), Error);
  // A document may not count twice, in whole or in part, as the interval would be narrower than the truth.
  const std::string whole = place_names(set)[0], hash = whole.substr(0, whole.find('@'));
  for (const std::string& again_or_part : {whole, hash + "@8+8"})
    EXPECT_THAT(
        [&] {
          set_of_places(corpus, kContext, {whole, again_or_part});
        },
        testing::ThrowsMessage<Error>(HasSubstr("twice")));

  Corpus rest = corpus;
  EXPECT_EQ(remove_shared(rest, corpus), 60);
}

// A document that repeats, as in collected files, counts as one. Otherwise it would be used in trials and in the
// certificate, and several documents that lose alike would make an interval of no width.
TEST(Sets, ADocumentThatRepeatsCountsOnce) {
  const Texts folder;
  for (int i = 0; i < 40; ++i)
    for (const char* name : {"x/b/{}.txt", "x/a/{}.txt", "x/b/{}-copy.txt"})
      folder.write(fmt::format(fmt::runtime(name), i), words(30, static_cast<uint64_t>(i % 20)));
  Corpus corpus = folder.read({"x"});
  ASSERT_EQ(corpus.documents.size(), 120u);
  EXPECT_EQ(remove_repeated(corpus), 100);
  EXPECT_EQ(corpus.domains(), std::vector<std::string>{"a"});
  EXPECT_EQ(hashes(corpus.documents).size(), 20u);
  EXPECT_EQ(remove_repeated(corpus), 0);
}

// A single long text is cut into passages (blocks of one document), with neighbouring ones on one side, and the output
// says so.
TEST(Sets, FewDocumentsAreCutIntoPassages) {
  const Texts folder;
  folder.write("long.txt", words(60 * kContext, 1));
  folder.write("short.txt", words(3 * kContext, 1));
  const Corpus corpus = folder.read({"long.txt"});
  const std::vector<Document> units = units_of(corpus, kContext, "long.txt");
  EXPECT_EQ(units.size(), 12u);  // Each has five windows.
  const Division two = divide(units, 3);
  ASSERT_EQ(two.first.size(), 4u);
  for (const Document& d : two.first) EXPECT_LT(d.begin, two.second.front().begin);
  const TextSet set = text_set(two.second, kContext, 1000);
  EXPECT_TRUE(set.passages());
  EXPECT_EQ(set.files(), 1);
  EXPECT_THAT(describe(set), HasSubstr("8 passages of 1 document, 40 windows"));
  EXPECT_THAT(few_documents_text(set), HasSubstr("8 passages with 40 windows"));
  // A longer text has more passages, each short enough to stay alike, and each of them is read in whole.
  folder.write("longer.txt", words(30 * kWindowsOfPassage * kContext, 2));
  const std::vector<Document> more = units_of(folder.read({"longer.txt"}), kContext, "longer.txt");
  EXPECT_EQ(more.size(), 30u);
  EXPECT_EQ(text_set(more, kContext, 1000).windows, 30 * kWindowsOfPassage);
  EXPECT_GT(widening(set), 1);
  EXPECT_EQ(set_of_places(corpus, kContext, place_names(set)).sha256, set.sha256);
  EXPECT_THAT([&] { units_of(folder.read({"short.txt"}), kContext, "short.txt"); },
              testing::ThrowsMessage<Error>(HasSubstr("too little")));
}

TEST(Sets, APromiseIsJudgedByTheWorstDomain) {
  std::vector<DocumentFidelity> documents;
  Rng rng(1);
  for (int i = 0; i < 40; ++i) {
    const bool easy = i % 2 == 0;
    const double loss = (easy ? 0.01 : 0.03) * std::exp(0.2 * rng.normal());
    documents.push_back({easy ? "easy" : "hard", "", 1, 100, 100 * loss * loss, 100 * (1 - loss), 99});
  }
  const Judged domain = judge(documents, Promise::domain), all = judge(documents, Promise::all),
               document = judge(documents, Promise::document);
  EXPECT_EQ(domain.worst, "hard");
  EXPECT_EQ(all.worst, "all");
  EXPECT_EQ(document.worst, "hard");
  EXPECT_LT(document.measured.ear.ci95.low, domain.measured.ear.ci95.low);
  EXPECT_LT(domain.measured.ear.ci95.low, all.measured.ear.ci95.low);
  EXPECT_EQ(domain.measured.ear.ci95.low, domain.domains[1].ear.ci95.low);
  // Later tests are taken with more caution, and all of them together miss in one case of twenty.
  EXPECT_LT(judge(documents, Promise::domain, confidence_of_test(2)).measured.ear.ci95.low,
            domain.measured.ear.ci95.low);
  EXPECT_EQ(confidence_of_test(1), 0.95);
  double missed = 0;
  for (int test = 1; test <= kMostTests; ++test) missed += (1 - confidence_of_test(test)) / 2;
  EXPECT_LT(missed, 0.05);
  // The printed certainty is that of all tests together.
  EXPECT_DOUBLE_EQ(certainty_after(1), 0.975);
  EXPECT_DOUBLE_EQ(certainty_after(2), 0.9625);
  EXPECT_DOUBLE_EQ(certainty_after(kMostTests), 1 - missed);
}

// Returns what a certificate of these figures says in words.
std::string words_of(double asked, double found, bool met, bool kept) {
  const auto estimate = [](double value) { return Estimate{value, {value - 0.001, value + 0.001}}; };
  Certificate c;
  c.target.ear = asked;
  c.met = met;
  c.promised = {"docs", 0.95, estimate(found), estimate(0.01), estimate(0.976)};
  c.all.domain = c.promised.domain;
  c.all.documents = 40;
  c.all.tokens = 5000;
  c.all.top1 = estimate(0.976);
  c.all.document_ear = estimate(found);
  c.domains = {c.all};
  c.context = 512;
  std::string text;
  for (const PlainWords& w : in_plain_words(c, kept)) text += w.about + ": " + w.sentence + "\n";
  return text;
}

// A page about a promise that is not kept cannot be quoted as one.
TEST(Sets, WhatIsNotKeptIsNoPromise) {
  const std::string kept = words_of(0.98, 0.9825, true, true);
  EXPECT_THAT(kept, HasSubstr("Promised: the next-token probabilities of this model and of the original overlap by at "
                              "least 98.00% on average"));
  EXPECT_THAT(kept, HasSubstr("measured: 98.25% overlap (EAR). With greedy decoding the two pick the same token 97.60% "
                              "of the time."));
  const std::string failed = words_of(0.98, 0.979, false, false);
  EXPECT_THAT(failed, HasSubstr("Claimed: at least 98.00% overlap; on this text 97.90% (lower end 97.80%): NOT kept."));
  EXPECT_THAT(failed, Not(HasSubstr("Promised")));
  EXPECT_THAT(kept, Not(HasSubstr("passages")));
  // The target is met, and the figures of the file are not those of these weights.
  const std::string other = words_of(0.98, 0.9825, true, false);
  EXPECT_THAT(other, HasSubstr("which is not what the certificate says: NOT kept."));
  EXPECT_THAT(other, Not(HasSubstr("Promised")));
}

}  // namespace
}  // namespace fidelio
