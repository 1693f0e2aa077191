// This header reads what the files beside a tokenizer.json say of it, as transformers 5.24 reads them:
// tokenizer_config.json, and where that describes no added tokens itself (added_tokens_decoder) special_tokens_map.json
// and added_tokens.json. What a file does not say the class that it names does. What changes ids or text and is not
// read is refused by name.
//
// Where there is a tokenizer.json its post_processor alone decides what is put before and behind a text: transformers does not
// read add_bos_token and add_eos_token then. Nor do add_prefix_space and legacy matter, which are for tokenizers made of
// other files; some of transformers' classes (LlamaTokenizer) make such a one all the same, and begin texts and what stands
// behind special tokens otherwise than the tokenizer.json that was published with the weights, which is followed here.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/foreign/text_files.h"

namespace fidelio {

// Returns the special tokens by name: bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, and
// what else is named so (image_token). They are what a chat template sees. Throws Error naming the file.
std::map<std::string, std::string> special_tokens(const TextFiles& files);

// tokenizer.json, or what it would be where the folder has Mistral's tekken.json instead. Throws Error that names the
// files of other tokenizers that are there, and what to do.
std::string tokenizer_json(const TextFiles& files);
std::string tokenizer_trouble(const TextFiles& files);  // why it would throw; empty where it would not

namespace tokenization {

// One object for all of these files.
nlohmann::json tokenizer_config(const TextFiles& files);
// The text of a token that is named by it or by an added token's whole description.
const std::string& text_of_token(const nlohmann::json& token, const std::string& where);
// A post_processor that puts a token before a text and another behind it, where they are given: texts and ids.
using NamedToken = std::optional<std::pair<std::string, int64_t>>;
nlohmann::json template_processing(const NamedToken& before, const NamedToken& behind);
// The tokenizer.json with what the config adds to it: added tokens, and Mistral's corrected pattern (fix_mistral_regex).
nlohmann::json complete_tokenizer(const std::string& tokenizer_json, const nlohmann::json& config,
                                  const TextFiles& files);

}  // namespace tokenization
}  // namespace fidelio
