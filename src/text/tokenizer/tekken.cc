#include "text/tokenizer/tekken.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "core/foreign/json.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/json.h"
#include "text/tokenizer/text.h"

namespace fidelio::tokenization {
namespace {

constexpr size_t kLongestTekkenToken = 512;  // This is in bytes; every cut of a token is tried.

// These are the control tokens of files that do not list them, which are those of versions up to 7.
constexpr const char* kOlderControls[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};

std::string bytes_of_base64(const std::string& text, const std::string& where) {
  static const std::string kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  const size_t end = std::min(text.find('='), text.size());
  check(text.size() % 4 == 0 && text.size() - end <= 2 && text.find_first_not_of('=', end) == std::string::npos,
        "{}: expected base64", where);
  for (size_t i = 0; i < end; ++i) {
    const size_t value = kAlphabet.find(text[i]);
    check(value != std::string::npos, "{}: expected base64", where);
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) bytes += static_cast<char>(bits >> (held -= 8) & 0xFF);
  }
  return bytes;
}

int32_t count_of(const Json& config, const char* key, int32_t otherwise) {
  const std::string where = std::string(kTekkenFile) + ": config";
  const Json* value = find_field(config, key, where);
  return value ? index_of(*value, kTokenIdLimit, where + "." + key) : otherwise;
}

// Returns the control tokens by rank, filled up to the number that the config gives.
std::vector<std::string> control_tokens(const Json& file, const Json& config) {
  std::vector<std::string> controls;
  if (const Json* listed = find_field(file, "special_tokens", kTekkenFile)) {
    const std::string where = std::string(kTekkenFile) + ": special_tokens";
    expect_type(listed->is_array(), *listed, where, "an array");
    controls.resize(listed->size());
    for (const Json& token : *listed) {
      const int32_t rank =
          index_of(field(token, "rank", where), static_cast<int32_t>(controls.size()), where + ".rank");
      std::string& place = controls[static_cast<size_t>(rank)];
      check(place.empty(), "{}: the rank {} stands there twice", where, rank);
      place = string_field(token, "token_str", where);
      check(!place.empty(), "{}: the token of rank {} is empty", where, rank);
    }
  } else {
    controls.assign(std::begin(kOlderControls), std::end(kOlderControls));
  }
  const int32_t count = count_of(config, "default_num_special_tokens", static_cast<int32_t>(controls.size()));
  check(controls.size() <= static_cast<size_t>(count), "{}: {} special tokens, but the config says {}", kTekkenFile,
        controls.size(), count);
  while (controls.size() < static_cast<size_t>(count)) controls.push_back(fmt::format("<SPECIAL_{}>", controls.size()));
  return controls;
}

// A token can be joined from two others at every cut whose parts are tokens. The cut whose parts have lower ranks comes
// first.
Json merges_of(const std::vector<std::string>& tokens, const std::unordered_map<std::string_view, size_t>& ranks) {
  Json merges = Json::array();
  Meter meter(kTekkenFile);
  std::vector<std::tuple<size_t, size_t>> cuts;
  for (const std::string& token : tokens) {
    meter.work(token.size() * (1 + token.size() / 64));
    cuts.clear();
    const std::string_view text = token;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ranks.find(text.substr(0, cut)), right = ranks.find(text.substr(cut));
      if (left != ranks.end() && right != ranks.end()) cuts.emplace_back(left->second, right->second);
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [left, right] : cuts)
      merges.push_back(byte_level_spelling(tokens[left]) + " " + byte_level_spelling(tokens[right]));
  }
  return merges;
}

std::vector<std::string> tekken_words(const Json& file, const Json& config, size_t controls) {
  const Json& vocabulary = array_field(file, "vocab", kTekkenFile);
  const auto all =
      static_cast<size_t>(count_of(config, "default_vocab_size", static_cast<int32_t>(vocabulary.size() + controls)));
  check(all >= controls && all - controls <= vocabulary.size(),
        "{}: the config says {} tokens, {} of them special, but there are {} others", kTekkenFile, all, controls,
        vocabulary.size());
  std::vector<std::string> words;
  for (size_t i = 0; i + controls < all; ++i) {
    const std::string where = fmt::format("{}: vocab[{}]", kTekkenFile, i);
    words.push_back(bytes_of_base64(string_field(vocabulary[i], "token_bytes", where), where + ".token_bytes"));
    check(!words.back().empty() && words.back().size() <= kLongestTekkenToken,
          "{}: a token of {} bytes, expected 1 to {}", where, words.back().size(), kLongestTekkenToken);
  }
  return words;
}

}  // namespace

bool is_tekken_folder(const TextFiles& files) { return !files.exists("tokenizer.json") && files.exists(kTekkenFile); }

std::string tokenizer_json_of_tekken(std::string_view tekken) {
  const Json file = parse_json(tekken, kTekkenFile);
  const Json& config = field(file, "config", kTekkenFile);
  const std::vector<std::string> controls = control_tokens(file, config);
  const std::vector<std::string> words = tekken_words(file, config, controls.size());
  std::unordered_map<std::string_view, size_t> ranks;
  Json vocabulary = Json::object(), added = Json::array();
  for (size_t i = 0; i < words.size(); ++i) {
    check(ranks.emplace(words[i], i).second, "{}: vocab[{}] is the token of another rank", kTekkenFile, i);
    vocabulary[byte_level_spelling(words[i])] = i + controls.size();
  }
  for (size_t i = 0; i < controls.size(); ++i)
    added.push_back({{"id", i},
                     {"content", controls[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  Json post = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  if (const auto bos = std::find(controls.begin(), controls.end(), "<s>"); bos != controls.end())
    post = template_processing(std::pair(*bos, bos - controls.begin()), std::nullopt);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", string_field(config, "pattern", std::string(kTekkenFile) + ": config")}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json made = {
      {"version", "1.0"},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
      {"post_processor", std::move(post)},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", nullptr},
        {"byte_fallback", false},
        {"ignore_merges", true},
        {"vocab", std::move(vocabulary)},
        {"merges", merges_of(words, ranks)}}}};
  return made.dump();
}

}  // namespace fidelio::tokenization
