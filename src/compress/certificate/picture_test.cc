#include "compress/certificate/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::Not;

int64_t count_of(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Certificate two_domains() {
  Certificate c;
  c.target.ear = 0.98;
  for (const char* name : {"code", "a<b"}) {
    DomainFidelity d;
    d.domain = name;
    d.ear = {0.985, {0.984, 0.986}};
    d.kl = {0.002, {0.001, 0.003}};
    d.document_ear = {0.985, {0.97, 0.99}};
    c.domains.push_back(d);
  }
  return c;
}

TEST(Picture, HasAPointForEveryDocumentAndALineForTheTarget) {
  const std::vector<DocumentFidelity> documents = {{"code", "x.py", 1, 100, 0.1, 98.5, 98},
                                                   {"code", "y.py", 1, 100, 0.2, 98.1, 98},
                                                   {"a<b", "<script>", 1, 100, 0.2, 97.1, 98}};
  const std::string svg = domains_picture(two_domains(), documents);
  EXPECT_EQ(count_of(svg, "<title>"), 3);
  EXPECT_THAT(svg, HasSubstr("asked for: at least 98.00%"));
  EXPECT_THAT(svg, HasSubstr("a&lt;b: 98.50%"));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

// One document gives no interval: its ends are not drawn, and nothing is NaN.
TEST(Picture, LeavesOutWhatIsNotKnown) {
  Certificate c = two_domains();
  c.target = {};
  c.domains.resize(1);
  c.domains[0].ear.ci95 = {};
  c.domains[0].document_ear = {0.985, {}};
  const std::vector<DocumentFidelity> documents = {{"code", "x.py", 1, 100, 0.1, 98.5, 98}};
  const std::string svg = domains_picture(c, documents);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("asked for")));
  EXPECT_EQ(ladder_picture(c), "");
}

}  // namespace
}  // namespace fidelio
