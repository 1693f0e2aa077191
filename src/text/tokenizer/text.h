// This file prepares a text before its words reach the BPE model: it implements the `normalizer` and the
// `pre_tokenizer` of a tokenizer.json.
#pragma once
#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

namespace fidelio::tokenization {

// This is a part of the text on its way to becoming tokens.
struct TextPiece {
  std::string text;  // It is valid UTF-8, and empty for an added token.
  int32_t id = -1;   // If it is >= 0, an added token was found here, and no later stage touches the piece.
  // Metaspace's prepend_scheme "first" needs to know whether a piece was cut where the original text begins. It was if
  // its first byte stands for the original's first character. The first `first` bytes stand for that character, through
  // all later changes of the piece.
  bool at_start = false;
  size_t first = 0;
};

// Returns the bytes [begin, end) of a piece that is no token, as a piece.
inline TextPiece part_of(const TextPiece& whole, size_t begin, size_t end) {
  const size_t first = std::clamp(whole.first, begin, end) - begin;
  return {whole.text.substr(begin, end - begin), -1, first > 0, first};
}

// Inserts text before the first character of a piece. It stands for the same part of the original.
inline void prepend_to(TextPiece& piece, const std::string& text) {
  if (piece.text.empty()) return;
  piece.text.insert(0, text);
  if (piece.first > 0) piece.first += text.size();
}

// Changes every character separately.
template <typename Change>
void change_characters(TextPiece& piece, Change&& change) {
  if (piece.first > 0) piece.first = change(piece.text.substr(0, piece.first)).size();
  piece.text = change(piece.text);
}

// Splits every piece that is no token by `spans_of(text, spans)`, and drops spans marked as matches and empty ones.
template <typename SpansOf>
void split_pieces(std::vector<TextPiece>& pieces, SpansOf&& spans_of) {
  std::vector<TextPiece> result;
  result.reserve(pieces.size());
  std::vector<TextSpan> spans;
  for (TextPiece& piece : pieces) {
    if (piece.id >= 0) {
      result.push_back(std::move(piece));
      continue;
    }
    spans_of(piece, spans);
    for (const TextSpan& span : spans)
      if (!span.match && span.begin < span.end) result.push_back(part_of(piece, span.begin, span.end));
  }
  pieces = std::move(result);
}

// This implements NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents and Sequences of them.
class Normalizer {
 public:
  Normalizer() = default;  // This one changes nothing.
  // Null changes nothing. It throws Error naming what is unsupported.
  explicit Normalizer(const nlohmann::json& config);
  // `meter` is charged for the patterns' work and the growth of the text.
  void apply(TextPiece& piece, Meter& meter) const;

 private:
  struct Lowercase {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct Strip {
    bool left, right;
  };
  using Step = std::variant<NormalForm, Lowercase, Prepend, Replace, Strip>;
  void add(const nlohmann::json& config, int depth);
  void apply_step(const Step& step, TextPiece& piece, Meter& meter) const;
  std::vector<Step> steps_;
};

// This implements Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit and Sequences of them.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const nlohmann::json& config);  // Null and errors are as for Normalizer.
  void apply(std::vector<TextPiece>& pieces, Meter& meter) const;

 private:
  struct Split {
    TextPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpace {};  // This is ByteLevel's add_prefix_space.
  struct BytesToText {};  // This is ByteLevel's spelling of bytes.
  struct Metaspace {
    std::string replacement;
    bool prepend, first_only;
  };
  using Step = std::variant<Split, PrefixSpace, BytesToText, Metaspace>;
  void add(const nlohmann::json& config, int depth);
  void add_byte_level(const nlohmann::json& config);
  void add_metaspace(const nlohmann::json& config);
  std::vector<Step> steps_;
};

// Returns the byte that a character stands for in GPT-2's spelling of bytes, where each is a printable character below
// U+0144, or -1 for other characters.
int byte_level_byte(char32_t c);
std::string byte_level_spelling(std::string_view bytes);

// Reads {"String": s} or {"Regex": r}.
TextPattern pattern_of(const nlohmann::json& config, const std::string& where);

// These read Metaspace's settings in both spellings (add_prefix_space before tokenizers 0.15, prepend_scheme since).
enum class PrependScheme { kAlways, kFirst, kNever };
PrependScheme prepend_scheme_of(const nlohmann::json& config, const std::string& where);
std::string metaspace_replacement(const nlohmann::json& config, const std::string& where);

inline constexpr int kNestingLimit = 32;  // This bounds Sequences within Sequences.

}  // namespace fidelio::tokenization
