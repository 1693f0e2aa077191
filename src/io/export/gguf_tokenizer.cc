#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/error.h"
#include "io/export/gguf.h"
#include "io/gguf/names.h"
#include "io/gguf/splitting.h"
#include "text/chat_template.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::exporting {
namespace {

using nlohmann::json;

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

json read_tokenizer(const TextFiles& files, const std::string& file) {
  const std::string text = tokenizer_json(files);
  try {
    return tokenization::complete_tokenizer(text, tokenization::tokenizer_config(files), files);
  } catch (const Error& e) {
    throw Error("{}: {}", file, e.what());
  }
}

// Returns a component, or the parts of a Sequence.
std::vector<json> flatten(const json& component, const char* parts) {
  if (!component.is_object()) return {};
  if (component.value("type", "") != "Sequence") return {component};
  std::vector<json> all;
  for (const json& part : component.value(parts, json::array())) {
    const auto inner = flatten(part, parts);
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

std::string pre_name(const std::string& file, const std::vector<json>& pre_tokenizers, bool ignore_merges) {
  const json* split = nullptr;
  bool own_regex = false, single_digits = false;
  for (const json& part : pre_tokenizers) {
    const std::string type = part.value("type", "");
    if (type == "ByteLevel") {
      own_regex = part.value("use_regex", true);
      check(!part.value("add_prefix_space", false),
            "{}: llama.cpp adds no space before the text, as this pre-tokenizer does (add_prefix_space)", file);
    } else if (type == "Digits" && part.value("individual_digits", false)) {
      single_digits = true;
    } else {
      check(type == "Split" && split == nullptr, "{}: llama.cpp has no pre-tokenizer {}", file, part.dump());
      split = &part;
    }
  }
  check(own_regex != (split != nullptr) && (split == nullptr || split->contains("pattern")),
        "{}: llama.cpp has no such combination of pre-tokenizers", file);
  const std::string regex = split == nullptr ? "" : (*split)["pattern"].value("Regex", "");
  for (const gguf::Splitting& known : gguf::splittings())
    if (regex == known.regex && single_digits == known.single_digits && ignore_merges == known.ignore_merges)
      return std::string(known.name);
  throw Error(
      "{}: llama.cpp has no name for the splitting pattern {}{} with ignore_merges {}; known are those of Qwen2, "
      "Qwen3.5, Llama 3, Mistral-Nemo, GPT-2 and SmolLM",
      file, regex.empty() ? "of GPT-2" : regex, single_digits ? " after single digits" : "", ignore_merges);
}

// Returns merges as "a b" from either spelling: "a b" or ["a", "b"].
std::vector<std::string> merges_of(const json& model) {
  std::vector<std::string> merges;
  for (const json& merge : model.value("merges", json::array()))
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  return merges;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

Vocabulary read_vocabulary(const std::string& file, const json& tokenizer, int v, bool sentencepiece) {
  Vocabulary vocabulary{std::vector<std::string>(static_cast<size_t>(v)),
                        std::vector<int32_t>(static_cast<size_t>(v), kUnused)};
  const auto set = [&](int64_t id, const std::string& text, TokenType type) {
    check(id >= 0 && id < v, "{}: token {} is beyond the model's vocabulary of {}", file, id, v);
    vocabulary.tokens[static_cast<size_t>(id)] = text;
    vocabulary.types[static_cast<size_t>(id)] = type;
  };
  const json& model = tokenizer["model"];
  for (const auto& [text, id] : model["vocab"].items()) {
    const bool byte = sentencepiece && text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
    set(id.get<int64_t>(), text, byte ? kByte : kNormal);
  }
  for (const json& added : tokenizer.value("added_tokens", json::array()))
    set(added.at("id").get<int64_t>(), added.at("content").get<std::string>(),
        added.value("special", false) ? kControl : kUserDefined);
  if (model.contains("unk_token") && model["unk_token"].is_string() &&
      model["vocab"].contains(model["unk_token"].get<std::string>()))
    vocabulary.types[model["vocab"][model["unk_token"].get<std::string>()].get<size_t>()] = kUnknown;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
    if (vocabulary.types[i] == kUnused) vocabulary.tokens[i] = fmt::format("[PAD{}]", i);
  return vocabulary;
}

// llama.cpp joins the pair whose token has the highest score, whereas merges are ranked with the most urgent first.
// Tokens that no merge makes are never compared.
std::vector<float> scores_of(const Vocabulary& vocabulary, const std::vector<std::string>& merges) {
  std::unordered_map<std::string, float> score;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string made = merges[rank];
    made.erase(made.find(' '), 1);  // The spaces of such a vocabulary are U+2581.
    score.emplace(std::move(made), -static_cast<float>(rank));
  }
  std::vector<float> scores;
  for (const std::string& token : vocabulary.tokens) {
    const auto found = score.find(token);
    scores.push_back(found == score.end() ? 0.0f : found->second);
  }
  return scores;
}

bool adds_space_prefix(const json& tokenizer) {
  for (const json& part : flatten(tokenizer.value("normalizer", json()), "normalizers"))
    if (part.value("type", "") == "Prepend") return true;
  for (const json& part : flatten(tokenizer.value("pre_tokenizer", json()), "pretokenizers"))
    if (part.value("type", "") == "Metaspace")
      return part.value("prepend_scheme", part.value("add_prefix_space", true) ? "always" : "never") != "never";
  return false;
}

// Puts the ids that end an answer beside eos. GGUF has keys for two of them; readers know others by their text, and
// these need no key.
void put_other_ends(GgufKeys& keys, const TextFiles& files, const Vocabulary& vocabulary, const Tokenizer& tokenizer,
                    int32_t eos) {
  std::vector<const char*> free = {"tokenizer.ggml.eom_token_id", "tokenizer.ggml.eot_token_id"};
  for (const int32_t id : stop_token_ids(files, [&](std::string_view text) { return tokenizer.id_of(text); })) {
    if (free.empty()) break;
    const auto at = static_cast<size_t>(id);
    if (id == eos || at >= vocabulary.tokens.size() || gguf::ends_an_answer(vocabulary.tokens[at])) continue;
    keys.put_u32(free.back(), static_cast<uint32_t>(id));
    free.pop_back();
  }
}

// llama.cpp puts at most one token before a text and one after it.
void check_ends_of_texts(const std::string& file, const Tokenizer& tokenizer, int32_t eos) {
  const auto before = tokenizer.leading_ids(), behind = tokenizer.trailing_ids();
  check(before.size() <= 1 && (behind.empty() || behind == std::vector{eos}),
        "{}: its post_processor puts {} tokens before a text and {} behind it; llama.cpp puts one there at most, and "
        "behind it eos alone",
        file, before.size(), behind.size());
}

// The token that is put before texts is bos, whatever the files call it.
void put_special(GgufKeys& keys, const TextFiles& files, const Vocabulary& vocabulary, int config_eos) {
  const Tokenizer tokenizer = Tokenizer::load(files);
  const std::vector<int32_t> before = tokenizer.leading_ids(), behind = tokenizer.trailing_ids();
  const int32_t bos = before.empty() ? tokenizer.bos_id().value_or(-1) : before.front();
  const int32_t eos = tokenizer.eos_id().value_or(config_eos >= 0 || behind.empty() ? config_eos : behind.back());
  check_ends_of_texts(files.path("tokenizer.json"), tokenizer, eos);
  if (bos >= 0) keys.put_u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  if (eos >= 0) keys.put_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(eos));
  put_other_ends(keys, files, vocabulary, tokenizer, eos);
  keys.put_bool("tokenizer.ggml.add_bos_token", !before.empty());
  keys.put_bool("tokenizer.ggml.add_eos_token", !behind.empty());
}

void put_chat_template(GgufKeys& keys, const TextFiles& files) {
  const auto templates = chat_templates(files);
  if (const auto found = templates.find("default"); found != templates.end())
    keys.put_string("tokenizer.chat_template", found->second);
  const std::string tools[] = {"tool_use"};  // It is the only other template that programs ask for.
  if (const auto found = templates.find(tools[0]); found != templates.end()) {
    keys.put_strings("tokenizer.chat_templates", tools);
    keys.put_string("tokenizer.chat_template." + found->first, found->second);
  }
}

}  // namespace

void put_tokenizer(GgufKeys& keys, const TextFiles& files, int v, int eos_id) {
  const std::string file = files.path("tokenizer.json");
  const json tokenizer = read_tokenizer(files, file);
  const json model = tokenizer.value("model", json::object());
  check(model.is_object() && model.contains("vocab") && model["vocab"].is_object(),
        "{}: has no model with a vocabulary", file);
  const auto pre_tokenizers = flatten(tokenizer.value("pre_tokenizer", json()), "pretokenizers");
  const bool byte_level = std::any_of(pre_tokenizers.begin(), pre_tokenizers.end(),
                                      [](const json& part) { return part.value("type", "") == "ByteLevel"; });
  const bool sentencepiece = !byte_level && model.value("byte_fallback", false);
  check(byte_level || sentencepiece,
        "{}: llama.cpp has no tokenizer for this one: it is neither byte-level nor has it byte_fallback", file);

  const Vocabulary vocabulary = read_vocabulary(file, tokenizer, v, sentencepiece);
  const std::vector<std::string> merges = merges_of(model);
  // Gemma 4's tokenizer has a kind of its own, which reads merges.
  const auto& tokens = vocabulary.tokens;
  const bool gemma4 = sentencepiece && std::find(tokens.begin(), tokens.end(), "<|turn>") != tokens.end();
  keys.put_string("tokenizer.ggml.model", gemma4 ? "gemma4" : sentencepiece ? "llama" : "gpt2");
  keys.put_string("tokenizer.ggml.pre", gemma4 ? "gemma4"
                                        : sentencepiece
                                            ? "default"
                                            : pre_name(file, pre_tokenizers, model.value("ignore_merges", false)));
  keys.put_strings("tokenizer.ggml.tokens", vocabulary.tokens);
  keys.put_i32s("tokenizer.ggml.token_type", vocabulary.types);
  if (sentencepiece) {
    keys.put_f32s("tokenizer.ggml.scores", scores_of(vocabulary, merges));
    keys.put_bool("tokenizer.ggml.add_space_prefix", adds_space_prefix(tokenizer));
    const auto unknown = std::find(vocabulary.types.begin(), vocabulary.types.end(), kUnknown);
    if (unknown != vocabulary.types.end())
      keys.put_u32("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(unknown - vocabulary.types.begin()));
  }
  if (!sentencepiece || gemma4) keys.put_strings("tokenizer.ggml.merges", merges);
  put_special(keys, files, vocabulary, eos_id);
  put_chat_template(keys, files);
}

}  // namespace fidelio::exporting
