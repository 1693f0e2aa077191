// This file keeps control tokens that a user writes from acting as control tokens. By default a rendered template is
// tokenised as a whole, so a user who writes <|im_end|> ends his turn. Here the user's texts are marked before they are
// rendered, and marked text is tokenised as plain text. transformers does the same (apply_chat_template with
// sanitize_control_tokens), and the ids are equal.
//
//   messages -> marked_messages() -> ChatTemplate::render_wire, with mark() -> encode() -> ids
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

class ControlTokens {
 public:
  // The control tokens are the special tokens of the tokenizer, together with those of its other added tokens that the
  // template writes or that tokenizer_config.json lists under chat_control_tokens.
  ControlTokens(const Tokenizer& tokenizer, const ChatTemplate& chat);

  // Puts marks around every control token in the texts and keys of a value. The marks are two private-use characters,
  // which are removed from the texts first. A text without control tokens is returned as it is.
  nlohmann::ordered_json marked(const nlohmann::ordered_json& value) const;
  std::string mark(const std::string& text) const;
  // Marks messages in OpenAI's wire form. The arguments of calls are JSON texts, in which a control token may be spelt
  // with escapes. They are left as they are, and render_wire marks the strings inside them.
  nlohmann::ordered_json marked_messages(const nlohmann::ordered_json& messages) const;
  // Encodes a rendered text: marked parts as plain text, everything else as usual. A mark still separates the text if a
  // template has cut off its other half. Throws Error if a tokenizer makes a control token of plain text.
  std::vector<int32_t> encode(std::string_view rendered) const;

 private:
  std::vector<int32_t> encode_piece(std::string_view piece, bool as_text) const;

  Tokenizer tokenizer_;
  tokenization::AddedTokens::Matcher control_, added_;
  std::vector<int32_t> newline_;
};

}  // namespace fidelio
