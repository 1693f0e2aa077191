#include "compress/inputs/run_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string words_of(int seed, int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += "w" + std::to_string(seed) + "x" + std::to_string(i) + " ";
  return text;
}

class RunTextsTest : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::vector<std::string>& documents) const {
    std::string lines;
    for (const std::string& text : documents) lines += nlohmann::json{{"text", text}}.dump() + "\n";
    const std::string path = testing::TempDir() + "run_texts_test_" + name + ".jsonl";
    write_file_atomically(path, lines);
    return path;
  }
  RunTexts read(const std::vector<std::string>& calibration, const std::vector<std::string>& text) {
    notes_.clear();
    return rid_of_copies(corpus(calibration), corpus(text), [&](const std::string& note) { notes_.push_back(note); });
  }
  Corpus corpus(const std::vector<std::string>& documents) const {
    return read_corpus({file("own", documents)}, tokenizer_, nullptr, 128, Shingles::kept);
  }
  const Tokenizer tokenizer_ = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-1m");
  std::vector<std::string> notes_;
};

TEST_F(RunTextsTest, WhatWouldCountTwiceIsLeftOutAndSaid) {
  const std::string a = words_of(1, 0, 200), b = words_of(2, 0, 200), c = words_of(3, 0, 200);
  const RunTexts clean = read({a}, {b, c});
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(clean.fresh.documents.size(), 2u);
  EXPECT_THAT(clean.left_out, IsEmpty());
  // These are the same bytes, the same text with another date line, a part of the calibration text, and a copy in the
  // text.
  const RunTexts read_texts = read({a, "3 May. " + a}, {a, "4 May. " + words_of(1, 20, 180), b, b, "5 May. " + b, c});
  EXPECT_EQ(read_texts.seen.documents.size(), 1u);
  EXPECT_EQ(read_texts.fresh.documents.size(), 2u);
  EXPECT_EQ(read_texts.taken, 2);
  EXPECT_EQ(read_texts.near_copies, 1);
  EXPECT_EQ(read_texts.left_out.size(), 3u);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("1 documents of --text repeat others"),
                                  HasSubstr("1 documents of --text are in --calibration too"),
                                  HasSubstr("1 documents of --text are left out: more than a quarter of their runs"),
                                  HasSubstr("1 documents of --calibration are near-copies of others"),
                                  HasSubstr("1 documents of --text are near-copies of others")));
  EXPECT_THROW(read({a}, {"4 May. " + a}), Error);
}

TEST_F(RunTextsTest, TheUseOfATextIsRememberedAndFoundAgain) {
  const RunTexts texts =
      read({words_of(1, 0, 2000), words_of(2, 0, 2000)}, {words_of(3, 0, 2000), words_of(4, 0, 2000)});
  const auto of = [](const Corpus& corpus, size_t i) { return std::set<std::string>{corpus.documents[i].sha256}; };
  TextSet certificate;
  certificate.documents.push_back(texts.fresh.documents[1]);
  TextAccount uses(30'000'000, texts, certificate);
  uses.add("calibration", texts.seen, of(texts.seen, 0));
  uses.add("search", texts.seen, of(texts.seen, 1));
  uses.add("trial", texts.fresh, of(texts.fresh, 0));
  uses.add_text("samples", words_of(4, 0, 200));
  uses.add_certificate();
  const TextOverlap overlap = uses.overlap();
  EXPECT_EQ(overlap.shingles.all, 1988);
  EXPECT_EQ(overlap.shingles.shared, 188);
  EXPECT_EQ(overlap.tried_on_parts, 0);

  const auto used = UsedTexts::read({{"used_texts", uses.record().to_json()}}, "model");
  std::vector<std::string> said;
  const auto note = [&](const std::string& text) { said.push_back(text); };
  // A document that was used is removed, and the note says how much of the rest was used.
  Corpus own = corpus({words_of(1, 0, 2000), words_of(5, 0, 3000) + words_of(2, 0, 1000)});
  const TextOverlap found = leave_used_out(own, used, "own.txt", note).value();
  EXPECT_THAT(said,
              ElementsAre(HasSubstr("1 documents of own.txt were used when this model was made, tried or chosen (")));
  EXPECT_THAT(said[0], HasSubstr(" for calibration)"));
  EXPECT_EQ(own.documents.size(), 1u);
  EXPECT_TRUE(found.by_record);
  EXPECT_EQ(found.taken, 1);
  EXPECT_NEAR(found.shingles.share(), 0.25, 4 * std::sqrt(0.25 * 0.75 / static_cast<double>(found.shingles.all)));
  // A text that was cut anew out of used text is refused. Without a record nothing is known.
  Corpus recut = corpus({words_of(1, 100, 900), words_of(1, 1000, 1900)});
  EXPECT_THROW(leave_used_out(recut, used, "recut.txt", note), Error);
  EXPECT_FALSE(leave_used_out(recut, std::nullopt, "recut.txt", note).has_value());
}

}  // namespace
}  // namespace fidelio
