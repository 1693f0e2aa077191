#include "io/gguf/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "io/gguf/names.h"
#include "io/gguf/sampling.h"
#include "io/gguf/splitting.h"
#include "text/tokenizer/config.h"

namespace fidelio::gguf {
namespace {

using nlohmann::json;

enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr const char* kSpace = "\xE2\x96\x81";  // This is U+2581, SentencePiece's space.
constexpr size_t kLongestPiece = 512;           // It is in bytes; every cut of a piece is tried.

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;
};

Vocabulary read_vocabulary(const File& file) {
  Vocabulary v;
  auto tokens = file.texts("tokenizer.ggml.tokens");
  check(tokens.has_value() && !tokens->empty(),
        "{}: the key \"tokenizer.ggml.tokens\" is missing: the file has no tokenizer", file.path());
  v.tokens = std::move(*tokens);
  v.types = file.integers("tokenizer.ggml.token_type").value_or(std::vector<int64_t>(v.tokens.size(), kNormal));
  check(v.types.size() == v.tokens.size(), "{}: {} tokens, but {} types of tokens", file.path(), v.tokens.size(),
        v.types.size());
  for (size_t i = 0; i < v.types.size(); ++i)
    check(v.types[i] >= kNormal && v.types[i] <= kByte, "{}: token {} has the type {}, expected 1 to 6", file.path(), i,
          v.types[i]);
  return v;
}

// Every token is listed by its text, whatever its type, as each id must keep its place.
json vocabulary_json(const File& file, const Vocabulary& v) {
  json vocabulary = json::object();
  for (size_t i = 0; i < v.tokens.size(); ++i)
    check(vocabulary.emplace(std::string(v.tokens[i]), i).second, "{}: two tokens are written {}", file.path(),
          shown(v.tokens[i]));
  return vocabulary;
}

// Control tokens are special. User-defined ones are found in the text and never split, but shown. The unknown token of
// SentencePiece is special too, as in Hugging Face's files.
json added_tokens(const Vocabulary& v) {
  json added = json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const int64_t type = v.types[i];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    added.push_back({{"id", i},
                     {"content", std::string(v.tokens[i])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

const Splitting& splitting_of(const File& file) {
  const auto name = file.text("tokenizer.ggml.pre");
  check(name.has_value(),
        "{}: the key \"tokenizer.ggml.pre\" is missing, so how text is split is not known; convert the model again",
        file.path());
  std::string known;
  for (const Splitting& s : splittings()) {
    if (s.name == *name) return s;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
  }
  throw Error("{}: key \"tokenizer.ggml.pre\": {} is not supported; supported are {}", file.path(), shown(*name),
              known);
}

tokenization::NamedToken named_token(const File& file, const Vocabulary& v, const char* key) {
  const auto id = file.integer(key);
  if (!id) return std::nullopt;
  check(*id >= 0 && *id < static_cast<int64_t>(v.tokens.size()), "{}: key \"{}\": {} is none of the {} tokens",
        file.path(), key, *id, v.tokens.size());
  return std::pair(std::string(v.tokens[static_cast<size_t>(*id)]), *id);
}

// These two return whether the tokens for the beginning and the end of a text are put around it.
bool adds_bos(const File& file, bool bpe) {
  return file.boolean("tokenizer.ggml.add_bos_token").value_or(bpe ? splitting_of(file).adds_bos : true);
}
bool adds_eos(const File& file) { return file.boolean("tokenizer.ggml.add_eos_token").value_or(false); }

json post_processor(const File& file, const Vocabulary& v, bool bpe) {
  const auto bos = named_token(file, v, "tokenizer.ggml.bos_token_id");
  const auto eos = named_token(file, v, "tokenizer.ggml.eos_token_id");
  check(!adds_eos(file) || eos, "{}: the key \"tokenizer.ggml.eos_token_id\" is missing beside add_eos_token",
        file.path());
  return tokenization::template_processing(adds_bos(file, bpe) ? bos : std::nullopt,
                                           adds_eos(file) ? eos : std::nullopt);
}

json merges_of(const File& file) {
  const auto merges = file.texts("tokenizer.ggml.merges");
  check(merges.has_value(), "{}: the key \"tokenizer.ggml.merges\" is missing", file.path());
  json pairs = json::array();
  for (std::string_view merge : *merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos && space + 1 < merge.size(),
          "{}: the merge {} is not two tokens with a space", file.path(), shown(merge));
    pairs.push_back(std::string(merge));
  }
  return pairs;
}

json byte_level(const File& file, const Vocabulary& v) {
  const Splitting& splitting = splitting_of(file);
  json steps = json::array();
  if (splitting.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!splitting.regex.empty())
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(splitting.regex)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", splitting.regex.empty()}});
  return {{"version", "1.0"},
          {"added_tokens", added_tokens(v)},
          {"normalizer", splitting.nfc ? json{{"type", "NFC"}} : json()},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
          {"post_processor", post_processor(file, v, true)},
          // All fields are written, as Hugging Face's reader refuses a step that lacks one.
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", splitting.ignore_merges},
            {"vocab", vocabulary_json(file, v)},
            {"merges", merges_of(file)}}}};
}

// SentencePiece joins the two neighbours whose token has the best score. The equivalent merges are all cuts of every
// token into two, by score. Among equal scores the longer left part comes first, as Hugging Face orders them.
json merges_from_scores(const File& file, const Vocabulary& v) {
  const auto scores = file.numbers("tokenizer.ggml.scores");
  check(scores.has_value() && scores->size() == v.tokens.size(), "{}: {} tokens, but {} scores", file.path(),
        v.tokens.size(), scores ? scores->size() : 0);
  std::unordered_map<std::string_view, size_t> normal;
  for (size_t i = 0; i < v.tokens.size(); ++i)
    if (v.types[i] == kNormal && v.tokens[i].find(' ') == std::string_view::npos)  // Spaces of the text are U+2581.
      normal.emplace(v.tokens[i], i);
  struct Merge {
    double score;
    size_t left_bytes, token, left;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : normal) {
    check(text.size() <= kLongestPiece, "{}: the token {} has {} bytes, expected at most {}", file.path(), shown(text),
          text.size(), kLongestPiece);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = normal.find(text.substr(0, cut));
      if (left != normal.end() && normal.contains(text.substr(cut)))
        merges.push_back({(*scores)[id], cut, id, left->second});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, b.left_bytes, a.left, a.token) < std::tuple(-b.score, a.left_bytes, b.left, b.token);
  });
  json pairs = json::array();
  for (const Merge& m : merges) {
    const std::string_view text = v.tokens[m.token];
    pairs.push_back(std::string(text.substr(0, m.left_bytes)) + " " + std::string(text.substr(m.left_bytes)));
  }
  return pairs;
}

// Gemma 4's files have merges, and no space before the text. Those of other models have scores.
json sentencepiece(const File& file, const Vocabulary& v, bool gemma4) {
  const bool prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(!gemma4);
  check(!file.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false),
        "{}: key \"tokenizer.ggml.remove_extra_whitespaces\": expected false", file.path());
  json normalizers = json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  json unknown;
  for (size_t i = 0; i < v.tokens.size(); ++i)
    if (v.types[i] == kUnknown) unknown = std::string(v.tokens[i]);
  return {{"version", "1.0"},
          {"added_tokens", added_tokens(v)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", post_processor(file, v, false)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", unknown},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocabulary_json(file, v)},
            {"merges", gemma4 ? merges_of(file) : merges_from_scores(file, v)}}}};
}

json tokenizer_config(const File& file, const Vocabulary& v, bool bpe) {
  json config = json::object();
  for (const auto& [key, name] :
       {std::pair("tokenizer.ggml.bos_token_id", "bos_token"), std::pair("tokenizer.ggml.eos_token_id", "eos_token"),
        std::pair("tokenizer.ggml.unknown_token_id", "unk_token"),
        std::pair("tokenizer.ggml.padding_token_id", "pad_token")})
    if (auto token = named_token(file, v, key)) config[name] = token->first;
  config["add_bos_token"] = adds_bos(file, bpe);
  config["add_eos_token"] = adds_eos(file);
  return config;
}

// Returns the ids that end an answer: eos, end of turn and end of message, and those that are known by their text. Many
// chat models end a turn with another token than eos, and their files tell only its text. The recommended sampling is
// added where the file has it.
json generation_config(const File& file, const Vocabulary& v) {
  std::set<int64_t> stop;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (named_token(file, v, key)) stop.insert(*file.integer(key));
  const auto has = [&](std::string_view token) {
    return std::find(v.tokens.begin(), v.tokens.end(), token) != v.tokens.end();
  };
  const bool messages = has("<|return|>") && has("<|call|>");  // <|end|> then ends one of several messages.
  for (size_t i = 0; i < v.tokens.size(); ++i)
    if (ends_an_answer(v.tokens[i]) && !(messages && v.tokens[i] == "<|end|>")) stop.insert(static_cast<int64_t>(i));
  json config = recommended_sampling(file);
  if (!stop.empty()) config["eos_token_id"] = stop;
  return config;
}

std::string text_of(const File& file, const json& value) {
  try {
    return value.dump();
  } catch (const json::exception&) {
    throw Error("{}: a token or merge of its tokenizer is not UTF-8", file.path());
  }
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const File& file) {
  const auto kind = file.text("tokenizer.ggml.model");
  check(kind.has_value(), "{}: the key \"tokenizer.ggml.model\" is missing: the file has no tokenizer", file.path());
  const bool bpe = *kind == "gpt2", gemma4 = *kind == "gemma4";
  check(bpe || gemma4 || *kind == "llama",
        "{}: key \"tokenizer.ggml.model\": {} is not supported; supported are gpt2 (byte-level BPE), llama "
        "(SentencePiece's BPE) and gemma4 (its BPE with merges)",
        file.path(), shown(*kind));
  const Vocabulary v = read_vocabulary(file);
  std::map<std::string, std::string> files;
  files["tokenizer.json"] = text_of(file, bpe ? byte_level(file, v) : sentencepiece(file, v, gemma4));
  files["tokenizer_config.json"] = text_of(file, tokenizer_config(file, v, bpe));
  files["generation_config.json"] = text_of(file, generation_config(file, v));
  if (const auto chat = file.text("tokenizer.chat_template")) files["chat_template.jinja"] = std::string(*chat);
  if (const auto chat = file.text("tokenizer.chat_template.tool_use"))
    files["additional_chat_templates/tool_use.jinja"] = std::string(*chat);
  return files;
}

}  // namespace fidelio::gguf
