#include "compress/inputs/used_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "text/shingles.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns a text of words that no other seed has.
Document used_document(uint64_t seed, int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += "w" + std::to_string(seed) + "x" + std::to_string(i) + " ";
  return document_of_text(text);
}

UsedTexts read_back(const UsedTexts& used) {
  return UsedTexts::read({{"used_texts", nlohmann::json::parse(used.to_json().dump())}}, "model").value();
}

TEST(UsedTexts, DocumentsAreRecognisedByTheirHash) {
  UsedTexts used(100);
  used.add("calibration", used_document(1, 0, 1000), 0);
  used.add("trial", used_document(2, 0, 1000), 0);
  const UsedTexts read = read_back(used);
  EXPECT_EQ(read.set_of(used_document(1, 0, 1000)), "calibration");
  EXPECT_EQ(read.set_of(used_document(2, 0, 1000)), "trial");
  EXPECT_EQ(read.set_of(used_document(2, 0, 999)), "");
  EXPECT_FALSE(UsedTexts::read(nlohmann::json::object(), "model").has_value());
}

// The record's sample shows the share of a text that was used within its standard error, though what was used is no
// more there, and it shows nothing of a text that is new.
TEST(UsedTexts, TheRecordTellsTheShareThatWasUsed) {
  UsedTexts used(1024);
  for (uint64_t seed = 0; seed < 20; ++seed)
    used.add(seed < 15 ? "calibration" : "search", used_document(seed, 0, 2000), 0);
  const UsedTexts read = read_back(used);
  Document half = used_document(3, 0, 1000);
  const Document again = used_document(17, 0, 1000), fresh = used_document(100, 0, 2000);
  for (const Document& d : {again, fresh})
    half.shingles.insert(half.shingles.end(), d.shingles.begin(), d.shingles.end());
  std::sort(half.shingles.begin(), half.shingles.end());
  const SharedShingles found = read.with(half, 0);
  const double expected = 1024.0 / 40000 * 4000;  // so many of the text's shingles, at the record's rate
  EXPECT_NEAR(static_cast<double>(found.all), expected, 4 * std::sqrt(expected));
  EXPECT_NEAR(found.share(), 0.5, 4 * 0.5 / std::sqrt(expected));
  EXPECT_EQ(read.with(fresh, 0).shared, 0);
  EXPECT_GT(read.with(fresh, 0).all, 10);
  // A side may keep a sample of its shingles by bits of their hash: the others are not looked for.
  const SharedShingles few = read.with(half, 3);
  EXPECT_NEAR(static_cast<double>(few.all), expected / 4, 4 * std::sqrt(expected / 4));
}

// However much text there was, the record stays as small as it was asked to be.
TEST(UsedTexts, TheRecordIsBounded) {
  UsedTexts used(300);
  for (uint64_t seed = 0; seed < 30; ++seed) used.add(std::to_string(seed % 3), used_document(seed, 0, 1000), 0);
  const nlohmann::json json = used.to_json();
  size_t digits = 0;
  for (const auto& [name, text] : json.at("shingles").items()) digits += text.get<std::string>().size();
  EXPECT_GT(digits, 250u * 12);
  EXPECT_LE(digits, 300u * 12);
  // A short text is recorded whole.
  UsedTexts little(300);
  little.add("trial", used_document(1, 0, 200), 0);
  EXPECT_EQ(read_back(little).with(used_document(1, 0, 200), 0).shared, 188);
}

TEST(UsedTexts, ADamagedRecordIsNamed) {
  UsedTexts used(10);
  used.add("trial", used_document(1, 0, 200), 0);
  nlohmann::json json = used.to_json();
  json["shingles"]["trial"] = "not a hash";
  try {
    UsedTexts::read({{"used_texts", json}}, "model");
    FAIL() << "read what is no record";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("model: the record of texts that were used"));
  }
}

TEST(UsedTexts, SequencesAreTracedToTheirDocuments) {
  Document a{"text", "a", "A", {}}, b{"text", "b", "B", {}};
  for (int i = 0; i < 10; ++i) a.ids.push_back(i), b.ids.push_back(100 + i);
  const std::vector<std::vector<int32_t>> sequences = {{4, 5, 6, 7}, {108, 109}, {4, 5, 6, 8}};
  const SequenceOrigins origins = origins_of(sequences, {a, b}, 4);
  EXPECT_THAT(origins.documents, ElementsAre("A", "B"));
  ASSERT_EQ(origins.others.size(), 1u);
  EXPECT_EQ(origins.others[0], &sequences[2]);
}

// Every sentence says what was compared and found, and none says more.
TEST(UsedTexts, WordsSayWhatWasFound) {
  EXPECT_THAT(overlap_words(std::nullopt), HasSubstr("is not known"));
  EXPECT_EQ(overlap_words(TextOverlap{false, {0, 5000}}), "This model was not made, tried or chosen with any of it.");
  EXPECT_THAT(overlap_words(TextOverlap{false, {1, 50000}}), HasSubstr("less than 0.1% of their runs of 13 words"));
  EXPECT_THAT(overlap_words(TextOverlap{false, {500, 5000}}), HasSubstr(": 10.0% of their runs"));
  EXPECT_THAT(overlap_words(TextOverlap{false, {0, 0}, 1}), HasSubstr("tried on other passages of the same documents"));
  EXPECT_THAT(overlap_words(TextOverlap{true, {0, 299}}), HasSubstr("no more than 1.0% of it does"));
  EXPECT_THAT(overlap_words(TextOverlap{true, {30, 300}}), HasSubstr("About 10.0% of it stands in text"));
  EXPECT_THAT(overlap_words(TextOverlap{true, {0, 0}}), HasSubstr("is not known"));
  const TextOverlap o{true, {3, 7}, 1, 2, 5};
  EXPECT_EQ(to_json(overlap_from_json(to_json(o))), to_json(o));
}

}  // namespace
}  // namespace fidelio
