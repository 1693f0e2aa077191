#include "text/shingles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace fidelio {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

std::string numbered(int from, int to, const std::string& between = " ") {
  std::string text;
  for (int i = from; i < to; ++i) text += "word" + std::to_string(i) + between;
  return text;
}

size_t shared(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  std::vector<uint64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both.size();
}

TEST(Shingles, EveryThirteenWordsInARowAreOne) {
  EXPECT_THAT(shingles_of(numbered(0, 13)), SizeIs(1));
  EXPECT_THAT(shingles_of(numbered(0, 113)), SizeIs(101));
  EXPECT_THAT(shingles_of(numbered(0, 3)), SizeIs(1));
  EXPECT_THAT(shingles_of(" -- \n\xff\xfe ..."), IsEmpty());
  EXPECT_THAT(shingles_of(""), IsEmpty());
  // The same run of words is one shingle, however often it occurs.
  std::string same;
  for (int i = 0; i < 100; ++i) same += "so ";
  EXPECT_THAT(shingles_of(same), SizeIs(1));
  EXPECT_NE(shingles_of("one two"), shingles_of("two one"));
  EXPECT_NE(shingles_of("one two"), shingles_of("onetwo"));
}

// A text that was wrapped, quoted or set in capitals keeps all of its shingles, and a part that was cut out keeps its
// own.
TEST(Shingles, CopiesShareThemHoweverTheyAreWritten) {
  const std::vector<uint64_t> plain = shingles_of(numbered(0, 200));
  EXPECT_EQ(shingles_of(numbered(0, 200, "\n> ")), plain);
  EXPECT_EQ(shingles_of(numbered(0, 200, ", \xe2\x80\x9c")), plain);  // It has a quotation mark beyond ASCII.
  std::string loud = numbered(0, 200);
  for (char& c : loud) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  EXPECT_EQ(shingles_of(loud), plain);
  const std::vector<uint64_t> headed = shingles_of("Monday, 3 May: " + numbered(0, 200));
  EXPECT_THAT(headed, SizeIs(plain.size() + 3));
  EXPECT_EQ(shared(headed, plain), plain.size());
  const std::vector<uint64_t> part = shingles_of(numbered(50, 120));
  EXPECT_EQ(shared(part, plain), part.size());
  EXPECT_EQ(shared(shingles_of(numbered(300, 400)), plain), 0u);
  // One changed word in the middle removes the thirteen shingles that contain it.
  std::string edited = numbered(0, 200);
  edited.replace(edited.find("word100"), 7, "edited");
  EXPECT_EQ(shared(shingles_of(edited), plain), plain.size() - kShingleWords);
}

TEST(Shingles, LettersBeyondAsciiAreWordsAndChineseOnesStandAlone) {
  EXPECT_EQ(shingles_of("Größe ÄNDERUNG"), shingles_of("größe: änderung"));
  EXPECT_NE(shingles_of("Größe"), shingles_of("Gr e"));
  std::string chinese;
  for (int i = 0; i < 20; ++i) chinese += std::string("\xe4\xb8") + static_cast<char>(0x80 + i);
  EXPECT_THAT(shingles_of(chinese), SizeIs(8));
}

}  // namespace
}  // namespace fidelio
