#include "compress/inputs/near_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "text/shingles.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Returns a text of words that no other seed has.
std::string text_of(uint64_t seed, int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += "w" + std::to_string(seed) + "x" + std::to_string(i) + " ";
  return text;
}

Document document(const std::string& name, const std::string& text) {
  Document d{"text", name, name, {}};
  d.shingles = shingles_of(text);
  return d;
}

std::vector<std::string> names(const Corpus& corpus) {
  std::vector<std::string> all;
  for (const Document& d : corpus.documents) all.push_back(d.name);
  return all;
}

TEST(NearCopies, OneOfSeveralUnderOtherDateLinesStays) {
  Corpus corpus;
  for (int seed = 0; seed < 5; ++seed)
    for (const char* day : {"Monday 3 May", "Tuesday 4 May 2021", "Friday"})
      corpus.documents.push_back(
          document(std::to_string(seed) + day, std::string(day) + "\n" + text_of(static_cast<uint64_t>(seed), 0, 100)));
  const LeftOut out = remove_near_copies(corpus);
  EXPECT_EQ(out.documents, 10);
  EXPECT_THAT(out.example, testing::Not(IsEmpty()));
  std::vector<char> seeds;
  for (const std::string& name : names(corpus)) seeds.push_back(name[0]);
  EXPECT_THAT(seeds, ElementsAre('0', '1', '2', '3', '4'));
  EXPECT_EQ(remove_near_copies(corpus).documents, 0);
}

TEST(NearCopies, AWholeStaysAndThePiecesCutOfItGo) {
  Corpus corpus;
  for (int i = 0; i < 4; ++i)
    corpus.documents.push_back(document("piece" + std::to_string(i), text_of(1, 100 * i, 100 * i + 100)));
  corpus.documents.push_back(document("whole", text_of(1, 0, 400)));
  corpus.documents.push_back(document("other", text_of(2, 0, 50)));
  EXPECT_EQ(remove_near_copies(corpus).documents, 4);
  EXPECT_THAT(names(corpus), ElementsAre("whole", "other"));
}

// A text that quotes another for less than half of its length is a text of its own; one that is mostly two quotations
// is none, though it shares no more than half with either.
TEST(NearCopies, QuotationsCountTogether) {
  Corpus corpus;
  corpus.documents.push_back(document("a", text_of(1, 0, 400)));
  corpus.documents.push_back(document("b", text_of(2, 0, 400)));
  corpus.documents.push_back(document("essay", text_of(1, 0, 100) + text_of(3, 0, 150)));
  corpus.documents.push_back(document("patchwork", text_of(1, 200, 280) + text_of(2, 200, 280) + text_of(4, 0, 60)));
  EXPECT_EQ(remove_near_copies(corpus).documents, 1);
  EXPECT_THAT(names(corpus), ElementsAre("a", "b", "essay"));
}

TEST(NearCopies, OfWindowsThatOverlapByMoreThanHalfTheTextStays) {
  Corpus corpus;
  for (int i = 0; i < 9; ++i) corpus.documents.push_back(document(std::to_string(i), text_of(1, 90 * i, 90 * i + 200)));
  remove_near_copies(corpus);
  EXPECT_GE(corpus.documents.size(), 4u);
  EXPECT_LE(corpus.documents.size(), 5u);
}

TEST(NearCopies, WhatIsTakenFromAnotherSetIsLeftOut) {
  Corpus calibration, text;
  calibration.documents.push_back(document("book", text_of(1, 0, 5000)));
  text.documents.push_back(document("chapter", text_of(1, 1000, 2000)));
  text.documents.push_back(document("quote", text_of(1, 3000, 3100) + text_of(2, 0, 900)));
  text.documents.push_back(document("third", text_of(1, 3000, 3400) + text_of(3, 0, 700)));
  text.documents.push_back(document("new", text_of(4, 0, 1000)));
  ShingleSet there;
  there.add(calibration.documents[0], 0);
  EXPECT_EQ(there.with(text.documents[0], 0).share(), 1);
  EXPECT_EQ(there.with(text.documents[1], 0).shared, 88);
  EXPECT_EQ(there.with(text.documents[1], 0).all, 988);
  EXPECT_EQ(remove_taken_from(text, calibration).documents, 2);
  EXPECT_THAT(names(text), ElementsAre("quote", "new"));
}

// Shares of a sample of the shingles, by bits of their hashes, are those of all of them within its standard error, also
// where the two sides are sampled otherwise.
TEST(NearCopies, ASampleOfTheShinglesTellsTheShare) {
  Document half = document("half", text_of(1, 0, 4000) + text_of(2, 0, 4000));
  Document whole = document("whole", text_of(1, 0, 4000));
  const uint64_t mask = 3;
  std::erase_if(whole.shingles, [](uint64_t hash) { return (hash & mask) != 0; });
  ShingleSet sampled;
  sampled.add(whole, mask);
  const SharedShingles found = sampled.with(half, 0);
  EXPECT_NEAR(static_cast<double>(found.all), 2000, 4 * 39);  // 8,000 shingles are kept with chance 1/4
  EXPECT_NEAR(found.share(), 0.5, 4 * 0.5 / std::sqrt(found.all));
  std::erase_if(half.shingles, [](uint64_t hash) { return (hash & 7) != 0; });
  EXPECT_NEAR(sampled.with(half, 7).share(), 0.5, 4 * 0.5 / std::sqrt(1000));
}

TEST(NearCopies, AHashSetHoldsWhatWasPutIn) {
  Rng rng(1);
  std::vector<uint64_t> in = {0}, out;
  for (int i = 0; i < 10000; ++i) in.push_back(rng.next()), out.push_back(rng.next());
  HashSet set(1);
  set.insert(in);
  set.insert(in);
  for (uint64_t hash : in) ASSERT_TRUE(set.contains(hash));
  for (uint64_t hash : out) ASSERT_FALSE(set.contains(hash));
}

}  // namespace
}  // namespace fidelio
