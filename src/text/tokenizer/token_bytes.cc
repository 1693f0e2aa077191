#include "text/tokenizer/token_bytes.h"

#include "core/error.h"
#include "text/tokenizer/text.h"
#include "text/tokenizer/unicode.h"

namespace fidelio {
namespace {

// Undoes ByteLevel's spelling. The result is empty where a character is not of that alphabet.
std::string byte_level_bytes(const std::string& text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const int byte = tokenization::byte_level_byte(tokenization::code_point_at(text, at, &length));
    if (byte < 0) return "";
    bytes += static_cast<char>(byte);
    at += length;
  }
  return bytes;
}

// Undoes SentencePiece's spelling: <0xNN> is a byte, U+2581 a space.
std::string sentence_piece_bytes(const std::string& text) {
  const auto hex = [](char c) { return std::string("0123456789ABCDEF").find(c); };
  if (text.size() == 6 && text.starts_with("<0x") && text.back() == '>' && hex(text[3]) < 16 && hex(text[4]) < 16)
    return std::string(1, static_cast<char>(hex(text[3]) * 16 + hex(text[4])));
  const std::string space = "\u2581";
  std::string bytes = text;
  for (size_t at = 0; (at = bytes.find(space, at)) != std::string::npos; ++at) bytes.replace(at, space.size(), " ");
  return bytes;
}

}  // namespace

std::vector<std::string> bytes_of_tokens(const Tokenizer& tokenizer) {
  const auto shown = [&](int32_t id) { return tokenizer.decode({&id, 1}, false); };
  const auto space = tokenizer.id_of("\u0120");  // This is ByteLevel's space.
  const bool byte_level = space && shown(*space) == " ";
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    std::string text;
    try {
      text = tokenizer.token_text(id);
    } catch (const Error&) {
      continue;  // The id has no token.
    }
    std::string own = byte_level ? byte_level_bytes(text) : sentence_piece_bytes(text);
    // Added tokens are spelt as they are.
    if (own.empty() || (byte_level && tokenization::replace_ill_formed_utf8(own) != shown(id))) own = shown(id);
    bytes[static_cast<size_t>(id)] = std::move(own);
  }
  return bytes;
}

}  // namespace fidelio
