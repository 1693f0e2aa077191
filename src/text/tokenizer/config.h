// This file reads the files beside a tokenizer.json, as transformers 5.24 does: tokenizer_config.json, and where that
// has no added_tokens_decoder also special_tokens_map.json and added_tokens.json. A setting that no file has comes from
// the class that the files name. A setting that changes ids or text and is not supported is refused by name.
//
// Where there is a tokenizer.json, its post_processor alone decides which tokens are put before and after a text:
// transformers then ignores add_bos_token and add_eos_token. The settings add_prefix_space and legacy do not matter
// either; they are for tokenizers made from other files. Some classes of transformers (LlamaTokenizer) still make such
// a tokenizer, and treat the beginning of a text and the text after special tokens otherwise than the tokenizer.json
// that was published with the weights. The tokenizer.json is followed here.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/foreign/text_files.h"

namespace fidelio {

// Returns the special tokens by name: bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, and
// others with such names (image_token). A chat template sees them as variables. Throws Error naming the file.
std::map<std::string, std::string> special_tokens(const TextFiles& files);

// Returns tokenizer.json, or its equivalent where the folder has Mistral's tekken.json instead. Throws an Error that
// names the files of other tokenizers that are there, and what to do.
std::string tokenizer_json(const TextFiles& files);
// This returns the reason why it would throw, or "" where it would not.
std::string tokenizer_trouble(const TextFiles& files);

namespace tokenization {

// Returns one object with the settings of all of these files.
nlohmann::json tokenizer_config(const TextFiles& files);
// Returns the text of a token that is given by its text or by the whole description of an added token.
const std::string& text_of_token(const nlohmann::json& token, const std::string& where);
// Returns a post_processor that puts a token before a text and another after it, where they are given. A NamedToken is
// a text and an id.
using NamedToken = std::optional<std::pair<std::string, int64_t>>;
nlohmann::json template_processing(const NamedToken& before, const NamedToken& behind);
// Returns the tokenizer.json with the additions of the config: added tokens, and Mistral's corrected pattern
// (fix_mistral_regex).
nlohmann::json complete_tokenizer(const std::string& tokenizer_json, const nlohmann::json& config,
                                  const TextFiles& files);

}  // namespace tokenization
}  // namespace fidelio
