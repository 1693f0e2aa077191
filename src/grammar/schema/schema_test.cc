// These tests take schemas from the suite of json-schema-org, and random ones, and compare the texts that their
// grammars read with a slow validator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "grammar/json_schema.h"
#include "grammar/schema/test_validator.h"
#include "grammar/test_reading.h"

namespace fidelio::grammar {
namespace {

using ::testing::HasSubstr;
using SchemaJson = nlohmann::ordered_json;

SchemaJson in_json(const std::string& text) { return SchemaJson::parse(text); }

void expect_reads(const std::string& schema, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  const SchemaJson json = in_json(schema);
  Automaton machine(schema_grammar(json));
  for (const std::string& text : good) EXPECT_TRUE(reads(machine, text)) << schema << " on " << text;
  for (const std::string& text : bad) EXPECT_FALSE(reads(machine, text)) << schema << " on " << text;
}

std::string refusal(const std::string& schema) {
  try {
    const SchemaJson json = in_json(schema);
    Automaton machine(schema_grammar(json));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_valid_answers(const SchemaJson& schema, Automaton& machine, uint32_t seed, int count) {
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    const auto text = drawn_text(machine, random);
    ASSERT_TRUE(text) << "nothing ends what was begun for " << schema;
    ASSERT_TRUE(SchemaJson::accept(*text)) << *text << "\n" << schema;
    ASSERT_TRUE(valid_for(schema, in_json(*text))) << *text << "\n" << schema;
  }
}

TEST(Schema, AnswersOfTheSuiteAreValid) {
  std::ifstream file(FIDELIO_SOURCE_DIR "/src/grammar/schema/suite.json");
  const SchemaJson suite = SchemaJson::parse(file);
  ASSERT_GT(suite["cases"].size(), 50U);
  for (const SchemaJson& one : suite["cases"]) {
    SCOPED_TRACE(one["about"].get<std::string>());
    const SchemaJson& schema = one["schema"];
    Automaton machine(schema_grammar(schema));
    for (const SchemaJson& value : one["valid"]) {
      EXPECT_TRUE(reads(machine, value.dump())) << value;
      EXPECT_TRUE(valid_for(schema, value)) << value;
    }
    for (const SchemaJson& value : one["invalid"]) {
      EXPECT_FALSE(reads(machine, value.dump())) << value;
      EXPECT_FALSE(valid_for(schema, value)) << value;
    }
    expect_valid_answers(schema, machine, 1, 20);
  }
}

// This generates small schemas with every keyword that can be combined with others.
class LogicGenerator {
 public:
  explicit LogicGenerator(uint32_t seed) : random_(seed) {}

  SchemaJson schema(int depth) {
    SchemaJson all = SchemaJson::object();
    for (int parts = 1 + pick(2); parts > 0; --parts) all.update(depth > 0 ? part(depth) : plain());
    return all;
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  std::string name() { return std::string(1, static_cast<char>('a' + pick(3))); }
  SchemaJson constant() {
    const SchemaJson all = {0, 1, 2.5, "a", "ab", true, nullptr};
    return all[static_cast<size_t>(pick(static_cast<int>(all.size())))];
  }
  SchemaJson any(int depth) { return pick(8) == 0 ? SchemaJson(pick(2) == 0) : schema(depth - 1); }

  SchemaJson plain() {
    switch (pick(10)) {
      case 0:
        return {{"type", "object"}};
      case 1:
        return {{"type", {"integer", "array"}}};
      case 2:
        return {{"const", constant()}};
      case 3:
        return {{"enum", {constant(), constant(), constant()}}};
      case 4:
        return {{"minimum", pick(4) - 1}};
      case 5:
        return {{"exclusiveMaximum", 2 + pick(4) / 2.0}};
      case 6:
        return {{"type", "string"}, {"minLength", pick(3)}};
      case 7:
        return {{"pattern", pick(2) ? "a" : "^[ab]*$"}};
      case 8:
        return {{"required", {name()}}};
      default:
        return {{"multipleOf", 1 + pick(3)}};
    }
  }
  SchemaJson part(int depth) {
    switch (pick(16)) {
      case 0:
        return {{"allOf", {any(depth), any(depth)}}};
      case 1:
        return {{"anyOf", {any(depth), any(depth)}}};
      case 2:
        return {{"oneOf", {any(depth), any(depth)}}};
      case 3:
        return {{"not", any(depth)}};
      case 4:
        return {{"if", any(depth)}, {"then", any(depth)}, {"else", any(depth)}};
      case 5:
        return {{"properties", {{"a", any(depth)}, {"b", any(depth)}}}, {"additionalProperties", pick(2) == 0}};
      case 6:
        return {{"properties", {{"c", any(depth)}}}, {"required", {"c"}}, {"unevaluatedProperties", pick(2) == 0}};
      case 7:
        return {{"patternProperties", {{"^a", any(depth)}}}, {"additionalProperties", any(depth)}};
      case 8:
        return {{"prefixItems", {any(depth), any(depth)}}, {"items", any(depth)}};
      case 9:
        return {{"contains", any(depth)}, {"maxContains", 1 + pick(2)}, {"maxItems", 3}};
      case 10:
        return {{"prefixItems", {any(depth)}}, {"unevaluatedItems", any(depth)}};
      case 11:
        return {{"dependentRequired", {{name(), {name()}}}}};
      case 12:
        return {{"dependentSchemas", {{name(), any(depth)}}}};
      case 13:
        return {{"propertyNames", {{"maxLength", 1}}}, {"maxProperties", 2}};
      case 14:
        return {{"items", {{"enum", {1, 2, "a"}}}}, {"uniqueItems", true}, {"minItems", pick(3)}};
      default:
        return plain();
    }
  }

  std::mt19937 random_;
};

TEST(Schema, AnswersOfRandomSchemasAreValid) {
  int taken = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    const SchemaJson schema = LogicGenerator(seed).schema(2);
    try {
      Automaton machine(schema_grammar(schema));
      ++taken;
      ASSERT_NO_FATAL_FAILURE(expect_valid_answers(schema, machine, seed, 6)) << seed;
    } catch (const Error& e) {  // The schema is refused, or no value meets it.
      EXPECT_FALSE(std::string(e.what()).empty());
    }
  }
  EXPECT_GT(taken, 900);
}

// Users have schemas of 64-bit fields, whose bounds are finer than a floating-point number can tell apart.
TEST(Schema, NumbersAreMetDigitByDigit) {
  expect_reads(R"({"type": "integer", "minimum": 1000000000000000000, "maximum": 1000000000000000009})",
               {"1000000000000000000", "1000000000000000009"},
               {"999999999999999999", "1000000000000000010", "100000000000000000", "10000000000000000000"});
  expect_reads(R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})",
               {"-9223372036854775808", "9223372036854775807", "0", "-1"},
               {"-9223372036854775809", "9223372036854775808", "-0", "00"});
  expect_reads(R"({"type": "integer", "minimum": 0, "maximum": 18446744073709551615})", {"18446744073709551615", "0"},
               {"18446744073709551616", "-1"});
  expect_reads(R"({"type": "integer", "exclusiveMinimum": 9007199254740992})", {"9007199254740993"},
               {"9007199254740992", "1"});
  expect_reads(R"({"minimum": 9007199254740992.0, "exclusiveMaximum": 9007199254740993})", {"9007199254740992"},
               {"9007199254740993", "9007199254740991.9", "9007199254740992.5"});
  expect_reads(R"({"const": 9007199254740993})", {"9007199254740993"}, {"9007199254740992"});
  expect_reads(R"({"enum": [18446744073709551615, -9223372036854775808, 0.1]})",
               {"18446744073709551615", "-9223372036854775808", "0.1"}, {"18446744073709551616"});
  expect_reads(R"({"type": "integer", "not": {"const": 9007199254740993}, "minimum": 9007199254740992})",
               {"9007199254740992", "9007199254740994"}, {"9007199254740993"});
  expect_reads(R"({"type": "integer", "multipleOf": 2.5, "maximum": 20})", {"0", "5", "-15", "20"}, {"2", "25", "3"});
  expect_reads(R"({"type": "integer", "multipleOf": 1e-8})", {"12391239123"}, {"1.5"});
  // JSON's reader rounds larger integers, so the bound that is imposed is certainly within the given one.
  expect_reads(R"({"type": "integer", "minimum": 100000000000000000000, "maximum": 100000000000001000000})",
               {"100000000000000500000"}, {"99999999999999999999", "100000000000001000000"});
  expect_reads(R"({"type": "integer", "minimum": 1, "maximum": 1.7976931348623157e308})", {"1", "999999999999999"},
               {"0"});
  EXPECT_THAT(refusal(R"({"const": 100000000000000000000})"), HasSubstr("digit by digit"));
  EXPECT_THAT(refusal(R"({"type": "integer", "minimum": 1e308})"), "");
  EXPECT_THAT(refusal(R"({"type": "integer", "minimum": 1000000000000000001, "maximum": 1000000000000000000})"),
              HasSubstr("no integer is within the bounds"));
}

// json-schema-org's suite asked for what is no integer and was given 150000080001105.0095, which is one for whoever
// reads it as a floating-point number. The longest answers are drawn, and judged as such readers do.
TEST(Schema, NumbersAreOfTheFormForReadersOfFloatingPoint) {
  expect_reads(R"({"type": "number", "not": {"type": "integer"}})",
               {"12345678901234.5", "-1.25", "0.123456789012345", "-0.5"},
               {"150000080001105.009559085082001", "123456789012345.5", "1.234567890123456", "3", "3.0"});
  expect_reads(R"({"type": "number", "exclusiveMinimum": 123456789012345})", {"123456789012346", "999999999999999"},
               {"123456789012345", "123456789012345.5"});
  expect_reads(R"({"type": "number", "minimum": 0.12345678901234567, "maximum": 123456789012.3456})",
               {"0.123456789012346", "123456789012.345"}, {"0.123456789012345", "123456789012.346"});
  EXPECT_THAT(refusal(R"({"type": "number", "not": {"type": "integer"}, "minimum": 1000000000000000})"),
              HasSubstr("no text"));
  EXPECT_THAT(refusal(R"({"type": "number", "minimum": 0.30000000000000004, "maximum": 0.30000000000000004})"),
              HasSubstr("at most 15 digits"));
  std::mt19937 random(1);
  for (const char* schema :
       {R"({"type": "number", "not": {"type": "integer"}})", R"({"type": "number", "not": {"const": 1.5}})",
        R"({"type": "number", "exclusiveMinimum": 99999999999999.9})",
        R"({"type": "number", "exclusiveMinimum": -0.1, "exclusiveMaximum": 100000000000000})",
        R"({"type": "number", "not": {"multipleOf": 0.5}})"}) {
    Automaton machine(schema_grammar(in_json(schema)));
    for (int i = 0; i < 1000; ++i) {
      std::string text;
      for (Automaton::State state = machine.start();; state = machine.step(state, static_cast<uint8_t>(text.back()))) {
        std::string next;
        for (const char byte : std::string("-.0123456789"))
          if (machine.step(state, static_cast<uint8_t>(byte)) != Automaton::kDead) next += byte;
        if (next.empty()) break;
        text += next[random() % next.size()];
      }
      ASSERT_TRUE(reads(machine, text)) << schema << " on " << text;
      ASSERT_TRUE(valid_for(in_json(schema), in_json(text))) << schema << " on " << text;
    }
  }
}

TEST(Schema, CasesExcludeEachOther) {
  expect_reads(R"({"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                             {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]})",
               {R"({"a":1})", R"({"b":1})"}, {R"({"a":1,"b":1})", "{}"});
  expect_reads(R"({"oneOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"})", {"2", "6"}, {"3", "4", "5"});
  expect_reads(R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
                   "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "required": ["kind"]})",
               {R"({"kind":"a","x":1})", R"({"kind":"b"})"}, {R"({"kind":"a"})", R"({"x":1})"});
  expect_reads(R"({"type": "object", "properties": {"card": {"type": "integer"}, "address": {"type": "string"}},
                   "dependentRequired": {"card": ["address"]}})",
               {"{}", R"({"address":"x"})", R"({"card":1,"address":"x"})"}, {R"({"card":1})"});
  expect_reads(
      R"({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false})",
      {"{}", R"({"x-a":1,"x-b":2})"}, {R"({"x-a":"1"})", R"({"y":1})"});
  expect_reads(
      R"({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
      {R"({"a":null,"b":1})", R"({"b":1})"}, {R"({"b":null})", R"({"a":1})"});
  expect_reads(R"({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "uniqueItems": true, "minItems": 2})",
               {R"(["red","blue"])", R"(["blue","red","green"])"}, {R"(["red"])", R"(["red","red"])"});
  expect_reads(R"({"type": "array", "minItems": 2.0, "maxItems": 3.0, "items": true})", {"[1,2]"},
               {"[1]", "[1,2,3,4]"});
  expect_reads(R"({"$id": "http://a.example/root", "$ref": "other#here", "$defs":
                   {"o": {"$id": "other", "$defs": {"x": {"$anchor": "here", "type": "integer"}}}}})",
               {"1"}, {"null"});
}

// An optional property is not begun if no value can fit it.
TEST(Schema, BeginsNothingThatCannotBeEnded) {
  const SchemaJson schema = in_json(R"({"type": "object", "allOf": [{"properties": {"aa": {"pattern": "^x"}}},
    {"properties": {"aa": {"type": "string", "maxLength": 0}, "ab": {"type": "null"}}}]})");
  Automaton machine(schema_grammar(schema));
  Automaton::State state = machine.start();
  for (const char c : std::string("{\"a")) state = machine.step(state, static_cast<uint8_t>(c));
  EXPECT_EQ(machine.step(state, 'a'), Automaton::kDead);
  EXPECT_NE(machine.step(state, 'b'), Automaton::kDead);
}

TEST(Schema, RefusesByName) {
  for (const auto& [schema, word] :
       {std::pair{R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
        {R"({"$ref": "http://a.example/b"})", "leads out of the schema"},
        {R"({"$ref": "#/$defs/none"})", "leads nowhere"},
        {R"({"$recursiveRef": "#"})", "$recursiveRef"},
        {R"({"minProperties": 3})", "keys might repeat"},
        {R"({"not": {"unevaluatedProperties": false}})", "unevaluatedProperties"},
        {R"({"items": [{"type": "null"}]})", "prefixItems"},
        {R"({"exclusiveMinimum": true, "minimum": 1})", "draft 4"},
        {R"({"type": "object", "required": ["a"], "properties": {"a": false}})", "required and forbidden"},
        {R"({"pattern": "\\p{L}"})", "\\p"},
        {R"({"not": {"const": [1]}, "type": "array"})", "must not be"},
        {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength exceeds"},
        {R"({"allOf": [{"const": 1}, {"const": 2}]})", "no constant"}})
    EXPECT_THAT(refusal(schema), HasSubstr(word)) << schema;
}

}  // namespace
}  // namespace fidelio::grammar
