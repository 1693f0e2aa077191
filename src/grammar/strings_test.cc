// These tests are about strings of a form: formats, patterns, lengths, and several of them together.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "core/error.h"
#include "grammar/json_schema.h"
#include "grammar/schema/document.h"
#include "grammar/test_reading.h"

namespace fidelio::grammar {
namespace {

using ::testing::HasSubstr;

Json text_schema(const char* format, const std::string& pattern) {
  return {{"type", "string"}, {"format", format}, {"pattern", pattern}};
}

TEST(Strings, ReadsDaysThatThereAre) {
  Automaton machine(schema_grammar(Json{{"type", "string"}, {"format", "date"}}));
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  for (const int year : {0, 1, 4, 100, 400, 1900, 1999, 2000, 2010, 2020, 2023, 2024, 2100, 2400, 9999})
    for (int month = 0; month <= 13; ++month)
      for (int day = 0; day <= 32; ++day) {
        const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        const bool is =
            year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= kDays[month - 1] + (leap && month == 2 ? 1 : 0);
        const std::string text = fmt::format("\"{:04}-{:02}-{:02}\"", year, month, day);
        ASSERT_EQ(reads(machine, text), is) << text;
      }
  Automaton moment(schema_grammar(Json{{"type", "string"}, {"format", "date-time"}}));
  EXPECT_TRUE(reads(moment, "\"2020-12-31T23:59:59Z\""));
  EXPECT_FALSE(reads(moment, "\"2020-12-31\""));
}

TEST(Strings, ReadsStringsOfAFormat) {
  const std::string label(63, 'a');
  const std::map<std::string, std::pair<std::vector<std::string>, std::vector<std::string>>> formats = {
      {"email",
       {{"a@b.cd", "first.last+tag@mail.example.com"}, {"Dad", "a@b", "@b.cd", "a@-b.cd", ".a@b.cd", "a@b..cd"}}},
      {"hostname",
       {{"localhost", "a-b.example.com", label + ".org"}, {"", "-a", "a-", "a..b", "a_b", label + "a", "a."}}},
      {"ipv6",
       {{"::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8"},
        {"", ":", "1", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "1:2:3:4:5:6:7::8",
         ":::", "1:::2"}}},
      {"duration",
       {{"P1D", "P3W", "PT5M", "P1Y2M3DT4H5M6S", "PT1H", "P2M"}, {"", "P", "PT", "P1", "1D", "P1DT", "P1S", "P1W2D"}}}};
  for (const auto& [format, examples] : formats) {
    Automaton machine(schema_grammar(Json{{"type", "string"}, {"format", format}}));
    for (const std::string& good : examples.first)
      EXPECT_TRUE(reads(machine, '"' + good + '"')) << format << " " << good;
    for (const std::string& bad : examples.second)
      EXPECT_FALSE(reads(machine, '"' + bad + '"')) << format << " " << bad;
  }
  // Generators repeat the format as a pattern.
  Automaton pattern(schema_grammar(Json{{"type", "string"}, {"format", "email"}, {"pattern", "^x$"}}));
  EXPECT_TRUE(reads(pattern, "\"x\""));
}

// These are the schemas that Zod 4 writes for z.iso.datetime(), z.uuid() and z.email().
TEST(Strings, MeetsAPatternAndAFormatTogether) {
  Automaton moment(schema_grammar(text_schema(
      "date-time",
      R"(^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$)")));
  EXPECT_TRUE(reads(moment, "\"2024-02-29T23:59:59Z\""));
  // The last two do not have the format.
  for (const char* bad : {"2023-02-29T23:59:59Z", "2024-01-01T23:59Z", "0000-01-01T00:00:00Z"})
    EXPECT_FALSE(reads(moment, fmt::format("\"{}\"", bad))) << bad;
  EXPECT_FALSE(reads(moment, "\"2024-02-29T23:59:59+01:00\""));  // Only the format allows this offset, not the pattern.
  Automaton uuid(schema_grammar(
      text_schema("uuid",
                  "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
                  "00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$")));
  EXPECT_TRUE(reads(uuid, "\"3f2b8c1e-52aa-4c6d-9f00-0123456789ab\""));
  EXPECT_FALSE(reads(uuid, "\"3f2b8c1e-52aa-9c6d-9f00-0123456789ab\""));
  Automaton email(schema_grammar(text_schema(
      "email", R"(^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$)")));
  for (const char* good : {"a@b.cd", "o'neil.x+tag@mail.example.com"})
    EXPECT_TRUE(reads(email, fmt::format("\"{}\"", good))) << good;
  for (const char* bad : {".a@b.cd", "a..b@c.de", "a.@b.cd", "a@b", "a@b..cd"})
    EXPECT_FALSE(reads(email, fmt::format("\"{}\"", bad))) << bad;
  Automaton name(
      schema_grammar(Json{{"type", "string"}, {"pattern", "^[a-z\"\u00e9]+$"}, {"minLength", 2}, {"maxLength", 4}}));
  for (const char* good : {"ab", "abcd", R"(\"\"\"\")", "\u00e9\u00e9\u00e9\u00e9"})
    EXPECT_TRUE(reads(name, fmt::format("\"{}\"", good))) << good;
  for (const char* bad : {"a", "abcde", "aB", "\u00e9"}) EXPECT_FALSE(reads(name, fmt::format("\"{}\"", bad))) << bad;
}

// Every text that was begun can be ended: no state is left from which the required rest cannot be reached.
TEST(Strings, MeetsWithoutDeadEnds) {
  const Json both = {{"type", "string"}, {"pattern", "^(a*b|c*d)$"}, {"minLength", 3}, {"maxLength", 3}};
  Automaton machine(schema_grammar(both));
  for (const char* good : {"\"aab\"", "\"ccd\""}) EXPECT_TRUE(reads(machine, good));
  Automaton::State state = machine.start();
  for (const char c : std::string("\"aa")) state = machine.step(state, static_cast<uint8_t>(c));
  EXPECT_EQ(machine.step(state, 'a'), Automaton::kDead);
  for (const Json& none : {text_schema("date", "^x$"), Json{{"type", "string"}, {"pattern", "^ab$"}, {"maxLength", 1}}})
    try {
      schema_grammar(none);
      ADD_FAILURE() << none;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("no text at all fits")) << none;
    }
}

TEST(Strings, LooksAheadWhereATextBegins) {
  std::mt19937 random(3);
  for (const char* pattern : {"^(?!ab)[abc]+", "(?=.*a)(?=.*b)[abc]{2,4}", "^(?!.*aa)(?:a|b)*$", "(?!a|bb).*",
                              "^(?!(ab)+c)(?=..)\\w*", "^(?!^[ab]*$)[abc]*$", "^(?=a*$)(?!(b|aa)$).*"}) {
    Automaton machine(regex_grammar(pattern));
    const std::regex twin(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      for (unsigned n = random() % 7; n > 0; --n) text += "abc"[random() % 3];
      ASSERT_EQ(reads(machine, text), std::regex_match(text, twin)) << pattern << " on " << text;
    }
  }
  for (const char* unclear : {"^(?!^a|b$)c", "^(?!a$b)c", "^(?!a", "^(?!a)b|c"})
    EXPECT_THROW(regex_grammar(unclear), Error);
  // A look-ahead that would apply at any place in a text is refused.
  EXPECT_THROW(schema_grammar(Json{{"type", "string"}, {"pattern", "(?!a)b"}}), Error);
}

// Several demands on one text may have very many states; they are refused before the work is done.
TEST(Strings, PayForWhatTheyMeet) {
  for (const auto& [pattern, most] : {std::pair{"^(a|b)*a(a|b){40}$", 1000}, {"^(?!(a|b)*a(a|b){40}c)(a|b|c)*$", 60}}) {
    const std::clock_t begin = std::clock();
    Json schema = {{"type", "object"}, {"properties", Json::object()}};
    for (int i = 0; i < 50; ++i)
      schema["properties"][std::to_string(i)] = {{"type", "string"}, {"pattern", pattern}, {"maxLength", most}};
    EXPECT_THROW(schema_grammar(schema), Error) << pattern;
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10) << pattern;
  }
}

}  // namespace
}  // namespace fidelio::grammar
