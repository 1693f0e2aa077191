// These tests check what a stranger's tokenizer or chat template can do: it ends in an Error or finishes, within 2 s
// and 256 MB beyond its size (core/test_support.h measures this). Each of these inputs once took minutes, gigabytes or
// the whole stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/test_support.h"
#include "text/chat_template.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// The tests below are about chat templates.

std::string rendering(const std::string& source) {
  return message_of_hostile(source.size(), [&] { ChatTemplate(source).render({}); });
}

// Returns a template in which `s` is a megabyte of a's (or of `letter`).
std::string with_text(const std::string& rest, const std::string& letter = "a", const std::string& times = "1000000") {
  return "{% set s = '" + letter + "' * " + times + " %}" + rest;
}

TEST(HostileTemplate, FiltersOfFiltersDoNotEndTheStack) {
  const std::string refused = rendering("{{ [[1]]|map('map'" + repeated(", 'map'", 12'000) + ")|list }}");
  EXPECT_THAT(refused, testing::Not(""));
  EXPECT_THAT(rendering("{{ [1]|map('map'" + repeated(", 'map'", 12'000) + ")|list }}"), testing::Not(""));
}

TEST(HostileTemplate, TextOperationsAreLinearOrPaidFor) {
  EXPECT_EQ(rendering(with_text("{{ s.strip('b' * 100000 ~ 'a')|length }}")), "");
  EXPECT_EQ(rendering("{% set s = 'a ' * 500000 %}{{ s.rsplit(none, 50000)|length }}"), "");
  EXPECT_EQ(rendering("{{ ('1_' * 500000 ~ '1')|float }}"), "");
  EXPECT_THAT(rendering("{{ ('1_' * 500000 ~ '1')|int }}"), HasSubstr("does not fit in 64 bits"));
  const std::string needle = "'a' * 100000 ~ 'b'";
  for (const std::string use :
       {"s.find(n)", "s.rfind(n)", "s.count(n)", "n in s", "s.replace(n, 'x')|length", "s.partition(n)|length",
        "s.split(n)|length", "s.rsplit(n, 5)|length", "s.rpartition(n)|length"})
    EXPECT_EQ(rendering(with_text("{% set n = " + needle + " %}{{ " + use + " }}")), "") << use;
  for (const std::string use : {"s.find(n)", "s.rfind(n)", "s.count(n)", "n in s"})
    EXPECT_EQ(rendering(with_text("{% set n = 'b' ~ 'a' * 100000 %}{{ " + use + " }}")), "") << use;
}

TEST(HostileTemplate, RepeatedOperationsRunOutOfWork) {
  const auto often = [](const std::string& what) {
    return with_text("{% for i in range(99999) %}{% for j in range(99999) %}{{ " + what +
                     " }}{% endfor %}{% endfor %}");
  };
  for (const std::string what : {"s[0]",
                                 "s[:1]",
                                 "s|length",
                                 "s.find('b')",
                                 "s.count('b')",
                                 "'b' in s",
                                 "s is lower",
                                 "s is upper",
                                 "s.isdigit()",
                                 "s.startswith('b')",
                                 "(s|float)",
                                 "(s|int)",
                                 "s.strip('b')[0]",
                                 "s|first",
                                 "s == s ~ 'b'",
                                 "s|upper|length",
                                 "s|reverse|length",
                                 "s|tojson|length",
                                 "s.split('b')|length",
                                 "'%.1s' % s"})
    EXPECT_THAT(rendering(often(what)), AnyOf(HasSubstr("more work"), HasSubstr("more memory"))) << what;
}

TEST(HostileTemplate, NamesAndAttributesArePaidFor) {
  EXPECT_THAT(rendering("{{ [{}]|map(attribute='a" + repeated(".a", 500'000) + "')|list }}"), testing::Not(""));
  EXPECT_THAT(rendering("{{ range(100000)|map(attribute='a" + repeated(".a", 1000) + "', default=1)|list|length }}"),
              HasSubstr("more work"));
  EXPECT_THAT(rendering("{{ range(90000)|sort(attribute='a" + repeated(",a", 50'000) + "') }}"), testing::Not(""));
  std::string names;
  for (int i = 0; i < 50'000; ++i) names += "{% set a" + std::to_string(i) + " = 1 %}";
  EXPECT_THAT(rendering(names + "{% for i in range(99999) %}{{ nothing }}{% endfor %}"), HasSubstr("more work"));
  std::string arguments;
  for (int i = 0; i < 50'000; ++i) arguments += ", a" + std::to_string(i) + "=1";
  EXPECT_THAT(rendering("{{ dict(x=1" + arguments + ")|length }}"), AnyOf("", HasSubstr("more work")));
  EXPECT_THAT(rendering("{% macro f(" + arguments.substr(2) + ") %}{% endmacro %}{{ f(x=1" + arguments + ") }}"),
              testing::Not(""));
}

TEST(HostileTemplate, RangesDoNotOverflow) {
  EXPECT_EQ(ChatTemplate("{% for i in range(-9223372036854775807 - 1, 9223372036854775807, 4611686018427387904) %}{{ i "
                         "}} {% endfor %}")
                .render({}),
            "-9223372036854775808 -4611686018427387904 0 4611686018427387904 ");
  EXPECT_EQ(ChatTemplate("{% for i in range(9223372036854775807, -9223372036854775807 - 1, -9223372036854775807 - 1) "
                         "%}{{ i }} {% endfor %}")
                .render({}),
            "9223372036854775807 -1 ");
  EXPECT_THAT(rendering("{{ range(-9223372036854775807, 9223372036854775807)|length }}"), HasSubstr("at most 100000"));
}

TEST(HostileTemplate, MemoryIsBounded) {
  for (const std::string hungry :
       {"{{ ('ab' * 100000000)|length }}", "{% set s = 'a' * 40000000 %}{{ s|upper|length }}",
        "{{ ('a' * 20000000)|list|length }}", "{{ ('a,' * 10000000).split(',')|length }}",
        "{{ ('\\n' * 20000000).splitlines()|length }}",
        "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99) %}{% set n.l = [n.l|string] "
        "%}{% endfor %}{% endfor %}",
        "{% set n = namespace(p=0) %}{% for i in range(99999) %}{% for j in range(99) %}{% set n.p = namespace(p=n.p) "
        "%}{% endfor %}{% endfor %}",
        "{% set n = namespace(p=0) %}{% for i in range(99999) %}{% for j in range(99) %}{% set q = n.p %}{% macro m() "
        "%}{{ q }}{% endmacro %}{% set "
        "n.p = m %}{% endfor %}{% endfor %}",
        "{{ [[0] * 3000000]|tojson|length }}", "{{ ([''] * 900000)|join('a' * 1000)|length }}",
        "{{ ([1] * 1000)|tojson(indent=100)|length }}", "{{ ([1] * 1000)|tojson(separators=('a' * 1000000, '')) }}"})
    EXPECT_THAT(rendering(hungry), AnyOf("", HasSubstr("more work"), HasSubstr("more memory"))) << hungry;
}

TEST(HostileTemplate, SourcesAreBounded) {
  EXPECT_THAT(rendering(repeated("{{a}}", 1'000'000)), HasSubstr("words and signs"));
  EXPECT_THAT(rendering("{{ '" + repeated("a", 20'000'000)), HasSubstr("not closed"));
  EXPECT_THAT(rendering("{% raw %}" + repeated("{% ", 1'000'000)), HasSubstr("endraw"));
  EXPECT_THAT(rendering(repeated("{#", 500'000)), HasSubstr("not closed"));
  EXPECT_THAT(rendering("{{ " + repeated("'' ", 400'000) + "}}"), "");
  const std::string shown = rendering("{{ x" + repeated("x", 1'000'000) + ".y }}");
  EXPECT_THAT(shown, HasSubstr("is undefined"));
  EXPECT_LT(shown.size(), 1000u);
}

TEST(HostileTemplate, JsonWithManyKeysIsLinear) {
  nlohmann::ordered_json message = {{"role", "user"}, {"content", ""}};
  auto& entries = message.get_ref<nlohmann::ordered_json::object_t&>();
  for (int i = 0; i < 300'000; ++i) entries.emplace_back("key" + std::to_string(i), 1);
  const ChatTemplate t("{{ messages[0]|length }}");
  std::string out;
  EXPECT_EQ(
      message_of_hostile(
          300'000 * 60,
          [&] { out = t.render_json(nlohmann::ordered_json::array({message}), nlohmann::ordered_json::object()); }),
      "");
  EXPECT_EQ(out, "300002");
}

// The searches and splits are compared with the obvious, slow ones.
TEST(HostileTemplate, LinearSearchesFindWhatTheObviousOnesFind) {
  std::mt19937 random(3);
  const auto text = [&](size_t most) {
    std::string s(random() % (most + 1), 'a');
    for (char& c : s) c = "ab "[random() % 3];
    return s;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string s = text(20), what = text(4);
    const size_t from = random() % (s.size() + 2);
    EXPECT_EQ(jinja::find_text(s, what, from), s.find(what, from)) << '"' << s << "\" \"" << what << '"';
    EXPECT_EQ(jinja::find_last_text(s, what), s.rfind(what)) << '"' << s << "\" \"" << what << '"';
  }
}

// The tests below are about tokenizers.

Json hostile_tokenizer() {
  Json vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"aa", 3}, {" ", 4}, {"\xC4\xA0", 5}, {"x", 6}};
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a a"}}}}};
}

std::string encoding(const Json& file, const std::string& text) {
  const std::string json = file.dump();
  return message_of_hostile(json.size() + text.size() * 40, [&] { Tokenizer::from_json(json).encode(text); });
}

Json splitting(const std::string& pattern) {
  Json file = hostile_tokenizer();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return file;
}

TEST(HostileTokenizer, PatternsThatLookFarAheadAreStopped) {
  const std::string a(500'000, 'a');
  for (const std::string pattern :
       {"(?=a*b)c", "(?:(?=a*)a)*", "(?:(?=a*)a)*b|a", "(a+)\\1b", "(?=a*b)c|a", "(?=a*)a", "(?=(?:a|b)*c)x|a",
        "(?=[^b]*b)c|a", "a*b|a", "(a|aa)+c|a", "(?:a*)*b|a", "(?=(a+)+$)b|a", "(?<=a*)a|x", "(a*)\\1b|a"})
    EXPECT_THAT(encoding(splitting(pattern), a),
                AnyOf("", HasSubstr("takes too long"), HasSubstr("more work"), HasSubstr("compile")))
        << pattern;
  // The text is first split into many pieces, each of which alone is cheap enough.
  Json two = splitting("x");
  two["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {two["pre_tokenizer"], splitting("(?=a*b)c|a")["pre_tokenizer"]}}};
  EXPECT_THAT(encoding(two, repeated(std::string(5000, 'a') + "x", 200)),
              AnyOf(HasSubstr("takes too long"), HasSubstr("more work"), HasSubstr("compile")));
}

TEST(HostileTokenizer, MillionsOfBlanksFinishOrAreRefusedClearly) {
  const std::string gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  const std::string qwen =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  for (const std::string& pattern : {gpt2, qwen}) {
    EXPECT_THAT(encoding(splitting(pattern), std::string(12'000'000, ' ')),
                HasSubstr("a run of millions of like characters"))
        << pattern;
    EXPECT_EQ(encoding(splitting(pattern), std::string(300'000, ' ') + "a"), "") << pattern;
    EXPECT_EQ(encoding(splitting(pattern), repeated(std::string(200, ' ') + "a\n", 3000)), "") << pattern;
  }
}

// A quarter of a megabyte that repeats blanks, letters or marks takes time by its length.
TEST(HostileTokenizer, TextsThatRepeatTakeTimeByTheirLength) {
  const std::string folder = FIDELIO_SOURCE_DIR "/models/";
  for (const std::string& model : {folder + "quill-1m", folder + "quill-26m"}) {
    const Tokenizer tokenizer = Tokenizer::load(model);
    for (const std::string unit : {" ", "\n", "a", ".", "1", "\t ", "ab", "<|", "<", " a\n\n", "\u00a0", "\u4e2d",
                                   "e\u0301", "\U0001f469\u200d\U0001f469\u200d\U0001f467"}) {
      const std::string text = repeated(unit, 250'000 / unit.size());
      EXPECT_EQ(message_of_hostile(40 * text.size(), [&] { EXPECT_FALSE(tokenizer.encode(text).empty()); }), "")
          << model << Json(unit);
    }
  }
}

TEST(HostileTokenizer, ExpressionsThemselvesAreBounded) {
  EXPECT_THAT(encoding(splitting(repeated("a|", 100'000) + "b"), "a"), HasSubstr("a regular expression of"));
  EXPECT_THAT(encoding(splitting(repeated("(", 5000) + "a" + repeated(")", 5000)), "a"), HasSubstr("does not compile"));
  EXPECT_THAT(encoding(splitting("((((a{1000}){1000}){1000}){1000})"), "a"), AnyOf("", HasSubstr("does not compile")));
}

TEST(HostileTokenizer, AddedTokensAreFoundInLinearTime) {
  Json file = hostile_tokenizer();
  file["added_tokens"] = {{{"id", 9}, {"content", std::string(40'000, 'a') + "b"}, {"special", true}},
                          {{"id", 10}, {"content", "aaaa"}, {"special", true}}};
  EXPECT_EQ(encoding(file, std::string(1'000'000, 'a')), "");
  file["added_tokens"][0]["content"] = "b" + std::string(40'000, 'a');
  EXPECT_EQ(encoding(file, repeated("b" + std::string(39'000, 'a'), 25)), "");
  file["added_tokens"][0]["content"] = std::string(3'000'000, 'a');
  EXPECT_THAT(encoding(file, "a"), HasSubstr("longer than"));
  // White space around tokens is read once only.
  file["added_tokens"] = {{{"id", 4}, {"content", " "}, {"lstrip", true}, {"rstrip", true}},
                          {{"id", 10}, {"content", "\n"}, {"lstrip", true}}};
  EXPECT_EQ(encoding(file, repeated(" \n", 200'000)), "");
}

// The added tokens are compared with the obvious search, leftmost and longest first.
TEST(HostileTokenizer, AddedTokensAreThoseTheObviousSearchFinds) {
  std::mt19937 random(5);
  const auto word = [&](size_t least, size_t most) {
    std::string s(least + random() % (most - least + 1), 'a');
    for (char& c : s) c = "ab"[random() % 2];
    return s;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> tokens;
    Json file = hostile_tokenizer();
    file["added_tokens"] = Json::array();
    for (int i = 0; i < 5; ++i) {
      const std::string token = word(1, 6);
      if (token.size() < 3 || std::find(tokens.begin(), tokens.end(), token) != tokens.end()) continue;
      file["added_tokens"].push_back({{"id", 10 + tokens.size()}, {"content", token}, {"special", true}});
      tokens.push_back(token);
    }
    const Tokenizer tokenizer = Tokenizer::from_json(file.dump());
    for (int k = 0; k < 20; ++k) {
      const std::string text = word(0, 40);
      std::vector<int32_t> expected;
      for (size_t at = 0; at < text.size();) {
        size_t best = 0;
        int32_t id = -1;
        for (size_t t = 0; t < tokens.size(); ++t)
          if (text.compare(at, tokens[t].size(), tokens[t]) == 0 && tokens[t].size() > best)
            best = tokens[t].size(), id = static_cast<int32_t>(10 + t);
        if (id >= 0) expected.push_back(id);
        at += std::max<size_t>(best, 1);
      }
      std::vector<int32_t> found = tokenizer.encode(text);
      std::erase_if(found, [](int32_t id) { return id < 10; });
      ASSERT_EQ(found, expected) << text << " " << Json(tokens).dump();
    }
  }
}

TEST(HostileTokenizer, NormalizersDoNotGrowWithoutEnd) {
  Json file = hostile_tokenizer(), steps = Json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  EXPECT_THAT(encoding(file, "a"), HasSubstr("more memory"));
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1'000'000, 'a')}};
  EXPECT_THAT(encoding(file, std::string(10'000, 'a')), HasSubstr("more memory"));
  file["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(encoding(file, "a" + repeated("\xCC\x81\xCC\x96", 500'000)), HasSubstr("combining marks"));
  EXPECT_EQ(encoding(file, repeated("a" + repeated("\xCC\x81\xCC\x96", 200), 200)), "");
}

TEST(HostileTokenizer, DecodersAndPostProcessorsAreBounded) {
  Json file = hostile_tokenizer(), steps = Json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  const std::string json = file.dump();
  const std::vector<int32_t> ids(1000, 0);
  EXPECT_THAT(message_of_hostile(json.size(), [&] { Tokenizer::from_json(json).decode(ids); }),
              HasSubstr("more memory"));
  file = hostile_tokenizer();
  Json single = Json::array();
  for (int i = 0; i < 100'000; ++i) single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", Json::object()}};
  EXPECT_THAT(encoding(file, repeated("a ", 5000)), HasSubstr("more memory"));
}

TEST(HostileTokenizer, NestedFilesAreRefused) {
  for (const std::string key : {"normalizer", "added_tokens", "model", "nothing"}) {
    const std::string json = "{\"" + key + "\": " + repeated("[", 300'000) + repeated("]", 300'000) + "}";
    EXPECT_THAT(message_of_hostile(json.size(), [&] { Tokenizer::from_json(json); }), HasSubstr("nested"));
  }
  // If the id were parsed as JSON again, the limits of the outer text would not apply to it.
  const std::string brackets = repeated("[", 300'000) + repeated("]", 300'000);
  for (const std::string& id : {brackets, std::string("-1"), std::string("1e2"), std::string("99999999999999999999")}) {
    const Json config = {{"added_tokens_decoder", {{id, {{"content", "new"}}}}}};
    const TextFiles files("folder",
                          {{"tokenizer.json", hostile_tokenizer().dump()}, {"tokenizer_config.json", config.dump()}});
    EXPECT_THAT(message_of_hostile(id.size(), [&] { Tokenizer::load(files); }), HasSubstr("is no id of a token"));
  }
  Json file = hostile_tokenizer();
  file["model"]["unk_token"] = std::string(1'000'000, 'u');
  file["model"]["vocab"][std::string(1'000'000, 'u')] = 8;
  EXPECT_EQ(encoding(file, std::string(1'000'000, 'z')), "");
}

}  // namespace
}  // namespace fidelio
