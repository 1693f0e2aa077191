// Unicode on UTF-8 bytes: what the tokenizer needs and the C++ library lacks. Normal forms and categories are utf8proc's.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace fidelio::tokenization {

// One step of a decoder that follows the Unicode standard's "substitution of maximal subparts" (chapter 3.9), which is
// what Python's errors='replace', Rust's from_utf8_lossy and the web do: an ill-formed sequence is cut after its longest
// prefix that could have begun a character, and each such cut becomes one U+FFFD.
struct Utf8Step {
  enum Kind { kCharacter, kIllFormed, kUnfinished };  // kUnfinished: well-formed so far, but the bytes end here
  Kind kind;
  size_t length;  // bytes; never 0
};
Utf8Step utf8_step(std::string_view bytes, size_t at);  // at < bytes.size()

bool is_valid_utf8(std::string_view bytes);
std::string replace_ill_formed_utf8(std::string_view bytes);  // every ill-formed or unfinished part becomes U+FFFD

// Both expect valid UTF-8 and 0 <= at < text.size() (0 < end <= text.size()).
char32_t code_point_at(std::string_view text, size_t at, size_t* length);
char32_t code_point_before(std::string_view text, size_t end, size_t* length);
void append_utf8(std::string& out, char32_t c);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

bool is_white_space(char32_t c);     // the property White_Space
bool is_combining_mark(char32_t c);  // general category M
bool is_word_character(char32_t c);  // UTS 18 \w: Alphabetic, M, Nd, Pc, Join_Control

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize_utf8(std::string_view text, NormalForm form);  // `text` must be valid UTF-8

// Full lower-case mapping of each code point by itself (no final sigma, no locale).
std::string lowercase_utf8(std::string_view text);

}  // namespace fidelio::tokenization
