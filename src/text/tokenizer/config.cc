#include "text/tokenizer/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <unordered_set>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json.h"
#include "text/tokenizer/tekken.h"

namespace fidelio {
namespace tokenization {
namespace {

constexpr const char *kConfigFile = "tokenizer_config.json", *kMapFile = "special_tokens_map.json",
                     *kAddedFile = "added_tokens.json";
constexpr std::array<const char*, 7> kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                     "pad_token", "cls_token", "mask_token"};

// These are the tokens that transformers' classes have where a file names none; empty means none.
struct ClassTokens {
  const char *name, *bos, *eos, *unk;
};
constexpr ClassTokens kClasses[] = {
    {"LlamaTokenizer", "<s>", "</s>", "<unk>"},
    {"CodeLlamaTokenizer", "<s>", "</s>", "<unk>"},
    {"GemmaTokenizer", "<bos>", "<eos>", "<unk>"},
    {"CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>"},
    {"GPT2Tokenizer", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"},
    {"GPTNeoXTokenizer", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"},
    {"CodeGenTokenizer", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"},
    {"Qwen2Tokenizer", "", "<|endoftext|>", "<|endoftext|>"},
    {"Qwen3_5Tokenizer", "", "<|endoftext|>", "<|endoftext|>"},
};

Json read_config_file(const TextFiles& files, const char* name) {
  const auto text = files.read(name);
  Json object = text ? parse_json(*text, name) : Json::object();
  expect_type(object.is_object(), object, name, "an object");
  return object;
}

// Merges as transformers does: what the map says about a token replaces what the config says, and lists are joined.
void merge_special_tokens_map(const TextFiles& files, Json& config) {
  const Json map = read_config_file(files, kMapFile);
  for (const auto& [key, value] : map.items()) {
    const std::string where = std::string(kMapFile) + ": " + key;
    if (!value.is_array()) {
      expect_type(value.is_null() || value.is_string() || value.is_object(), value, where, "a token");
      config[key] = value;
      continue;
    }
    for (const Json& token : value) text_of_token(token, where);
    Json& list = config[key];
    if (!list.is_array()) list = Json::array();
    list.insert(list.end(), value.begin(), value.end());
  }
}

// Converts added_tokens.json, {text: id}, to the form of added_tokens_decoder in newer configs.
void merge_added_tokens(const TextFiles& files, Json& config) {
  const Json added = read_config_file(files, kAddedFile);
  if (added.empty()) return;
  std::vector<std::string> special;
  for (const char* key : kNamedTokens)
    if (const Json* token = find_field(config, key, kConfigFile)) special.push_back(text_of_token(*token, key));
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    if (const Json* more = find_field(config, key, kConfigFile); more && more->is_array())
      for (const Json& token : *more) special.push_back(text_of_token(token, key));
  Json& decoder = config["added_tokens_decoder"] = Json::object();
  for (const auto& [text, id] : added.items()) {
    const bool is_special = std::find(special.begin(), special.end(), text) != special.end();
    expect_type(id.is_number_integer(), id, std::string(kAddedFile) + ": " + text, "an id");
    decoder[id.dump()] = {{"content", text}, {"special", is_special}, {"normalized", !is_special}};
  }
}

void add_tokens_of_class(const TextFiles& files, Json& config) {
  const auto named = config.find("tokenizer_class");
  if (named == config.end() || !named->is_string()) return;
  std::string name = named->get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  for (const ClassTokens& known : kClasses) {
    if (name != known.name) continue;
    const std::pair<const char*, const char*> tokens[] = {
        {"bos_token", known.bos}, {"eos_token", known.eos}, {"unk_token", known.unk}};
    const bool whole = std::all_of(std::begin(tokens), std::end(tokens),
                                   [&](const auto& token) { return config.contains(token.first); });
    // transformers treats a byte-level tokenizer whose class is given as Llama's as one without a class.
    if (whole || (name == "LlamaTokenizer" && tokenizer_json(files).find("\"ByteLevel\"") != std::string::npos)) return;
    for (const auto& [key, text] : tokens)
      if (*text != 0 && !config.contains(key)) config[key] = text;
  }
}

// Parses an id that is the name of a JSON member. The name is a stranger's text and may be anything, for example nested
// brackets.
uint32_t index_named(const std::string& name, const std::string& where) {
  uint32_t id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  check(error == std::errc() && end == name.data() + name.size() && id < static_cast<uint32_t>(kTokenIdLimit),
        "{}: \"{}\" is no id of a token; expected 0 to {}", where, foreign(name), kTokenIdLimit - 1);
  return id;
}

// Adds to the added tokens of tokenizer.json those that only the files beside it have, as transformers does: the tokens
// described under "added_tokens_decoder", and named special tokens that are ordinary ones in the vocabulary. Their
// pad_token is left out: nothing is padded here, and where it is a word of the language it would vanish from answers.
void complete_added_tokens(Json& file, const Json& config) {
  const std::string where = "tokenizer_config.json";
  const auto model = file.find("model");
  const bool listed = model != file.end() && model->is_object() && model->contains("vocab");
  const Json none = Json::object(), &vocabulary = listed && (*model)["vocab"].is_object() ? (*model)["vocab"] : none;
  Json& tokens = file["added_tokens"];
  if (tokens.is_null()) tokens = Json::array();
  if (!tokens.is_array()) return;  // It is refused where it is read.
  std::unordered_set<std::string> known;
  for (const Json& token : tokens)
    if (token.is_object() && token.contains("content") && token["content"].is_string()) known.insert(token["content"]);
  const auto add = [&](Json token, const std::string& text, const Json& id) {
    if (!known.insert(text).second) return;
    token["content"] = text;
    token["id"] = vocabulary.value(text, id);
    tokens.push_back(std::move(token));
  };
  const auto add_named = [&](const Json& token, const std::string& at) {
    const std::string& text = text_of_token(token, at);
    if (!vocabulary.contains(text)) return;  // The token has no row in the embedding of the model.
    Json special = token.is_object() ? token : Json::object();
    special["special"] = true;
    add(std::move(special), text, nullptr);
  };
  if (const Json* described = find_field(config, "added_tokens_decoder", where)) {
    const std::string at = where + ": added_tokens_decoder";
    expect_type(described->is_object(), *described, at, "an object of id: token");
    for (const auto& [name, token] : described->items()) {
      const uint32_t id = index_named(name, at);
      add(token, string_field(token, "content", at + "." + name), id);
    }
  }
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token"})
    if (const Json* token = find_field(config, key, where)) add_named(*token, where + ": " + key);
  for (const auto& [key, token] : config.items())  // These are a model's own tokens, such as image_token.
    if (key.ends_with("_token") && key != "pad_token" && token.is_string()) add_named(token, where + ": " + key);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    if (const Json* more = find_field(config, key, where); more && more->is_structured())
      for (const Json& token : *more) add_named(token, where + ": " + key);
}

void refuse_unread_keys(const Json& config) {
  const char* const kCorrupting = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  check(!bool_field(config, kCorrupting, false, kConfigFile) ||
            !bool_field(config, "clean_up_tokenization_spaces", false, kConfigFile),
        "{}: {} is true: taking spaces out of texts so is not supported; set it to false", kConfigFile, kCorrupting);
  if (const Json* versions = find_field(config, "fast_tokenizer_files", kConfigFile); versions && versions->is_array())
    for (const Json& file : *versions)
      check(file == "tokenizer.json",
            "{}: fast_tokenizer_files names {}: only tokenizer.json is read; make the one to read that", kConfigFile,
            file.dump());
}

}  // namespace

const std::string& text_of_token(const Json& token, const std::string& where) {
  return token.is_object() ? string_field(token, "content", where) : string_of(token, where);
}

Json tokenizer_config(const TextFiles& files) {
  Json config = read_config_file(files, kConfigFile);
  if (config.empty() && is_tekken_folder(files))
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  if (!find_field(config, "added_tokens_decoder", kConfigFile)) {
    merge_special_tokens_map(files, config);
    merge_added_tokens(files, config);
  }
  refuse_unread_keys(config);
  add_tokens_of_class(files, config);
  return config;
}

Json template_processing(const NamedToken& before, const NamedToken& behind) {
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  for (int type = 0; type < 2; ++type) {
    Json parts = Json::array();
    const auto add_token = [&](const NamedToken& token) {
      if (!token) return;
      parts.push_back({{"SpecialToken", {{"id", token->first}, {"type_id", type}}}});
      tokens[token->first] = {{"id", token->first}, {"ids", {token->second}}, {"tokens", {token->first}}};
    };
    add_token(before);
    parts.push_back({{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}});
    add_token(behind);
    if (type == 0) single = parts;
    pair.insert(pair.end(), parts.begin(), parts.end());
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

namespace {

// Applies "fix_mistral_regex": Mistral's files written before transformers 5 split words otherwise than in training.
void fix_mistral_pattern(Json& tokenizer, const Json& config, const TextFiles& files) {
  if (!bool_field(config, "fix_mistral_regex", false, kConfigFile)) return;
  const Json model = read_config_file(files, "config.json");
  const std::string type = model.value("model_type", Json("")).is_string() ? model.value("model_type", "") : "";
  const std::string version =
      model.value("transformers_version", Json("")).is_string() ? model.value("transformers_version", "") : "";
  constexpr const char* kTypes[] = {"", "mistral", "mistral3", "voxtral", "ministral", "pixtral"};
  constexpr size_t kLargest = 100'000;  // Vocabularies of Mistral up to this size are not affected.
  const bool meant = std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes) &&
                     std::atoi(version.c_str()) < 5 && tokenizer.value("pre_tokenizer", Json()).is_object() &&
                     tokenizer.value("model", Json::object()).value("vocab", Json()).size() > kLargest;
  if (!meant) return;
  const Json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex",
         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  Json& steps = tokenizer["pre_tokenizer"];
  if (steps.value("type", "") == "Sequence") {
    Json& list = steps["pretokenizers"];
    if (list.is_array() && !list.empty()) list[0] = split;
    return;
  }
  if (steps.value("type", "") == "Metaspace")
    steps = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  steps = {{"type", "Sequence"}, {"pretokenizers", {split, Json(steps)}}};
}

}  // namespace

Json complete_tokenizer(const std::string& tokenizer_json, const Json& config, const TextFiles& files) {
  Json file = parse_json(tokenizer_json, "tokenizer.json");
  expect_type(file.is_object(), file, "tokenizer.json", "an object");
  complete_added_tokens(file, config);
  fix_mistral_pattern(file, config, files);
  return file;
}

}  // namespace tokenization

std::map<std::string, std::string> special_tokens(const TextFiles& files) {
  std::map<std::string, std::string> tokens;
  try {
    const tokenization::Json config = tokenization::tokenizer_config(files);
    for (const char* key : tokenization::kNamedTokens)
      if (const tokenization::Json* token = tokenization::find_field(config, key, tokenization::kConfigFile))
        tokens[key] = tokenization::text_of_token(*token, std::string(tokenization::kConfigFile) + ": " + key);
    for (const auto& [key, token] : config.items())
      if (key.ends_with("_token") && token.is_string()) tokens.emplace(key, token.get<std::string>());
    if (const tokenization::Json* more =
            tokenization::find_field(config, "extra_special_tokens", tokenization::kConfigFile);
        more && more->is_object())
      for (const auto& [key, token] : more->items()) tokens[key] = tokenization::text_of_token(token, key);
  } catch (const Error& e) {
    throw Error("{}: {}", files.name(), e.what());
  }
  return tokens;
}

std::string tokenizer_json(const TextFiles& files) {
  if (auto text = files.read("tokenizer.json")) return *std::move(text);
  if (const auto tekken = files.read(tokenization::kTekkenFile)) {
    try {
      return tokenization::tokenizer_json_of_tekken(*tekken);
    } catch (const Error& e) {
      throw Error("{} has no tokenizer.json, and its {} cannot be read: {}", files.name(), tokenization::kTekkenFile,
                  e.what());
    }
  }
  for (const char* other : {"tokenizer.model", "tiktoken.model", "spiece.model", "vocab.json", "vocab.txt"})
    check(!files.exists(other),
          "{} has no tokenizer.json, and its {} is not read; make one of it with transformers: python3 -c \"from "
          "transformers import AutoTokenizer as T; T.from_pretrained('{}').save_pretrained('{}')\"",
          files.name(), other, files.name(), files.name());
  return files.require("tokenizer.json");
}

std::string tokenizer_trouble(const TextFiles& files) {
  if (files.exists("tokenizer.json")) return "";
  try {
    tokenizer_json(files);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace fidelio
