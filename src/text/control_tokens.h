// Control tokens that stand in what users write. By default a template's text is tokenised whole, so that a user who writes
// <|im_end|> ends his turn. Here his texts are marked before they are rendered, and what is marked is tokenised as text, as
// transformers does it (apply_chat_template with sanitize_control_tokens; the same ids come out).
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
  // The tokenizer's special tokens, and of its other added tokens those that the template writes, or those that
  // tokenizer_config.json lists under chat_control_tokens.
  ControlTokens(const Tokenizer& tokenizer, const ChatTemplate& chat);

  // Every control token in a value's texts and keys between marks: two characters for private use, which are taken out of
  // the texts first. A text without control tokens stays as it is.
  nlohmann::ordered_json marked(const nlohmann::ordered_json& value) const;
  std::string mark(const std::string& text) const;
  // The same of messages in OpenAI's wire form. The arguments of calls are JSON texts, in which a control token may be
  // spelt with escapes: these are left as they are, for render_wire to mark what they say.
  nlohmann::ordered_json marked_messages(const nlohmann::ordered_json& messages) const;
  // Encodes a rendered text: what is between marks as text, everything else as always. A mark whose other half a
  // template has cut off parts the text all the same. Throws Error if a tokenizer makes a control token of plain text.
  std::vector<int32_t> encode(std::string_view rendered) const;

 private:
  std::vector<int32_t> encode_piece(std::string_view piece, bool as_text) const;

  Tokenizer tokenizer_;
  tokenization::AddedTokens::Matcher control_, added_;
  std::vector<int32_t> newline_;
};

}  // namespace fidelio
