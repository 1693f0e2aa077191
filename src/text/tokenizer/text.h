// What happens to a text before its words reach the model: the `normalizer` and the `pre_tokenizer` of a
// tokenizer.json.
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

// A part of the text on its way to becoming tokens.
struct TextPiece {
  std::string text;  // valid UTF-8; empty for an added token
  int32_t id = -1;   // >= 0: an added token was found here; no later stage touches the piece
  // Metaspace's prepend_scheme "first" asks whether a piece was cut where the original text begins. It was if its first
  // byte stands for the original's first character, as `first` bytes do after whatever was done to the piece since.
  bool at_start = false;
  size_t first = 0;
};

// Bytes [begin, end) of a piece that is no token, as a piece.
inline TextPiece part_of(const TextPiece& whole, size_t begin, size_t end) {
  const size_t first = std::clamp(whole.first, begin, end) - begin;
  return {whole.text.substr(begin, end - begin), -1, first > 0, first};
}

// Text put before a piece's first character stands for the same part of the original.
inline void prepend_to(TextPiece& piece, const std::string& text) {
  if (piece.text.empty()) return;
  piece.text.insert(0, text);
  if (piece.first > 0) piece.first += text.size();
}

// Changes every character by itself.
template <typename Change>
void change_characters(TextPiece& piece, Change&& change) {
  if (piece.first > 0) piece.first = change(piece.text.substr(0, piece.first)).size();
  piece.text = change(piece.text);
}

// Splits every piece that is no token by `spans_of(text, spans)`; drops spans marked as matches and empty ones.
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

// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents and Sequences of them.
class Normalizer {
 public:
  Normalizer() = default;                             // changes nothing
  explicit Normalizer(const nlohmann::json& config);  // null: changes nothing; throws Error naming what is unsupported
  void apply(TextPiece& piece, Meter& meter) const;   // meter: the patterns' work, and what the text grows by

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

// Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit and Sequences of them.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const nlohmann::json& config);  // as for Normalizer
  void apply(std::vector<TextPiece>& pieces, Meter& meter) const;

 private:
  struct Split {
    TextPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpace {};  // ByteLevel's add_prefix_space
  struct BytesToText {};  // ByteLevel's spelling of bytes
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

// The byte that a character stands for in GPT-2's spelling of bytes, where each is a printable character below U+0144; -1:
// not such a character.
int byte_level_byte(char32_t c);
std::string byte_level_spelling(std::string_view bytes);

// {"String": s} or {"Regex": r}.
TextPattern pattern_of(const nlohmann::json& config, const std::string& where);

// Metaspace's settings in both spellings (add_prefix_space before tokenizers 0.15, prepend_scheme since).
enum class PrependScheme { kAlways, kFirst, kNever };
PrependScheme prepend_scheme_of(const nlohmann::json& config, const std::string& where);
std::string metaspace_replacement(const nlohmann::json& config, const std::string& where);

inline constexpr int kNestingLimit = 32;  // of Sequences within Sequences

}  // namespace fidelio::tokenization
