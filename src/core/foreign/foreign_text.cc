#include "core/foreign/foreign_text.h"

#include <fmt/format.h>

namespace fidelio {
namespace {

// This is the character at some place of a text, with its length in bytes. For a byte that begins no UTF-8 character
// the length is 1 and `valid` is false.
struct Character {
  char32_t code;
  size_t length;
  bool valid;
};

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || text.size() - at < length) return {lead, 1, false};
  char32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= kLeast[length] && code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
  return valid ? Character{code, length, true} : Character{lead, 1, false};
}

bool is_obeyed(char32_t c, Lines lines) {
  if (c == '\n' || c == '\t') return lines == Lines::escaped;
  if (c < 0x20 || (c >= 0x7F && c <= 0x9F)) return true;
  return c == 0x61C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) ||
         c == 0xFEFF || (c >= 0xE0000 && c <= 0xE007F);
}

// Spells a code as \x1b or \u202e, with at least `digits` digits.
void spell(std::string& out, char letter, char32_t code, int digits) {
  while (digits < 6 && code >> (4 * digits) != 0) ++digits;
  (out += '\\') += letter;
  while (digits-- > 0) out += "0123456789abcdef"[code >> (4 * digits) & 15];
}

// Returns the last byte at or before `at` where a character begins, searching at most four bytes back.
size_t character_begin(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at; ++back)
    if ((static_cast<unsigned char>(text[at - back]) & 0xC0) != 0x80) return at - back;
  return at;
}

}  // namespace

std::string visible(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;  // Bytes from `begin` up to `at` are to be shown as they are.
  for (size_t at = 0; at < text.size();) {
    if (text[at] >= 0x20 && text[at] < 0x7F) {
      ++at;
      continue;
    }
    const Character c = character_at(text, at);
    if (!c.valid || is_obeyed(c.code, lines)) {
      out.append(text, begin, at - begin);
      if (c.code == '\n' || c.code == '\t')
        out += c.code == '\n' ? "\\n" : "\\t";
      else
        spell(out, c.code < 0x100 ? 'x' : 'u', c.code, c.code < 0x100 ? 2 : 4);
      begin = at + c.length;
    }
    at += c.length;
  }
  return out.append(text, begin);
}

std::string foreign(std::string_view text, Lines lines, size_t most) {
  if (text.size() <= most) return visible(text, lines);
  const size_t head = character_begin(text, most * 3 / 4), tail = character_begin(text, text.size() - most / 4);
  return fmt::format("{}[... {} bytes ...]{}", visible(text.substr(0, head), lines), text.size(),
                     visible(text.substr(tail), lines));
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    const size_t at = std::string_view("0123456789abcdef0123456789ABCDEF").find(c);
    return at == std::string_view::npos ? -1 : static_cast<int>(at % 16);
  };
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); ++at) {
    const bool two = text[at] == '%' && text.size() - at > 2 && digit(text[at + 1]) >= 0 && digit(text[at + 2]) >= 0;
    out += two ? static_cast<char>(digit(text[at + 1]) * 16 + digit(text[at + 2])) : text[at];
    if (two) at += 2;
  }
  return out;
}

}  // namespace fidelio
