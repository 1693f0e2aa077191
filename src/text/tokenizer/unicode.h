// This file has the Unicode operations on UTF-8 bytes that the tokenizer needs and the C++ library lacks. Normal forms
// and categories are those of utf8proc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fidelio::tokenization {

// This is one step of a decoder that follows the Unicode standard's "substitution of maximal subparts" (chapter 3.9),
// as Python's errors='replace', Rust's from_utf8_lossy and the web do. An ill-formed sequence is cut after its longest
// prefix that could have begun a character, and each such cut becomes one U+FFFD.
struct Utf8Step {
  // kUnfinished means that it is well-formed so far, but the bytes end here.
  enum Kind { kCharacter, kIllFormed, kUnfinished };
  Kind kind;
  size_t length;  // It is in bytes and never 0.
};
Utf8Step utf8_step(std::string_view bytes, size_t at);  // `at` must be < bytes.size().

bool is_valid_utf8(std::string_view bytes);
std::string replace_ill_formed_utf8(std::string_view bytes);  // Every ill-formed or unfinished part becomes U+FFFD.

// Both expect valid UTF-8 and 0 <= at < text.size() (0 < end <= text.size()).
char32_t code_point_at(std::string_view text, size_t at, size_t* length);
char32_t code_point_before(std::string_view text, size_t end, size_t* length);
void append_utf8(std::string& out, char32_t c);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // This is U+FFFD.

bool is_white_space(char32_t c);     // This is the property White_Space.
bool is_word_character(char32_t c);  // This is UTS 18's \w: Alphabetic, M, Nd, Pc, Join_Control.

// This is the inside of a regular expression's class. It lists the code points that utf8proc 2.8 (Unicode 15)
// normalises and Unicode 9 did not: each decomposes, composes or has a combining class and was assigned later. The list
// was found by comparing the two on every code point.
inline constexpr std::string_view kAfterUnicode9 =
    R"(\x{7FD}\x{898}-\x{89F}\x{8CA}-\x{8D3}\x{9FE}\x{C3C}\x{D3B}-\x{D3C}\x{EBA}\x{1715}\x{1ABF}-\x{1ACE})"
    R"(\x{1DF6}-\x{1DFA}\x{32FF}\x{A7F2}-\x{A7F4}\x{A82C}\x{AB69}\x{10781}-\x{10785}\x{10787}-\x{107B0})"
    R"(\x{107B2}-\x{107BA}\x{10D24}-\x{10D27}\x{10EAB}-\x{10EAC}\x{10EFD}-\x{10EFF}\x{10F46}-\x{10F50})"
    R"(\x{10F82}-\x{10F85}\x{11070}\x{1133B}\x{1145E}\x{11839}-\x{1183A}\x{11930}\x{11935}\x{11938})"
    R"(\x{1193D}-\x{1193E}\x{11943}\x{119E0}\x{11A34}\x{11A47}\x{11A99}\x{11D42}\x{11D44}-\x{11D45}\x{11D97})"
    R"(\x{11F41}-\x{11F42}\x{16FF0}-\x{16FF1}\x{1E030}-\x{1E06D}\x{1E08F}\x{1E130}-\x{1E136}\x{1E2AE})"
    R"(\x{1E2EC}-\x{1E2EF}\x{1E4EC}-\x{1E4EF}\x{1F16C}\x{1FBF0}-\x{1FBF9})";

// These are the characters of a property of Unicode that Unicode 15 and 16 assigned, as ranges from first to last. The
// libraries that Hugging Face uses know 16, Debian's Oniguruma 6.9.8 knows 14 and its utf8proc 2.8 knows 15. The ranges
// were found by asking Hugging Face's Oniguruma about every code point that 14 leaves free, for the properties that
// patterns of tokenizers name.
using CodeRanges = std::vector<std::pair<uint32_t, uint32_t>>;
const std::map<std::string, CodeRanges>& characters_after_unicode_14();

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Normalises by the tables of Unicode 9.0, as the library that Hugging Face uses does. Code points assigned later stay
// where they are. `text` must be valid UTF-8.
std::string normalize_utf8(std::string_view text, NormalForm form);

// Applies the full lower-case mapping to each code point separately (no final sigma, no locale).
std::string lowercase_utf8(std::string_view text);

}  // namespace fidelio::tokenization
