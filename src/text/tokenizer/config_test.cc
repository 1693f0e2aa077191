// These tests are about the files beside a tokenizer.json, and those that replace it. The expected results are what
// transformers 5.24 makes of the same files.
#include "text/tokenizer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Texts = std::map<std::string, std::string>;

// This tokenizer has letters alone and puts <s> before a text.
const std::string kLetters = R"({
  "added_tokens": [{"id": 4, "content": "<s>", "special": true, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"},
  "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]}})";

TextFiles beside(Texts texts) {
  texts.emplace("tokenizer.json", kLetters);
  return {"folder", std::move(texts)};
}

std::string trouble_of(const TextFiles& files) {
  try {
    Tokenizer::load(files);
    return "loaded";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(TokenizerConfig, NamesTokensInEveryFileThatTransformersReads) {
  const TextFiles map = beside({{"tokenizer_config.json", R"({"bos_token": "older", "eos_token": "c"})"},
                                {"special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "sep_token": "b"})"}});
  EXPECT_THAT(special_tokens(map),
              ElementsAre(Pair("bos_token", "<s>"), Pair("eos_token", "c"), Pair("sep_token", "b")));
  const Tokenizer tokenizer = Tokenizer::load(map);
  EXPECT_EQ(tokenizer.bos_id(), 4);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_TRUE(tokenizer.is_special(1));
  // If a config describes its added tokens, the special tokens come from it alone.
  const TextFiles described = beside({{"tokenizer_config.json", R"({"bos_token": "a", "added_tokens_decoder": {}})"},
                                      {"special_tokens_map.json", R"({"bos_token": "<s>"})"},
                                      {"added_tokens.json", R"({"new": 9})"}});
  EXPECT_THAT(special_tokens(described), ElementsAre(Pair("bos_token", "a")));
  EXPECT_EQ(Tokenizer::load(described).id_of("new"), std::nullopt);
  // These files have further names, and lists that are joined.
  const TextFiles more =
      beside({{"tokenizer_config.json",
               R"({"image_token": "c", "extra_special_tokens": {"video_token": "b"}, "model_input_names": ["x"]})"},
              {"special_tokens_map.json", R"({"additional_special_tokens": ["a"]})"}});
  EXPECT_THAT(special_tokens(more), ElementsAre(Pair("image_token", "c"), Pair("video_token", "b")));
  for (const int32_t id : {0, 1, 2}) EXPECT_TRUE(Tokenizer::load(more).is_special(id)) << id;
}

TEST(TokenizerConfig, ClassesHaveTokensOfTheirOwn) {
  EXPECT_THAT(special_tokens(beside({{"tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizerFast"})"}})),
              ElementsAre(Pair("bos_token", "<s>"), Pair("eos_token", "</s>"), Pair("unk_token", "<unk>")));
  EXPECT_THAT(
      special_tokens(beside({{"tokenizer_config.json",
                              R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "a", "unk_token": null})"}})),
      ElementsAre(Pair("eos_token", "a")));
  EXPECT_TRUE(
      special_tokens(beside({{"tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})"}})).empty());
  const Texts byte_level = {{"tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})"},
                            {"tokenizer.json", R"({"decoder": {"type": "ByteLevel"}})"}};
  EXPECT_TRUE(special_tokens(TextFiles("folder", byte_level)).empty());
}

TEST(TokenizerConfig, ReadsOlderAddedTokens) {
  const Tokenizer t = Tokenizer::load(beside(
      {{"added_tokens.json", R"({"new": 5, "<end>": 6})"}, {"special_tokens_map.json", R"({"eos_token": "<end>"})"}}));
  EXPECT_EQ(t.encode("anew<end>", false), (std::vector<int32_t>{0, 5, 6}));
  EXPECT_FALSE(t.is_special(5));
  EXPECT_TRUE(t.is_special(6));
  EXPECT_THAT(trouble_of(beside({{"added_tokens.json", R"({"new": "5"})"}})), HasSubstr("added_tokens.json"));
}

TEST(TokenizerConfig, KeysThatChangeIdsOrTextsAreReadOrRefused) {
  const std::string text = "ab<s>a";
  EXPECT_EQ(Tokenizer::load(beside({})).encode(text, false), (std::vector<int32_t>{3, 4, 0}));
  // "<s>" is text here, and none of its characters is in the vocabulary.
  EXPECT_EQ(
      Tokenizer::load(beside({{"tokenizer_config.json", R"({"split_special_tokens": true})"}})).encode(text, false),
      (std::vector<int32_t>{3, 0}));
  const std::string corrupting = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  const auto clean = [&](bool asked) {
    return trouble_of(
        beside({{"tokenizer_config.json", json{{corrupting, true}, {"clean_up_tokenization_spaces", asked}}.dump()}}));
  };
  EXPECT_THAT(clean(true), HasSubstr(corrupting));
  EXPECT_EQ(clean(false), "loaded");
  EXPECT_THAT(trouble_of(beside({{"tokenizer_config.json", R"({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]})"}})),
              HasSubstr("fast_tokenizer_files"));
  EXPECT_THAT(trouble_of(beside({{"special_tokens_map.json", R"({"bos_token": 3})"}})),
              HasSubstr("special_tokens_map.json: bos_token"));
  EXPECT_THAT(trouble_of(beside({{"special_tokens_map.json", "["}})), HasSubstr("special_tokens_map.json"));
}

// "bA" is one word to the pattern of the file and two to the corrected one, which is for vocabularies as large as
// Mistral's.
TEST(TokenizerConfig, CorrectsMistralsPattern) {
  json file = json::parse(kLetters);
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "[a-zA-Z]+"}}}, {"behavior", "Isolated"}};
  file["model"]["vocab"]["A"] = 5;
  file["model"]["vocab"]["bA"] = 6;
  file["model"]["merges"] = {"b A"};
  const auto ids = [&](int fill, const char* type, const char* version) {
    json large = file;
    for (int i = 0; i < fill; ++i) large["model"]["vocab"]["fill" + std::to_string(i)] = 7 + i;
    const json config = {{"model_type", type}, {"transformers_version", version}};
    return Tokenizer::load(beside({{"tokenizer.json", large.dump()},
                                   {"tokenizer_config.json", R"({"fix_mistral_regex": true})"},
                                   {"config.json", config.dump()}}))
        .encode("bA", false);
  };
  EXPECT_EQ(ids(100'000, "mistral", "4.57.1"), (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(ids(100'000, "mistral", "5.0.0"), std::vector<int32_t>{6});
  EXPECT_EQ(ids(100'000, "qwen2", "4.57.1"), std::vector<int32_t>{6});
  EXPECT_EQ(ids(100, "mistral", "4.57.1"), std::vector<int32_t>{6});
}

// This is the vocabulary of bytes and four words, in Mistral's form.
json small_tekken() {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto base64 = [&](const std::string& bytes) {
    std::string text;
    for (size_t i = 0; i < bytes.size(); i += 3) {
      uint32_t bits = 0;
      const size_t n = std::min<size_t>(3, bytes.size() - i);
      for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0);
      for (size_t k = 0; k < 4; ++k) text += k <= n ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
    return text;
  };
  json vocabulary = json::array();
  std::vector<std::string> words;
  for (int byte = 0; byte < 256; ++byte) words.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"ab", "bc", "abc", " a", "never"}) words.emplace_back(word);
  for (size_t rank = 0; rank < words.size(); ++rank)
    vocabulary.push_back({{"rank", rank}, {"token_bytes", base64(words[rank])}, {"token_str", nullptr}});
  return {{"config",
           {{"pattern", " ?[a-z]+|\\s+|."},
            {"num_vocab_tokens", words.size()},
            {"default_vocab_size", words.size() - 1 + 22},  // The last word is one too many.
            {"default_num_special_tokens", 22},
            {"version", "v3"}}},
          {"vocab", vocabulary}};
}

TEST(Tekken, IsReadAsATokenizer) {
  const TextFiles files("folder", {{"tekken.json", small_tekken().dump()}});
  const Tokenizer t = Tokenizer::load(files);
  EXPECT_EQ(t.vocab_size(), 260 + 22);
  EXPECT_EQ(t.bos_id(), 1);
  EXPECT_EQ(t.eos_id(), 2);
  EXPECT_EQ(t.leading_ids(), std::vector<int32_t>{1});
  EXPECT_EQ(t.encode("abc"), (std::vector<int32_t>{1, 258 + 22}));
  // The neighbours whose word has the lowest rank are joined first.
  EXPECT_EQ(t.encode("abcab bc", false), (std::vector<int32_t>{258 + 22, 256 + 22, ' ' + 22, 257 + 22}));
  EXPECT_EQ(t.encode("[INST]\u00e9", false), (std::vector<int32_t>{3, 0xC3 + 22, 0xA9 + 22}));
  EXPECT_EQ(t.id_of("[TOOL_CONTENT]"), 19);
  EXPECT_EQ(t.id_of("<SPECIAL_21>"), 21);
  EXPECT_EQ(t.decode(t.encode("[INST] a \u00e9\n")), " a \u00e9\n");
  json listed = small_tekken();
  listed["special_tokens"] = {{{"rank", 1}, {"token_str", "<s>"}, {"is_control", true}},
                              {{"rank", 0}, {"token_str", "<first>"}, {"is_control", true}}};
  const Tokenizer own = Tokenizer::load(TextFiles("folder", {{"tekken.json", listed.dump()}}));
  EXPECT_EQ(own.id_of("<first>"), 0);
  EXPECT_EQ(own.id_of("<SPECIAL_2>"), 2);
  EXPECT_EQ(own.encode("a"), (std::vector<int32_t>{1, 'a' + 22}));
  // If a tokenizer.json stands beside it, that file is read.
  EXPECT_EQ(Tokenizer::load(beside({{"tekken.json", small_tekken().dump()}})).vocab_size(), 5);
}

TEST(Tekken, DamageIsNamed) {
  struct Case {
    const char *pointer, *value, *message;
  };
  const Case cases[] = {{"/config", "null", "'config' is missing"},
                        {"/config/pattern", "null", "'pattern' is missing"},
                        {"/config/pattern", "\"(\"", "does not compile"},
                        {"/config/default_vocab_size", "999", "the config says 999 tokens"},
                        {"/config/default_num_special_tokens", "3", "20 special tokens, but the config says 3"},
                        {"/vocab", "7", "expected an array"},
                        {"/vocab/3/token_bytes", "\"A*==\"", "vocab[3].token_bytes: expected base64"},
                        {"/vocab/3/token_bytes", "\"\"", "a token of 0 bytes"},
                        {"/vocab/3/token_bytes", "\"AA==\"", "vocab[3] is the token of another rank"},
                        {"/special_tokens", "[{\"rank\": 1, \"token_str\": \"x\"}]", "1 is out of range"}};
  for (const Case& one : cases) {
    json file = small_tekken();
    file[json::json_pointer(one.pointer)] = json::parse(one.value);
    EXPECT_THAT(trouble_of(TextFiles("folder", {{"tekken.json", file.dump()}})),
                AllOf(HasSubstr("folder"), HasSubstr(one.message)))
        << one.pointer;
  }
  const TextFiles other("folder", {{"tekken.json", kLetters}});
  EXPECT_THAT(trouble_of(other), HasSubstr("folder has no tokenizer.json, and its tekken.json cannot be read"));
  EXPECT_EQ(tokenizer_trouble(other), trouble_of(other));
}

TEST(TokenizerConfig, OtherTokenizersAreNamedWithWhatToDo) {
  for (const char* name : {"tokenizer.model", "vocab.json"})
    EXPECT_THAT(trouble_of(TextFiles("folder", {{name, "x"}})), AllOf(HasSubstr(name), HasSubstr("save_pretrained")));
  EXPECT_THAT(trouble_of(TextFiles("folder", Texts{})), HasSubstr("tokenizer.json"));
  EXPECT_EQ(tokenizer_trouble(beside({})), "");
}

}  // namespace
}  // namespace fidelio
