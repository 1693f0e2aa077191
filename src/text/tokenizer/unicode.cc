#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "core/error.h"
#include "text/tokenizer/pattern.h"

namespace fidelio::tokenization {
namespace {

bool all_below(std::string_view text, unsigned char limit) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= limit) return false;
  return true;
}

// utf8proc orders the marks after a letter by exchanging neighbours, which is quadratic in their number. No writing
// system needs more than a dozen.
void check_marks(std::string_view text) {
  constexpr int kMostMarks = 1000;
  int marks = 0;
  for (size_t at = 0, length; at < text.size(); at += length) {
    const char32_t c = code_point_at(text, at, &length);
    // These three are letters in the tables and become two marks each when decomposed.
    const bool mark = c >= 0x300 && (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0 ||
                                     c == 0xF73 || c == 0xF75 || c == 0xF81);
    marks = mark ? marks + 1 : 0;
    check(marks <= kMostMarks, "more than {} combining marks behind one letter, up to byte {} of the text", kMostMarks,
          at);
  }
}

// `text` has no character of kAfterUnicode9.
std::string normalize_known(std::string_view text, int options) {
  utf8proc_uint8_t* result = nullptr;
  utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  check(length >= 0, "cannot bring a text of {} bytes to its Unicode normal form: {}", text.size(),
        utf8proc_errmsg(length));
  return std::string(reinterpret_cast<char*>(result), static_cast<size_t>(length));
}

}  // namespace

// These are the well-formed sequences (Unicode standard, table 3-7). Only the range of the second byte depends on the
// first.
//   00..7F | C2..DF t | E0 A0..BF t | E1..EC,EE,EF t t | ED 80..9F t | F0 90..BF t t | F1..F3 t t t | F4 80..8F t t
Utf8Step utf8_step(std::string_view bytes, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {Utf8Step::kCharacter, 1};
  size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                  : lead >= 0xE0 && lead <= 0xEF ? 3
                  : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                 : 0;
  if (length == 0) return {Utf8Step::kIllFormed, 1};
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == bytes.size()) return {Utf8Step::kUnfinished, i};
    if (byte(at + i) < low || byte(at + i) > high) return {Utf8Step::kIllFormed, i};
    low = 0x80, high = 0xBF;
  }
  return {Utf8Step::kCharacter, length};
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    Utf8Step step = utf8_step(bytes, at);
    if (step.kind != Utf8Step::kCharacter) return false;
    at += step.length;
  }
  return true;
}

std::string replace_ill_formed_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    Utf8Step step = utf8_step(bytes, at);
    out += step.kind == Utf8Step::kCharacter ? bytes.substr(at, step.length) : kReplacementCharacter;
    at += step.length;
  }
  return out;
}

char32_t code_point_at(std::string_view text, size_t at, size_t* length) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t lead = byte(0);
  *length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (*length == 1) return lead;
  char32_t c = lead & (0x7Fu >> *length);
  for (size_t i = 1; i < *length; ++i) c = (c << 6) | (byte(i) & 0x3F);
  return c;
}

char32_t code_point_before(std::string_view text, size_t end, size_t* length) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return code_point_at(text, begin, length);
}

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  out.append(reinterpret_cast<char*>(bytes), utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes));
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Alphabetic is L, Nl and Other_Alphabetic. Of the last, those that are not already M are the circled and squared Latin
// letters (So). utf8proc has no Alphabetic, hence the three ranges.
bool is_word_character(char32_t c) {
  utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  // These are L*, M*, Nd and Nl.
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) return true;
  return category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

std::string normalize_utf8(std::string_view text, NormalForm form) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  // ASCII is its own normal form, and everything below U+0300 (lead bytes below CC) is its own NFC.
  if (all_below(text, compose && !compatible ? 0xCC : 0x80)) return std::string(text);
  int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (compatible) options |= UTF8PROC_COMPAT;
  // A code point that the tables do not know never decomposes, composes or moves. It separates two texts that are
  // normalised by themselves.
  static const TextPattern unknown = TextPattern::regex("[" + std::string(kAfterUnicode9) + "]+");
  check_marks(text);
  std::vector<TextSpan> spans;
  Meter meter("the Unicode normal form", kMaxWork + text.size());
  unknown.find(text, spans, meter);
  std::string out;
  for (const TextSpan& span : spans) {
    std::string_view part = text.substr(span.begin, span.end - span.begin);
    span.match ? out += part : out += normalize_known(part, options);
  }
  return out;
}

std::string lowercase_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0, length; at < text.size(); at += length) {
    char32_t c = code_point_at(text, at, &length);
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    // I with dot above has the only unconditional lower-case mapping to two code points (SpecialCasing.txt).
    if (c == 0x130) append_utf8(out, 0x307);
  }
  return out;
}

}  // namespace fidelio::tokenization
