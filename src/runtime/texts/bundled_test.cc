// These tests check that the bundled texts are the files of models/data, and how they are named.
#include "runtime/texts/bundled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "runtime/texts/corpus.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(BundledTexts, AreTheFilesOfTheSource) {
  for (const char* name : {"docs-calibration.txt", "docs-heldout.txt", "corpus-calibration.jsonl",
                           "corpus-heldout.jsonl", "chat.txt", "tools-calibration.jsonl", "tools-heldout.jsonl"}) {
    const std::string path = bundled_text(name);
    EXPECT_TRUE(text_exists(path));
    EXPECT_EQ(read_text(path), read_text_file(FIDELIO_SOURCE_DIR "/models/data/" + std::string(name))) << name;
  }
}

TEST(BundledTexts, AreNamedAsTextsAreAndAnyOtherNameIsRefused) {
  const TextSource whole = parse_text_source("fidelio:/docs-heldout.txt"),
                   docs = parse_text_source("fidelio:/chat.txt:docs");
  EXPECT_EQ(whole.path, "fidelio:/docs-heldout.txt");
  EXPECT_EQ(whole.domain, "");
  EXPECT_EQ(docs.path, "fidelio:/chat.txt");
  EXPECT_EQ(docs.domain, "docs");
  EXPECT_FALSE(text_exists("fidelio:/other.txt"));
  EXPECT_FALSE(text_exists("fidelio:/"));
  EXPECT_THAT(message_of([] { read_text("fidelio:/../x"); }), HasSubstr("there are chat.txt, "));
  EXPECT_THAT(message_of([] { bundled_text("docs"); }), HasSubstr("no text docs comes with fidelio"));
  EXPECT_THAT(message_of([] { read_text("not/there.txt"); }), HasSubstr("not/there.txt"));
}

}  // namespace
}  // namespace fidelio
