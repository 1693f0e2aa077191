#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
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

// The code points are hexadecimal.
constexpr std::pair<const char*, std::string_view> kAfterUnicode14[] = {
    {"L",
     "1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 1123F-11240 "
     "11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 "
     "11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D 16D40-16D6C 18CFF 1B132 1B155 "
     "1DF25-1DF2A 1E030-1E06D 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF"},
    {"Lu", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65"},
    {"Ll", "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A"},
    {"Lm", "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB"},
    {"Lo",
     "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E 11390-113B5 "
     "113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA "
     "16100-1611D 16D43-16D6A 18CFF 1B132 1B155 1E4D0-1E4EA 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D "
     "31350-323AF"},
    {"M",
     "897 CF3 ECE 10D69-10D6D 10EFC-10EFF 11241 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 "
     "113D2 113E1-113E2 11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F5A 13440 13447-13455 "
     "1611E-1612F 1E08F 1E4EC-1E4EF 1E5EE-1E5EF"},
    {"Mn",
     "897 ECE 10D69-10D6D 10EFC-10EFF 11241 113BB-113C0 113CE 113D0 113D2 113E1-113E2 11F00-11F01 "
     "11F36-11F3A 11F40 11F42 11F5A 13440 13447-13455 1611E-16129 1612D-1612F 1E08F 1E4EC-1E4EF "
     "1E5EE-1E5EF"},
    {"Mc",
     "CF3 113B8-113BA 113C2 113C5 113C7-113CA 113CC-113CD 113CF 11F03 11F34-11F35 11F3E-11F3F "
     "11F41 1612A-1612C"},
    {"N",
     "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 "
     "1D2C0-1D2D3 1E4F0-1E4F9 1E5F1-1E5FA"},
    {"Nd",
     "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 "
     "1E4F0-1E4F9 1E5F1-1E5FA"},
    {"No", "1D2C0-1D2D3"},
    {"P", "1B4E-1B4F 1B7F 10D6E 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F 16D6D-16D6F 1E5FF"},
    {"S",
     "2427-2429 2FFC-2FFF 31E4-31E5 31EF 10D8E-10D8F 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 "
     "1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF "
     "1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF"},
    {"Han", "2B739 2EBF0-2EE5D 31350-323AF"},
};

CodeRanges ranges_in(std::string_view list) {
  CodeRanges ranges;
  for (const char *at = list.data(), *end = at + list.size(); at < end; ++at) {
    uint32_t first = 0;
    at = std::from_chars(at, end, first, 16).ptr;
    uint32_t last = first;
    if (at < end && *at == '-') at = std::from_chars(at + 1, end, last, 16).ptr;
    ranges.emplace_back(first, last);
  }
  return ranges;
}

bool is_newer(const char* property, char32_t c) {
  const CodeRanges& ranges = characters_after_unicode_14().at(property);
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& r) { return r.first <= c && c <= r.second; });
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
  if (category == UTF8PROC_CATEGORY_CN) return is_newer("L", c) || is_newer("M", c) || is_newer("Nd", c);
  return category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

const std::map<std::string, CodeRanges>& characters_after_unicode_14() {
  static const std::map<std::string, CodeRanges> all = [] {
    std::map<std::string, CodeRanges> read;
    for (const auto& [property, list] : kAfterUnicode14) read.emplace(property, ranges_in(list));
    return read;
  }();
  return all;
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
