// These tests ask for hostile forms of an answer. Each ends in an Error or in an automaton that dies, within 2 s and
// 256 MB beyond its size (core/test_support.h measures this). Each of these forms once took the whole stack, minutes or
// all memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/foreign/json.h"
#include "core/test_support.h"
#include "grammar/json_schema.h"
#include "grammar/token_constraint.h"

namespace fidelio::grammar {
namespace {

using ::testing::HasSubstr;

// The tokens are every byte, and runs of a few bytes.
const std::shared_ptr<const TokenTree>& bytes_and_runs() {
  static const auto tree = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (unsigned i = 0; i < 4096; ++i) {
      std::string text;
      for (unsigned left = i; text.size() < 6; left /= 4) text += "ab[\""[left % 4];
      tokens.push_back(text);
    }
    return std::make_shared<const TokenTree>(std::move(tokens));
  }();
  return tree;
}

std::string message_of_pattern(const std::string& pattern) {
  return message_of_hostile(pattern.size(), [&] { regex_grammar(pattern); });
}

TEST(HostileForm, QuantifiersInARowAreRefused) {
  for (const char* quantifier : {"*", "{1}", "{0,1}", "??"})
    EXPECT_THAT(message_of_pattern("a" + repeated(quantifier, 1'000'000)), HasSubstr("a quantifier behind another"));
  for (const char* pattern : {"a**", "a{2}{3}", "a+*", "a*?*", "(a*){2}*"})
    EXPECT_THAT(message_of_pattern(pattern), HasSubstr("a quantifier behind another")) << pattern;
  for (const char* pattern : {"a*?b??c{2}?d+?", "(?:a*)*", "a{x", "a*{x"}) EXPECT_EQ(message_of_pattern(pattern), "");
}

// Returns a schema in which each part refers to the one before, so none is deeply nested in the text.
std::string chain_of_references(int length) {
  std::string schema = R"({"anyOf":[{"type":"null"})";
  for (int i = 0; i < length; ++i) schema += fmt::format(R"(,{{"$ref":"#/anyOf/{}"}})", i);
  return schema + "]}";
}

TEST(HostileForm, ChainsOfReferencesDoNotTakeTheStack) {
  const std::string text = chain_of_references(45'000);
  const nlohmann::ordered_json schema = parse_ordered_json(text, "the schema");
  EXPECT_EQ(message_of_hostile(text.size(), [&] { schema_grammar(schema); }), "");
  EXPECT_EQ(message_of_hostile(text.size(), [&] { TokenConstraint(schema_grammar(schema), bytes_and_runs()); }), "");
}

// Every bracket may belong to one of two arrays, so 40 of them have 2^40 readings.
TEST(HostileForm, PlacesThatDoubleWithEveryByteEnd) {
  const auto schema = nlohmann::ordered_json::parse(R"({"$defs": {
    "a": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
    "b": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}}}, "$ref": "#/$defs/a"})");
  bool worn = false, died = false;
  EXPECT_EQ(message_of_hostile(0,
                               [&] {
                                 TokenConstraint constraint(schema_grammar(schema), bytes_and_runs());
                                 auto state = constraint.start();
                                 for (int depth = 0; depth < 60 && state != Constraint::kForbidden; ++depth) {
                                   constraint.allowed(state);
                                   state = constraint.next(state, '[');
                                 }
                                 worn = constraint.worn(), died = state == Constraint::kForbidden;
                               }),
            "");
  EXPECT_TRUE(worn);
  EXPECT_TRUE(died);
}

TEST(HostileForm, StatesOfThousandsOfPlacesEnd) {
  bool worn = false;
  size_t bytes = 0;
  EXPECT_EQ(message_of_hostile(0,
                               [&] {
                                 TokenConstraint constraint(regex_grammar("[ab]*a[ab]{8000}"), bytes_and_runs());
                                 std::mt19937 random(1);
                                 auto state = constraint.start();
                                 for (int i = 0; i < 20'000 && state != Constraint::kForbidden; ++i) {
                                   constraint.allowed(state);
                                   state = constraint.next(state, "ab"[random() % 2]);
                                 }
                                 worn = constraint.worn(), bytes = constraint.bytes();
                               }),
            "");
  EXPECT_TRUE(worn);
  EXPECT_GT(bytes, size_t{8} << 20);
}

// Here cases, conditions and negations double with every further one, and schemas refer to themselves by all of them.
TEST(HostileForm, ChoicesThatDoubleEnd) {
  const auto list = [](int count, const std::string& open, const std::string& close) {
    std::string text = open + "0" + close;
    for (int i = 1; i < count; ++i) text += "," + open + std::to_string(i) + close;
    return text;
  };
  const auto message = [](const std::string& text) {
    const nlohmann::ordered_json schema = parse_ordered_json(text, "the schema");
    return message_of_hostile(text.size(), [&] { TokenConstraint(schema_grammar(schema), bytes_and_runs()); });
  };
  const std::string two = R"({"anyOf":[{"required":["a)", more = R"("]},{"required":["b"]}]})";
  EXPECT_NE(message("{\"allOf\":[" + list(60, two, more) + "]}"), "");
  EXPECT_NE(message("{\"dependentRequired\":{" + list(60, "\"a", "\":[\"b\"]") + "}}"), "");
  EXPECT_EQ(message("{\"oneOf\":[" + list(300, "{\"minimum\":", "}") + "]}"), "");
  EXPECT_NE(message("{\"not\":{\"oneOf\":[" + list(3000, "{\"minLength\":", "}") + "]}}"), "");
  EXPECT_NE(message("{\"patternProperties\":{" + list(6, "\"(a|b)*a(a|b){12}", "\":{\"minimum\":1}") + "}}"), "");
  message("{\"contains\":{\"minimum\":1},\"maxContains\":3,\"maxItems\":5000}");
  message("{\"$id\":\"http://a.example/" + repeated("x", 10'000) + "/\",\"$defs\":{" +
          list(8'000, "\"d", "\":{\"$id\":\"y\"}") + "}}");
  // Every pattern makes an automaton that has a state of thousands of places for every byte of a name.
  std::string names = "{\"type\":\"object\",\"properties\":{";
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    names += i > 0 ? ",\"" : "\"";
    for (int at = 0; at < 2'000; ++at) names += "ab"[random() % 2];
    names += "\":{\"type\":\"null\"}";
  }
  EXPECT_NE(
      message(names + "},\"patternProperties\":{" + list(6, "\"^[ab]*a[ab]{4000}", "\":{\"type\":\"null\"}") + "}}"),
      "");
  message(
      R"({"$defs":{"t":{"type":"object","required":["x","y"],"properties":{"x":{"$ref":"#/$defs/o"},"y":{"$ref":"#/$defs/o"}}},
    "o":{"oneOf":[{"$ref":"#/$defs/t"},{"type":"object","properties":{"x":{"$ref":"#/$defs/o"}}},
    {"not":{"$ref":"#/$defs/t"}}]}},"$ref":"#/$defs/o"})");
}

}  // namespace
}  // namespace fidelio::grammar
