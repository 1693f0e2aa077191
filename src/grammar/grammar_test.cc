// These tests draw answers at random within the masks and compare them with an independent validator and with
// std::regex.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/foreign/json.h"
#include "core/test_support.h"
#include "grammar/json_schema.h"
#include "grammar/schema/test_validator.h"
#include "grammar/test_reading.h"
#include "grammar/token_constraint.h"

namespace fidelio::grammar {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// This vocabulary of 32k tokens is like that of real text: every byte, then words and their beginnings.
const std::shared_ptr<const TokenTree>& vocabulary() {
  static const auto tree = [] {
    std::set<std::string> words;
    std::ifstream file(FIDELIO_SOURCE_DIR "/models/data/docs-calibration.txt");
    std::string word;
    while (file >> word && words.size() < 31'000)
      for (size_t n = 2; n <= word.size(); ++n) words.insert(word.substr(0, n)), words.insert(" " + word.substr(0, n));
    for (const char* more :
         {"{\"", "\":", "\",", "\"}", "],", "}]", "\", \"", ": \"", ", ", "\n  ", "true", "null", "\\n"})
      words.insert(more);
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.insert(tokens.end(), words.begin(), words.end());
    tokens.resize(32'000);  // Tokens without a text are in no mask.
    return std::make_shared<const TokenTree>(std::move(tokens));
  }();
  return tree;
}

TEST(Grammar, ReadsWhatStdRegexMatches) {
  std::mt19937 random(1);
  for (const char* pattern :
       {"a*b", "(ab|ba)+", "[^ab]{2,4}", "a{0,3}b?a", "(a|ab)(c|bcd)?", "[a-c]+\\.[a-c]{2}", "", "a|",
        "(?:a(?:b|c)*){2}", "\\d+(\\.\\d+)?", "[\\w.]+", "a.c", "((a?){3}){2}b", "\\[a\\]|\\{b\\}"}) {
    Automaton machine(regex_grammar(pattern));
    const std::regex twin(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 4000; ++i) {
      std::string text;
      const std::string letters = "abcd.1[]{}";
      for (unsigned n = random() % 8; n > 0; --n) text += letters[random() % (i % 2 ? letters.size() : 3)];
      ASSERT_EQ(reads(machine, text), std::regex_match(text, twin)) << pattern << " on " << text;
    }
  }
}

TEST(Grammar, ReadsCharactersAsUtf8) {
  Automaton machine(regex_grammar("[\\u00e9-\\u{1F600}]"));
  for (const char* good : {"\u00e9", "\u0800", "\uffff", "\U00010000", "\U0001f600"}) EXPECT_TRUE(reads(machine, good));
  for (const char* bad : {"e", "\u00e8", "\U0001f601", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc1\xa9"})
    EXPECT_FALSE(reads(machine, bad));
  Automaton dot(regex_grammar("."));
  int64_t count = 0;  // It counts the characters. UTF-8 has 1112064, of which `.` leaves out the two line ends.
  for (int a = 0; a < 256; ++a) {
    const auto one = dot.step(dot.start(), static_cast<uint8_t>(a));
    if (one == Automaton::kDead) continue;
    if (dot.accepts(one)) ++count;
    for (int b = 0; b < 256; ++b) {
      const auto two = dot.step(one, static_cast<uint8_t>(b));
      if (two == Automaton::kDead) continue;
      if (dot.accepts(two)) ++count;
      for (int c = 0; c < 256; ++c) {
        const auto three = dot.step(two, static_cast<uint8_t>(c));
        if (three == Automaton::kDead) continue;
        if (dot.accepts(three)) ++count;
        for (int d = 0; d < 256; ++d) {
          const auto four = dot.step(three, static_cast<uint8_t>(d));
          if (four != Automaton::kDead && dot.accepts(four)) ++count;
        }
      }
    }
  }
  EXPECT_EQ(count, 0x110000 - 0x800 - 2);
}

TEST(Grammar, RefusesWhatItCannotImpose) {
  for (const auto& [pattern, word] : {std::pair{"a(?=b)", "look-ahead"},
                                      {"(?<!a)b", "look-behind"},
                                      {"(a)\\1", "\\1"},
                                      {"\\bword", "\\b"},
                                      {"a**b(", "group"},
                                      {"[z-a]", "range"},
                                      {"a{3,1}", "count"},
                                      {"x)", ")"},
                                      {"(((a{999}){999}){999})", "states"}})
    try {
      regex_grammar(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(word)) << pattern;
    }
  for (const auto& [schema, word] : {std::pair{R"({"not": {}})", "no value"},
                                     {R"({"$ref": "#"})", "itself"},
                                     {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "itself"},
                                     {R"({"oneOf": [{"uniqueItems": true}, {"maximum": 3}]})", "oneOf"},
                                     {R"({"$ref": "#/nowhere"})", "nowhere"},
                                     {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
                                     {R"({"type": "car"})", "car"},
                                     {R"([])", "schema"},
                                     {R"({"type": "number", "minimum": 0.75, "maximum": 0.25})", "bounds"},
                                     {R"({"type": "number", "exclusiveMinimum": 2.5, "maximum": 2.5})", "bounds"},
                                     {R"({"type": "number", "multipleOf": 0})", "above 0"},
                                     {R"({"type": "integer", "multipleOf": 1234567})", "multipleOf"},
                                     {R"({"minimum": 11, "maximum": 19, "multipleOf": 10})", "no text"},
                                     {R"({"type": "integer", "minimum": 3, "maximum": 2})", "bounds"}})
    try {
      schema_grammar(Json::parse(schema));
      ADD_FAILURE() << schema;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(word)) << schema;
    }
}

TEST(Grammar, FollowsReferencesAsUrlsSpellThem) {
  const Json schema = Json::parse(R"({"$defs": {"a<b>/c": {"const": 1}, "%3C": {"const": 2}, "<": {"const": 3}},
    "anyOf": [{"$ref": "#/$defs/a%3Cb%3E~1c"}, {"$ref": "#/$defs/%3C"}]})");
  Automaton machine(schema_grammar(schema));
  EXPECT_TRUE(reads(machine, "1"));
  EXPECT_TRUE(reads(machine, "2"));
  EXPECT_FALSE(reads(machine, "3"));
}

// Every text of up to five characters, and some longer ones, is compared with its value as a number.
TEST(Grammar, NumbersWithinBoundsAndStepsAreAllOfThem) {
  const auto compare = [](const char* schema, auto&& fits) {
    Automaton machine(schema_grammar(Json::parse(schema)));
    const std::string letters = "0123459.-";
    std::vector<std::string> texts = {""};
    for (size_t begin = 0, length = 0; length < 5; ++length)
      for (const size_t end = texts.size(); begin < end; ++begin)
        for (const char letter : letters) texts.push_back(texts[begin] + letter);
    for (const char* longer : {"0.750000000000000", "0.750000000000001", "-2.49999999999999", "120.0500"})
      texts.emplace_back(longer);
    static const std::regex plain("-?(0|[1-9][0-9]*)([.][0-9]+)?"), minus_zero("-0([.]0+)?");
    int met = 0;
    for (const std::string& text : texts) {
      const bool number = std::regex_match(text, plain) && !std::regex_match(text, minus_zero);
      const bool wanted = number && fits(std::stold(text));
      ASSERT_EQ(reads(machine, text), wanted) << schema << " on " << text;
      met += wanted;
    }
    EXPECT_GT(met, 0) << schema;
  };
  using Real = long double;
  // Both numbers and their quotient are each off by half a unit in the last place.
  const auto steps = [](Real x, Real unit) {
    return std::abs(x / unit - std::round(x / unit)) <= std::abs(x / unit) * 3 * 0x1p-64L;
  };
  compare(R"({"type": "number", "minimum": 0.25, "maximum": 0.75})", [](Real x) { return x >= .25L && x <= .75L; });
  compare(R"({"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 0.5})",
          [](Real x) { return x > .25L && x < .5L; });
  compare(R"({"type": "number", "minimum": -2.5, "exclusiveMaximum": 13.04})",
          [](Real x) { return x >= -2.5L && x < 13.04L; });
  compare(R"({"type": "number", "exclusiveMinimum": -10.5, "maximum": -0.2})",
          [](Real x) { return x > -10.5L && x <= -.2L; });
  compare(R"({"type": "number", "minimum": 0.1})", [](Real x) { return x >= .1L; });
  compare(R"({"type": "number", "exclusiveMinimum": 0})", [](Real x) { return x > 0; });
  compare(R"({"type": "number", "multipleOf": 0.05})", [&](Real x) { return steps(x, .05L); });
  compare(R"({"multipleOf": 2.5, "maximum": 100})", [&](Real x) { return x <= 100 && steps(x, 2.5L); });
  compare(R"({"type": "number", "multipleOf": 30, "exclusiveMinimum": -30})",
          [&](Real x) { return x > -30 && steps(x, 30); });
}

// The tests below use random schemas.

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}
  Json schema(int depth) {
    switch (pick(depth > 0 ? 15 : 10)) {
      case 0:
        return {{"type", "string"}, {"minLength", pick(4)}, {"maxLength", 4 + pick(30)}};
      case 1:
        return {{"type", "integer"}, {"minimum", pick(2000) - 1000}, {"maximum", 1000 + pick(100'000)}};
      case 2:
        return {{"type", "number"}, {"exclusiveMinimum", pick(20) - 10.5}, {"maximum", 10 + pick(10)}};
      case 3:
        return {{"type", "boolean"}, {"description", "yes or no"}};
      case 4:
        return {{"enum", {"red", "gr\u00fcn \"x\"", 3, nullptr, {{"a", 1}}, 2.5}}};
      case 5:
        return {{"type", "string"}, {"pattern", pick(2) ? "^[A-Z]{2}-[0-9]{3,5}$" : "^(a|b\"c)+$"}};
      case 6:
        return {{"const", pick(100)}};
      case 7:
        return {{"type", {"integer", "null"}}, {"minimum", 0}, {"maximum", 9}};
      case 8:
        return {{"type", "number"}, {"minimum", pick(100) / 64.0 - 1}, {"maximum", 1 + pick(100) / 100.0}};
      case 9:
        return {{"type", "number"}, {"minimum", -1000}, {"maximum", 1000}, {"multipleOf", (1 + pick(100)) / 20.0}};
      case 10:
        return {{"type", "array"}, {"items", schema(depth - 1)}, {"minItems", pick(3)}, {"maxItems", 2 + pick(3)}};
      case 11:
        return {{"type", "array"},
                {"prefixItems", {schema(depth - 1), schema(depth - 1)}},
                {"items", schema(0)},
                {"minItems", 2},
                {"maxItems", 4}};
      case 12:
        return {{"anyOf", {schema(depth - 1), schema(depth - 1)}}};
      default: {
        Json properties = Json::object(), required = Json::array();
        const int n = 1 + pick(5);
        for (int i = 0; i < n; ++i) {
          const std::string name = std::string("key ") + static_cast<char>('a' + i);
          properties[name] = schema(depth - 1);
          if (pick(2)) required.push_back(name);
        }
        return {
            {"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}};
      }
    }
  }
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

 private:
  std::mt19937 random_;
};

// This is the time of this thread, so a busy machine does not matter.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns an answer drawn from the masks, a token at a time, which ends at random where it may. The result is empty if
// the answer is longer than `most` tokens.
std::string drawn(TokenConstraint& constraint, std::mt19937& random, int most, int64_t& tokens, double& seconds) {
  std::string text;
  auto state = constraint.start();
  for (int i = 0; i < most; ++i) {
    if (constraint.must_end(state) || (constraint.may_end(state) && random() % 4 == 0)) return text;
    const double start = processor_seconds();
    const auto mask = constraint.allowed(state);
    seconds += processor_seconds() - start;
    ++tokens;
    std::vector<int32_t> ids;
    for (size_t id = 0; id < vocabulary()->size(); ++id)
      if (mask[id / 64] >> (id % 64) & 1) ids.push_back(static_cast<int32_t>(id));
    if (ids.empty()) {
      ADD_FAILURE() << "nothing goes on after " << text;
      return "";
    }
    const int32_t id = ids[random() % ids.size()];
    text += vocabulary()->bytes(id);
    state = constraint.next(state, id);
    EXPECT_NE(state, Constraint::kForbidden);
  }
  return "";
}

TEST(Grammar, EveryAnswerIsValidForItsSchema) {
  std::mt19937 random(7);
  int64_t answers = 0, tokens = 0, masks = 0;
  double seconds = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Json schema = Generator(seed).schema(3);
    TokenConstraint constraint(schema_grammar(schema), vocabulary());
    for (int i = 0; i < 3; ++i) {
      const std::string text = drawn(constraint, random, 4000, tokens, seconds);
      ASSERT_FALSE(text.empty()) << schema;
      ASSERT_TRUE(Json::accept(text)) << text << "\n" << schema;
      ASSERT_TRUE(valid_for(schema, Json::parse(text))) << text << "\n" << schema;
      ++answers;
    }
    masks += constraint.masks_made();
  }
  std::printf(
      "%zu tokens in the vocabulary; %ld answers, %ld tokens, %ld masks made; %.1f us of processor time a token\n",
      vocabulary()->size(), answers, tokens, masks, 1e6 * seconds / static_cast<double>(tokens));
  EXPECT_EQ(answers, 600);
}

TEST(Grammar, AMaskHoldsWhatCanBeReadAndNothingElse) {
  std::mt19937 random(3);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    TokenConstraint constraint(schema_grammar(Generator(seed).schema(2)), vocabulary());
    auto state = constraint.start();
    for (int i = 0; i < 12 && !constraint.must_end(state); ++i) {
      const std::vector<uint64_t> mask(constraint.allowed(state).begin(), constraint.allowed(state).end());
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary()->size()); ++id) {
        const bool allowed = mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1;
        ASSERT_EQ(allowed, constraint.next(state, id) != Constraint::kForbidden)
            << seed << " " << vocabulary()->bytes(id);
        if (allowed) ids.push_back(id);
      }
      ASSERT_FALSE(ids.empty());
      state = constraint.next(state, ids[random() % ids.size()]);
    }
  }
}

TEST(Grammar, WearsOutBeforeAnAnswerMeetsItsLastState) {
  TokenConstraint constraint(json_object_grammar(), vocabulary());
  EXPECT_FALSE(constraint.worn());
  std::mt19937 random(5);
  for (int answer = 0; !constraint.worn() && answer < 10'000; ++answer) {
    std::string text = "{\"a\":";  // Every sequence of open brackets is a state of its own.
    for (int depth = 0; depth < 40; ++depth) text += random() % 2 ? "[" : "{\"a\":";
    auto state = constraint.start();
    for (const char c : text) {
      state = constraint.next(state, static_cast<uint8_t>(c));
      ASSERT_NE(state, Constraint::kForbidden) << answer << " " << text;
    }
    constraint.allowed(state);
  }
  EXPECT_TRUE(constraint.worn());
}

// Unknown keywords have no effect, as JSON Schema defines it; a schema of them alone takes any value.
TEST(Grammar, PassesOverUnknownKeywords) {
  Automaton machine(schema_grammar(Json::parse(
      R"({"type": "object", "properties": {"a": {"x-order": 1}, "b": {"type": "integer", "nullable": true}}, "required": ["a", "b"]})")));
  EXPECT_TRUE(reads(machine, R"({"a": [1, "x"], "b": 3})"));
  EXPECT_FALSE(reads(machine, R"({"a": 1, "b": "x"})"));
}

// A fuzzer found this: such an automaton had no first state.
TEST(Grammar, RefusesWhatNoTextFits) {
  const auto constrain = [](const char* schema) { TokenConstraint(schema_grammar(Json::parse(schema)), vocabulary()); };
  EXPECT_THROW(constrain(R"({"$defs": {"t": {"$ref": "#/$defs/t"}}, "$ref": "#/$defs/t"})"), Error);
  EXPECT_THROW(constrain(R"({"$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}]}}, "$ref": "#/$defs/t"})"), Error);
  EXPECT_THROW(constrain(R"({"enum": []})"), Error);
}

// The profile of a fuzzer showed 2^14 copies of the same digits for {"minimum": 1}.
TEST(Grammar, BoundsOfNumbersTakeAStateADigitAndPlace) {
  for (const char* schema : {R"({"type": "integer", "minimum": 1})", R"({"type": "integer", "exclusiveMinimum": 0})",
                             R"({"type": "number", "minimum": 0.5})", R"({"type": "integer", "maximum": -7})",
                             R"({"type": "integer", "minimum": 123456789012345, "maximum": 987654321098765})"})
    EXPECT_LT(schema_grammar(Json::parse(schema)).size(), json_object_grammar().size() + 15 * 15 * 10) << schema;
  Automaton machine(schema_grammar(Json::parse(R"({"type": "integer", "minimum": 1097, "maximum": 20309})")));
  for (int i = 0; i < 30'000; ++i) EXPECT_EQ(reads(machine, std::to_string(i)), i >= 1097 && i <= 20309) << i;
}

// Copies and comparisons may grow with the square of a schema, whose size only the limit on request bodies bounds.
TEST(Grammar, PaysForWhatGrowsFasterThanTheSchema) {
  const auto list = [](int count, const auto& item) {
    std::string text = item(0);
    for (int i = 1; i < count; ++i) text += "," + item(i);
    return text;
  };
  const auto constant = [](int i) { return fmt::format("{{\"const\":{}}}", i); };
  const auto property = [](int i) { return fmt::format("\"{}\":{{}}", i); };
  const auto message = [](const std::string& text) {
    const Json schema = parse_ordered_json(text, "the schema");
    return message_of_hostile(text.size(), [&] { schema_grammar(schema); });
  };
  const std::string properties = "\"properties\":{" + list(10'000, property) + "}";
  EXPECT_NE(message("{\"oneOf\":[" + list(100'000, constant) + "]}"), "");
  EXPECT_NE(message("{" + properties + ",\"anyOf\":[" +
                    list(30'000, [](int i) { return fmt::format("{{\"minProperties\":{}}}", i % 2); }) + "]}"),
            "");
  message("{" + properties + ",\"required\":[" + list(200'000, [](int) { return std::string("\"x\""); }) + "]}");
  message("{\"$defs\":{" + list(10'000, property) + "},\"anyOf\":[" +
          list(100'000, [](int i) { return fmt::format("{{\"$ref\":\"#/$defs/{}\"}}", 9'000 + i % 1000); }) + "]}");
  EXPECT_EQ(message("{\"oneOf\":[" + list(500, constant) + "]}"), "");
}

TEST(Grammar, FollowsReferencesInsideThemselves) {
  const Json schema = Json::parse(R"({"$defs": {"tree": {"type": "object", "properties": {"leaf": {"type": "boolean"},
    "next": {"$ref": "#/$defs/tree"}}, "required": ["leaf"], "additionalProperties": false}}, "$ref": "#/$defs/tree"})");
  Automaton machine(schema_grammar(schema));
  EXPECT_TRUE(reads(machine, R"({"leaf": true, "next": {"leaf": false, "next": {"leaf":true}}})"));
  EXPECT_FALSE(reads(machine, R"({"next": {"leaf": true}})"));
  EXPECT_FALSE(reads(machine, R"({"leaf": true, "next": {"leaf": true})"));
  Automaton any(json_object_grammar());
  EXPECT_TRUE(reads(any, R"({"a": [1, -2.5e3, {"b": null}, "\u00e9\n"], "c": {}})"));
  for (const char* bad :
       {"[]", "{\"a\": 01}", "{\"a\": \"\\ud800\"}", "{\"a\" 1}", "{,}", "{\"a\": 1,}", "{\"a\": \"\n\"}"})
    EXPECT_FALSE(reads(any, bad)) << bad;
}

}  // namespace
}  // namespace fidelio::grammar
