#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/test_support.h"
#include "text/tokenizer/unicode.h"

namespace fidelio {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kSource = FIDELIO_SOURCE_DIR;
const std::string kData = kSource + "/src/text/testdata/tokenizer_";
const std::string kCases = kSource + "/src/text/testdata/cases/tokenizer_";

// This tokenizer splits on spaces and is byte level. "ab" is merged in two steps, and "cd" is in the vocabulary without
// a merge.
json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 9, "content": "<s>", "special": true, "normalized": false},
                     {"id": 10, "content": "new", "single_word": true, "lstrip": true, "normalized": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": " ?[^ ]+| +"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ġ": 4, "ab": 5, "Ġab": 6, "cd": 7, "abc": 8},
              "merges": ["a b", "Ġ ab", ["ab", "c"]]}})");
}

Tokenizer tokenizer_of(const json& file) { return Tokenizer::from_json(file.dump()); }

std::string message_of(const std::string& file) {
  try {
    Tokenizer::from_json(file);
  } catch (const Error& e) {
    return e.what();
  }
  return "loaded";
}

std::string decimal(const Ids& ids) {
  std::string text;
  for (int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamingDetokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (size_t i = 0; i <= ids.size(); ++i) {
    std::string part = i < ids.size() ? detokenizer.push(ids[i]) : detokenizer.finish();
    EXPECT_TRUE(tokenization::is_valid_utf8(part)) << decimal(ids) << " at " << i;
    text += part;
  }
  return text;
}

// The oracle is Hugging Face `tokenizers`; tools/make_tokenizer_fixtures.py wrote the cases.
class TokenizerFixture : public ::testing::TestWithParam<std::string> {
 protected:
  Tokenizer load() const {
    if (GetParam().starts_with("quill")) return Tokenizer::load(kSource + "/models/" + GetParam());
    return Tokenizer::from_json(read_text_file(kData + GetParam() + ".json"));
  }
  json cases() const { return json::parse(read_text_file(kCases + GetParam() + ".json")); }
};

TEST_P(TokenizerFixture, EncodesAsHuggingFace) {
  Tokenizer tokenizer = load();
  json all = cases();
  ASSERT_GE(all["encode"].size(), 100u);
  for (const json& one : all["encode"])
    ASSERT_EQ(tokenizer.encode(one[0].get<std::string>(), one[1].get<bool>()), one[2].get<Ids>()) << one[0];
}

TEST_P(TokenizerFixture, DecodesAsHuggingFaceAtOnceAndStreamed) {
  Tokenizer tokenizer = load();
  json all = cases();
  ASSERT_GE(all["decode"].size(), 50u);
  for (const json& one : all["decode"])
    for (bool skip : {true, false}) {
      Ids ids = one[0].get<Ids>();
      std::string expected = one[skip ? 1 : 2].get<std::string>();
      ASSERT_EQ(tokenizer.decode(ids, skip), expected) << decimal(ids);
      ASSERT_EQ(streamed(tokenizer, ids, skip), expected) << decimal(ids);
    }
}

// The text of ids that continue others is decode(all) without decode(before), wherever a whole character ends there.
TEST_P(TokenizerFixture, ContinuesATextAsHuggingFaceDecodesAll) {
  const Tokenizer tokenizer = load();
  const json all_cases = cases();
  int cuts = 0, spaces = 0;
  for (const json& one : all_cases["decode"])
    for (const bool skip : {true, false}) {
      const Ids ids = one[0].get<Ids>();
      const std::string all = one[skip ? 1 : 2].get<std::string>();
      for (size_t cut = 1; cut < std::min<size_t>(ids.size(), 12); ++cut) {
        const std::span before = std::span(ids).first(cut);
        const std::string begin = tokenizer.decode(before, skip);
        if (!all.starts_with(begin) || begin.ends_with(tokenization::kReplacementCharacter)) continue;
        StreamingDetokenizer detokenizer(tokenizer, skip, before);
        std::string text;
        for (const int32_t id : std::span(ids).subspan(cut)) text += detokenizer.push(id);
        text += detokenizer.finish();
        ASSERT_EQ(text, all.substr(begin.size())) << decimal(ids) << " cut at " << cut;
        StreamingDetokenizer alone(tokenizer, skip);
        std::string settled;
        for (const int32_t id : before) settled += alone.push(id);
        ASSERT_EQ(settled + alone.settle(), begin) << decimal(ids) << " cut at " << cut;
        ++cuts, spaces += text.starts_with(' ');
      }
    }
  EXPECT_GT(cuts, 100);
  EXPECT_GT(spaces, 5);
}

TEST_P(TokenizerFixture, EncodesWholeFilesAsHuggingFace) {
  Tokenizer tokenizer = load();
  const json all = cases();
  ASSERT_EQ(all["files"].size(), 2u);
  for (const auto& [name, hash] : all["files"].items()) {
    Ids ids = tokenizer.encode(read_text_file(kSource + "/models/data/" + name));
    EXPECT_EQ(sha256_hex(decimal(ids)), hash.get<std::string>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerFixture,
                         ::testing::Values("llama3", "qwen", "llama2", "metaspace_first", "metaspace_always",
                                           "gpt2_digits", "mixed", "tekken", "o200k", "gemma", "qwen35", "harmony",
                                           "gemma4", "quill-26m", "quill-1m"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Tokenizer, MergesByRankAndFindsAddedTokens) {
  Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("abc ab cd"), (Ids{9, 8, 6, 4, 2, 3}));
  EXPECT_EQ(tokenizer.encode("ab", false), (Ids{5}));
  EXPECT_EQ(tokenizer.encode("<s>ab", false), (Ids{9, 5}));
  EXPECT_EQ(tokenizer.encode("ab  new", false), (Ids{5, 10}));  // lstrip removes the spaces.
  // The token is single_word, and n, e and w are not in the vocabulary.
  EXPECT_EQ(tokenizer.encode("anew", false), (Ids{0}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{9}));
  EXPECT_EQ(tokenizer.encode("", false), Ids{});
}

// These are the results of tokenizers 0.23 for texts whose beginning a normalizer changed. "_" is put before a text
// that begins with the characters that the original's first character became.
TEST(Tokenizer, MetaspaceFirstAsksWhereTheOriginalBegan) {
  const std::string strip = R"({"type":"Strip","strip_left":true,"strip_right":true})", nfkd = R"({"type":"NFKD"})",
                    accents = R"({"type":"StripAccents"})";
  const auto prepend = [](const std::string& text) { return R"({"type":"Prepend","prepend":")" + text + "\"}"; };
  const auto replace = [](const std::string& pattern, const std::string& content) {
    return R"({"type":"Replace","pattern":)" + pattern + R"(,"content":")" + content + "\"}";
  };
  const std::string of_ab = R"({"String":"ab"})", of_any = R"({"Regex":"[ab]"})", of_start = R"({"Regex":"^a?"})";
  struct Case {
    std::vector<std::string> normalizers;
    std::string text, tokens;
  };
  const Case cases[] = {
      {{strip}, "a b", "_a_b"},
      {{strip}, " a", "a"},
      {{nfkd, strip}, "\u00A8a", "_\u0308a"},  // The first character becomes a space, which is stripped, and an accent.
      {{nfkd, strip}, " \u00A8", "\u0308"},
      {{nfkd, strip}, "\uFB01", "_fi"},
      {{replace(R"({"String":"a"})", ""), strip}, "ab", "b"},
      {{replace(R"({"String":"a"})", ""), strip}, "ba", "_b"},
      {{prepend(" "), strip}, "ab", "_ab"},
      {{prepend(" "), strip}, " ab", "ab"},
      {{replace(of_ab, "d")}, "abb", "db"},  // d stands for the last character that it replaces.
      {{replace(of_any, "d")}, "ab", "_dd"},
      {{replace(of_start, "d")}, "b", "_db"},
      {{replace(of_start, "d")}, "ab", "_db"},
      {{strip, replace(R"({"Regex":"^"})", "d")}, " b", "_db"},
      {{nfkd, accents}, "\u0308a", "a"},
      {{nfkd, accents}, "\u00E4a", "_aa"},
      {{prepend("d"), replace(R"({"String":"d"})", "")}, "ab", "_ab"},
      {{prepend("d"), replace(R"({"String":"d"})", "")}, "db", "b"},
  };
  json file = small_tokenizer();
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  file["model"]["vocab"] = {{"_", 0}, {"a", 1}, {"b", 2}, {"d", 3}, {"i", 4}, {"\u0308", 5}, {"f", 6}};
  file["model"]["merges"] = json::array();
  for (const Case& c : cases) {
    json parts = json::array();
    for (const std::string& part : c.normalizers) parts.push_back(json::parse(part));
    file["normalizer"]["normalizers"] = parts;
    const Tokenizer tokenizer = tokenizer_of(file);
    std::string got;
    for (const int32_t id : tokenizer.encode(c.text, false)) got += tokenizer.token_text(id);
    EXPECT_EQ(got, c.tokens) << parts << " of " << c.text;
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  json file = small_tokenizer();
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("cd ab", false), (Ids{7, 6}));
}

TEST(Tokenizer, TellsItsVocabulary) {
  Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  EXPECT_EQ(tokenizer.vocab_size(), 11);
  EXPECT_EQ(tokenizer.id_of("Ġab"), 6);
  EXPECT_EQ(tokenizer.id_of("<s>"), 9);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(6), "Ġab");
  EXPECT_EQ(tokenizer.token_text(10), "new");
  EXPECT_TRUE(tokenizer.is_special(9));
  EXPECT_FALSE(tokenizer.is_special(10));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_THROW(tokenizer.token_text(11), Error);
  EXPECT_THROW(tokenizer.token_text(-1), Error);
  EXPECT_EQ(tokenizer.decode(Ids{9, -5, 0, 11, 1 << 30, 1}), "ab");  // Ids without a token are passed over.
}

TEST(Tokenizer, ReplacesIllFormedUtf8LikePython) {
  // The left side is the bytes, the right side how often Python's bytes.decode(errors="replace") writes U+FFFD for
  // them.
  const std::pair<std::string, int> cases[] = {{"\xFF", 1},         {"\xC3", 1},         {"\xE2\x82", 1},
                                               {"\xE2\x28", 1},     {"\xF0\x9F\x99", 1}, {"\xC0\xAF", 2},
                                               {"\xED\xA0\x80", 3}, {"\xF5\x80", 2},     {"\xE0\x80\x80", 3},
                                               {"\xF0\x80\x80", 3}, {"\x80\x80", 2}};
  for (const auto& [bytes, count] : cases) {
    std::string text = tokenization::replace_ill_formed_utf8("x" + bytes);
    std::string expected = "x";
    for (int i = 0; i < count; ++i) expected += tokenization::kReplacementCharacter;
    if (bytes == "\xE2\x28") expected += "(";
    EXPECT_EQ(text, expected) << json(std::vector<uint8_t>(bytes.begin(), bytes.end()));
  }
  Tokenizer qwen = Tokenizer::from_json(read_text_file(kData + "qwen.json"));
  EXPECT_EQ(qwen.encode("a\xFF z"), qwen.encode("a\xEF\xBF\xBD z"));
}

TEST(Tokenizer, StreamingHoldsBackUnfinishedCharacters) {
  Tokenizer bytes = Tokenizer::from_json(read_text_file(kData + "gpt2_digits.json"));
  Ids euro = {*bytes.id_of("â"), *bytes.id_of("Ĥ"), *bytes.id_of("¬")};  // These are the bytes E2 82 AC.
  StreamingDetokenizer detokenizer(bytes);
  EXPECT_EQ(detokenizer.push(euro[0]), "");
  EXPECT_EQ(detokenizer.push(euro[1]), "");
  EXPECT_EQ(detokenizer.push(euro[2]), "€");
  EXPECT_EQ(detokenizer.push(euro[0]), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
  Tokenizer llama = Tokenizer::from_json(read_text_file(kData + "llama2.json"));
  StreamingDetokenizer fallback(llama);
  EXPECT_EQ(fallback.push(*llama.id_of("<0xE2>")), "");
  EXPECT_EQ(fallback.push(*llama.id_of("<0x82>")), "");
  EXPECT_EQ(fallback.push(*llama.id_of("<0xAC>")), "");  // A following <0xFF> would still spoil the run.
  EXPECT_EQ(fallback.push(*llama.id_of("a")), "€a");
}

TEST(Tokenizer, StreamingCompletesACharacterOfTheTextBefore) {
  const Tokenizer bytes = Tokenizer::from_json(read_text_file(kData + "gpt2_digits.json")),
                  llama = Tokenizer::from_json(read_text_file(kData + "llama2.json"));
  const Ids euro = {*bytes.id_of("â"), *bytes.id_of("Ĥ"), *bytes.id_of("¬")};
  StreamingDetokenizer detokenizer(bytes, true, std::span(euro).first(2));
  EXPECT_EQ(detokenizer.push(euro[2]), "€");
  const Ids before = {*llama.id_of("<0x0A>"), *llama.id_of("<0xE2>"), *llama.id_of("<0x82>")};
  StreamingDetokenizer fallback(llama, true, before);
  EXPECT_EQ(fallback.push(*llama.id_of("<0xAC>")), "");
  EXPECT_EQ(fallback.push(*llama.id_of("a")), "€a");
  EXPECT_EQ(llama.decode_inside(*llama.id_of("▁a")), " a");
  EXPECT_EQ(llama.decode(Ids{*llama.id_of("▁a")}), "a");
}

TEST(Tokenizer, LongWordsTakeNoQuadraticTime) {
  // There is no pre-tokenizer and one letter, so there is nowhere to cut. Quadratic merging would need 10^11 steps.
  json file = small_tokenizer();
  file["pre_tokenizer"] = nullptr;
  file["model"]["vocab"] = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  file["model"]["merges"] = {"a a", "aa aa"};
  Ids ids = tokenizer_of(file).encode(std::string(400'003, 'a'), false);
  ASSERT_EQ(ids.size(), 100'002u);
  EXPECT_EQ(ids.front(), 2);
  EXPECT_EQ(ids[100'000], 1);
  EXPECT_EQ(ids[100'001], 0);
}

TEST(Tokenizer, ReadsTheConfigBesideIt) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path();
  auto load = [&](const std::string& config) {
    std::ofstream(folder / "tokenizer.json") << small_tokenizer().dump();
    std::ofstream(folder / "tokenizer_config.json") << config;
    return Tokenizer::load(folder.string());
  };
  Tokenizer plain = load(R"({"bos_token": {"content": "<s>"}, "eos_token": "new"})");
  EXPECT_EQ(plain.bos_id(), 9);
  EXPECT_EQ(plain.eos_id(), 10);
  EXPECT_EQ(plain.encode("ab"), (Ids{9, 5}));  // It is the post-processor of the file that adds them.
  // The post-processor alone decides, as in transformers 5 wherever there is a tokenizer.json.
  EXPECT_EQ(load(R"({"bos_token": "<s>", "add_bos_token": false})").encode("ab"), (Ids{9, 5}));
  EXPECT_EQ(load(R"({"eos_token": "new", "add_eos_token": true})").encode("ab"), (Ids{9, 5}));
  EXPECT_EQ(load(R"({"bos_token": null, "add_bos_token": true})").encode("ab"), (Ids{9, 5}));
  // Tokens that only tokenizer_config.json has are found in texts as in transformers, with the vocabulary's id where
  // there is one.
  const std::string described = R"({"added_tokens_decoder": {"11": {"content": "cab", "special": true, "rstrip": true},
                                                             "0": {"content": "cd", "special": false}}})";
  EXPECT_EQ(load("{}").encode("cab cd", false), (Ids{2, 5, 4, 2, 3}));
  EXPECT_EQ(load(described).encode("cab cd", false), (Ids{11, 7}));
  EXPECT_EQ(load(described).decode(Ids{11, 7}), "cd");
  EXPECT_EQ(load(R"({"eos_token": "ab"})").encode("abc", false), (Ids{5, 2}));
  EXPECT_EQ(load(R"({"eos_token": "ab"})").decode(Ids{5, 2}), "c");
  EXPECT_EQ(load(R"({"extra_special_tokens": {"end": "ab"}})").decode(Ids{5, 2}), "c");
  EXPECT_EQ(load(R"({"additional_special_tokens": [{"content": "ab", "lstrip": true}]})").encode("a ab", false),
            (Ids{0, 5}));
  EXPECT_EQ(load(R"({"pad_token": "ab", "eos_token": "not in it"})").encode("abc", false), (Ids{8}));
  EXPECT_THROW(load(R"({"added_tokens_decoder": {"x": {"content": "cab"}}})"), Error);
  EXPECT_THROW(load(R"({"added_tokens_decoder": {"9": {"content": "cab"}}})"), Error);  // "<s>" has this id.
  EXPECT_THROW(load(R"({"added_tokens_decoder": [7]})"), Error);
  EXPECT_THROW(load(R"({"eos_token": 7})"), Error);
  EXPECT_THROW(load("{"), Error);
  try {
    Tokenizer::load(folder.string());
    FAIL() << "loaded a folder that does not exist";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(folder.string()));
  }
}

TEST(Tokenizer, RefusesMalformedFilesWithTheReason) {
  struct Case {
    const char *pointer, *value, *message;
  };
  const Case cases[] = {
      {"/model/type", "\"Unigram\"", "the model type 'Unigram' is not supported; supported: BPE"},
      {"/model", "null", "'model' is missing"},
      {"/model/vocab", "[]", "model.vocab: expected an object of token: id, found array"},
      {"/model/vocab/b", "0", "have the same id 0"},
      {"/model/vocab/b", "-1", "-1 is out of range"},
      {"/model/vocab/b", "99999999999", "99999999999 is out of range"},
      {"/model/vocab/b", "1.5", "expected an integer, found number"},
      {"/model/merges", "null", "'merges' is missing"},
      {"/model/merges/0", "\"a z\"", "names 'z', which is not in the vocabulary"},
      {"/model/merges/0", "\"b a\"", "names 'ba', which is not in the vocabulary"},
      {"/model/merges/0", "\"ab\"", "must be two tokens with one space"},
      {"/model/merges/0", "[\"a\"]", "expected a pair of tokens, found 1 items"},
      {"/model/merges/0", "7", "expected \"a b\" or [\"a\", \"b\"], found number"},
      {"/model/dropout", "0.1", "dropout 0.1 is for training"},
      {"/model/continuing_subword_prefix", "\"##\"", "continuing_subword_prefix is not supported"},
      {"/model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix is not supported"},
      {"/model/ignore_merges", "\"yes\"", "model.ignore_merges: expected true or false, found string"},
      {"/normalizer/type", "\"Precompiled\"", "normalizer 'Precompiled' is not supported; supported: NFC"},
      {"/pre_tokenizer/type", "\"UnicodeScripts\"",
       "pre_tokenizer 'UnicodeScripts' is not supported; supported: Split"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "\"Glued\"",
       "behavior 'Glued' is not supported; supported: Isolated"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"(\"}", "the regular expression '(' does not compile"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \"\"}", "pattern is empty"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{}", "expected {\"String\": ...} or {\"Regex\": ...}"},
      {"/pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"__\"}", "'__' must be one character"},
      {"/pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"x\"}",
       "'x' is not supported"},
      {"/pre_tokenizer",
       "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"add_prefix_space\":false}",
       "contradicts"},
      {"/post_processor/type", "\"BertProcessing\"", "post_processor 'BertProcessing' is not supported"},
      {"/post_processor/special_tokens", "{}", "'<s>' is missing"},
      {"/post_processor/special_tokens/<s>/ids/0", "77", "no token has the id 77"},
      {"/post_processor/single/1/Sequence/id", "\"B\"", "expected the sequence A, found 'B'"},
      {"/post_processor", "{\"type\": \"Sequence\", \"processors\": 3}", "processors: expected an array, found number"},
      {"/decoder/type", "\"WordPiece\"", "decoder 'WordPiece' is not supported; supported: ByteLevel"},
      {"/decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}", "-1 is out of range"},
      {"/added_tokens/0/id", "3", "id 3 of '<s>' belongs to 'd' in the vocabulary"},
      {"/added_tokens/0/id", "10", "id 10 of 'new' is used twice"},
      {"/added_tokens/0/content", "\"d\"", "'d' has id 9 here and id 3 in the vocabulary"},
      {"/added_tokens/0/content", "7", "expected a string, found number"},
      {"/added_tokens/0/content", "\"new\"", "'new' has id 10 here and id 9 above"},
      {"/added_tokens", "{}", "added_tokens: expected an array, found object"},
  };
  for (const Case& one : cases) {
    json file = small_tokenizer();
    file[json::json_pointer(one.pointer)] = json::parse(one.value);
    EXPECT_THAT(message_of(file.dump()), HasSubstr(one.message)) << one.pointer << " = " << one.value;
  }
  EXPECT_THAT(message_of(""), HasSubstr("tokenizer.json: not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("expected an object, found array"));
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  json file = small_tokenizer();
  file["normalizer"] = nested;
  EXPECT_THAT(message_of(file.dump()), HasSubstr("nested more than"));
}

TEST(Tokenizer, NeedsTheUnknownTokenOnlyWhenATextDoes) {
  json file = small_tokenizer();
  file["model"]["unk_token"] = "<unk>";
  Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("ab", false), (Ids{5}));
  EXPECT_THROW(tokenizer.encode("x", false), Error);
}

// A broken file is either refused with an Error or works; nothing else may happen.
TEST(Tokenizer, MutatedFilesNeverCrash) {
  const std::string original = small_tokenizer().dump();
  EXPECT_THAT(message_of(original.substr(0, original.size() / 2)), HasSubstr("not valid JSON"));
  uint64_t state = 1;
  auto below = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % n);
  };
  const std::string pieces[] = {"null", "-1",    "{}",      "[]",   "\"\"", "1e99",
                                "true", "\"a\"", "\\u0000", "\xFF", "}",    "99"};
  int loaded = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = original;
    for (size_t i = 0, n = 1 + below(3); i < n; ++i) {
      size_t at = below(text.size()), length = std::min(below(6), text.size() - at);
      text.replace(at, length, below(2) ? pieces[below(std::size(pieces))] : text.substr(below(text.size()), below(6)));
    }
    try {
      Tokenizer tokenizer = Tokenizer::from_json(text);
      Ids ids = tokenizer.encode("ab new<s>\xE2\x82 cd\n");
      tokenizer.decode(ids, false);
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 200);
}

// A text with too many ids is detected, and one with exactly the limit is encoded as without a limit.
TEST(Tokenizer, EncodesAtMostSoManyIds) {
  for (const Tokenizer& tokenizer : {tokenizer_of(small_tokenizer()), Tokenizer::load(kSource + "/models/quill-1m")})
    for (const std::string& text : {std::string("abc ab new cd"), std::string(1000, ' '), std::string(3000, 'a')}) {
      const Ids ids = tokenizer.encode(text);
      for (const size_t more : {size_t{0}, size_t{1}, size_t{1} << 40})
        EXPECT_EQ(tokenizer.encode_at_most(ids.size() + more, text), ids);
      for (const size_t most : {ids.size() - 1, ids.size() / 2, size_t{0}})
        EXPECT_EQ(tokenizer.encode_at_most(most, text), std::nullopt);
    }
}

}  // namespace
}  // namespace fidelio
