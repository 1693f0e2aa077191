#include "text/jinja/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "text/jinja/value.h"

namespace fidelio::jinja {

namespace {

// Returns where the last code point begins: it goes back over continuation bytes if they form one.
size_t last_code_point(std::string_view s) {
  size_t start = s.size() - 1;
  while (start > 0 && s.size() - start < 4 && (static_cast<unsigned char>(s[start]) & 0xC0) == 0x80) --start;
  return next_code_point(s, start) == s.size() ? start : s.size() - 1;
}

// Charges one more part of a text, with its bytes.
void pay_part(size_t bytes, Meter& meter) {
  meter.spend_items(1);
  meter.spend_bytes(bytes);
}

}  // namespace

size_t next_code_point(std::string_view s, size_t begin) {
  utf8proc_int32_t c;
  utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(s.data()) + begin,
                                        static_cast<utf8proc_ssize_t>(s.size() - begin), &c);
  return begin + (n > 0 ? static_cast<size_t>(n) : 1);
}

std::u32string decode(std::string_view s) {
  std::u32string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    auto byte = static_cast<unsigned char>(s[i]);
    if (byte < 0x80) {
      out += byte;
      ++i;
      continue;
    }
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(s.data()) + i,
                                          static_cast<utf8proc_ssize_t>(s.size() - i), &c);
    out += n > 0 ? static_cast<char32_t>(c) : kRawByte + byte;
    i += n > 0 ? static_cast<size_t>(n) : 1;
  }
  return out;
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c >= kRawByte) {
    out += static_cast<char>(c - kRawByte);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
            static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

std::string encode(std::u32string_view code_points) {
  std::string out;
  out.reserve(code_points.size());
  for (char32_t c : code_points) append(out, c);
  return out;
}

size_t length(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); ++n) i = static_cast<unsigned char>(s[i]) < 0x80 ? i + 1 : next_code_point(s, i);
  return n;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view strip(std::string_view s, const std::string* characters, bool left, bool right) {
  std::u32string set = characters ? decode(*characters) : std::u32string();
  std::sort(set.begin(), set.end());
  auto dropped = [&](char32_t c) { return characters ? std::binary_search(set.begin(), set.end(), c) : is_space(c); };
  while (left && !s.empty()) {
    size_t next = next_code_point(s, 0);
    if (!dropped(decode(s.substr(0, next))[0])) break;
    s.remove_prefix(next);
  }
  while (right && !s.empty()) {
    const size_t start = last_code_point(s);
    if (!dropped(decode(s.substr(start))[0])) break;
    s = s.substr(0, start);
  }
  return s;
}

size_t find_text(std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return s.npos;
  if (what.empty()) return from;
  const void* at = ::memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return at ? static_cast<size_t>(static_cast<const char*>(at) - s.data()) : s.npos;
}

// This is the search of Knuth, Morris and Pratt, from right to left.
size_t find_last_text(std::string_view s, std::string_view what) {
  const size_t m = what.size();
  if (m == 0) return s.size();
  if (m > s.size()) return s.npos;
  const auto letter = [&](size_t i) { return what[m - 1 - i]; };
  std::vector<uint32_t> border(m, 0);
  for (size_t i = 1, k = 0; i < m; ++i) {
    while (k > 0 && letter(i) != letter(k)) k = border[k - 1];
    if (letter(i) == letter(k)) ++k;
    border[i] = static_cast<uint32_t>(k);
  }
  for (size_t at = s.size(), k = 0; at-- > 0;) {
    while (k > 0 && s[at] != letter(k)) k = border[k - 1];
    if (s[at] == letter(k)) ++k;
    if (k == m) return at;
  }
  return s.npos;
}

namespace {

// Sharp s is the one letter of common text whose upper case is two letters. All others use the simple mapping.
void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF)
    out += "SS";
  else
    append(out, c >= kRawByte ? c : static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (c == 0xDF)
    out += "Ss";
  else
    append(out, c >= kRawByte ? c : static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

char32_t to_lower(char32_t c) {
  return c >= kRawByte ? c : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

utf8proc_category_t category(char32_t c) {
  return c >= kRawByte ? UTF8PROC_CATEGORY_CN : utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_cased(char32_t c) {
  utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

// Tells whether the text has cased letters and all of them have the category `wanted`.
bool all_cased(std::string_view s, utf8proc_category_t wanted) {
  bool any = false;
  for (char32_t c : decode(s)) {
    if (!is_cased(c)) continue;
    if (category(c) != wanted) return false;
    any = true;
  }
  return any;
}

}  // namespace

std::string upper(std::string_view s) {
  std::string out;
  for (char32_t c : decode(s)) append_upper(out, c);
  return out;
}

std::string lower(std::string_view s) {
  std::string out;
  std::u32string points = decode(s);
  for (size_t i = 0; i < points.size(); ++i) {
    // A capital sigma that ends a word becomes the final form.
    bool final_sigma =
        points[i] == 0x3A3 && i > 0 && is_cased(points[i - 1]) && (i + 1 == points.size() || !is_cased(points[i + 1]));
    append(out, final_sigma ? char32_t{0x3C2} : to_lower(points[i]));
  }
  return out;
}

std::string capitalize(std::string_view s) {
  if (s.empty()) return {};
  size_t first = next_code_point(s, 0);
  std::string out;
  append_title(out, decode(s.substr(0, first))[0]);
  return out + lower(s.substr(first));
}

std::string title(std::string_view s) {
  std::string out;
  bool inside = false;
  for (char32_t c : decode(s)) {
    if (inside)
      append(out, to_lower(c));
    else
      append_title(out, c);
    inside = is_cased(c);
  }
  return out;
}

std::string title_filter(std::string_view s) {
  std::string out;
  bool inside = false;
  for (char32_t c : decode(s)) {
    bool separator = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separator)
      append(out, c);
    else if (inside)
      append(out, to_lower(c));
    else
      append_upper(out, c);
    inside = !separator;
  }
  return out;
}

bool is_upper(std::string_view s) { return all_cased(s, UTF8PROC_CATEGORY_LU); }
bool is_lower(std::string_view s) { return all_cased(s, UTF8PROC_CATEGORY_LL); }

namespace {

std::vector<std::string> split_white_space(std::string_view s, int64_t max_splits, Meter& meter) {
  std::vector<std::string> parts;
  s = strip(s, nullptr, true, false);
  while (!s.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      pay_part(s.size(), meter);
      parts.emplace_back(s);
      break;
    }
    size_t end = 0;
    while (end < s.size()) {
      size_t next = next_code_point(s, end);
      if (is_space(decode(s.substr(end, next - end))[0])) break;
      end = next;
    }
    pay_part(end, meter);
    parts.emplace_back(s.substr(0, end));
    s = strip(s.substr(end), nullptr, true, false);
  }
  return parts;
}

std::vector<std::string> rsplit_white_space(std::string_view s, int64_t max_splits, Meter& meter) {
  std::vector<std::string> parts;
  s = strip(s, nullptr, false, true);
  while (!s.empty()) {
    const bool rest = static_cast<int64_t>(parts.size()) == max_splits;
    size_t begin = rest ? 0 : s.size();
    while (begin > 0) {
      const size_t previous = last_code_point(s.substr(0, begin));
      if (is_space(decode(s.substr(previous, begin - previous))[0])) break;
      begin = previous;
    }
    pay_part(s.size() - begin, meter);
    parts.emplace_back(s.substr(begin));
    if (rest) break;
    s = strip(s.substr(0, begin), nullptr, false, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<std::string> split(std::string_view s, const std::string* separator, int64_t max_splits, Meter& meter) {
  if (!separator) return split_white_space(s, max_splits, meter);
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const bool more = max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits;
    const size_t at = more ? find_text(s, *separator, begin) : s.npos;
    pay_part(std::min(at, s.size()) - begin, meter);
    parts.emplace_back(s.substr(begin, at == s.npos ? at : at - begin));
    if (at == s.npos) return parts;
    begin = at + separator->size();
  }
}

std::vector<std::string> rsplit(std::string_view s, const std::string* separator, int64_t max_splits, Meter& meter) {
  if (max_splits < 0) return split(s, separator, max_splits, meter);
  if (!separator) return rsplit_white_space(s, max_splits, meter);
  std::vector<std::string> parts;
  for (;;) {
    const bool more = static_cast<int64_t>(parts.size()) < max_splits;
    meter.spend(more ? separator->size() / 8 : 0);  // The search reads the separator each time.
    const size_t at = more ? find_last_text(s, *separator) : s.npos;
    const std::string_view part = at == s.npos ? s : s.substr(at + separator->size());
    pay_part(part.size(), meter);
    parts.emplace_back(part);
    if (at == s.npos) break;
    s = s.substr(0, at);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view s, bool keep_ends, Meter& meter) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    size_t next = next_code_point(s, i);
    char32_t c = decode(s.substr(i, next - i))[0];
    if ((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029) {
      if (c == '\r' && next < s.size() && s[next] == '\n') ++next;
      pay_part(next - begin, meter);
      lines.emplace_back(s.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < s.size()) {
    pay_part(s.size() - begin, meter);
    lines.emplace_back(s.substr(begin));
  }
  return lines;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t count, Meter& meter) {
  std::string out;
  size_t i = 0;
  meter.spend_bytes(s.size());
  if (from.empty()) {  // Python puts `to` before every code point and at the end.
    while (count != 0) {
      meter.spend(1);
      meter.spend_bytes(to.size());
      out += to;
      --count;
      if (i >= s.size()) return out;
      size_t next = next_code_point(s, i);
      out += s.substr(i, next - i);
      i = next;
    }
    return out += s.substr(i);
  }
  while (count != 0) {
    size_t at = find_text(s, from, i);
    if (at == s.npos) break;
    meter.spend(1);
    meter.spend_bytes(to.size());
    out += s.substr(i, at - i);
    out += to;
    i = at + from.size();
    --count;
  }
  return out += s.substr(i);
}

std::string repr(std::string_view s) {
  char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  for (char32_t c : decode(s)) {
    utf8proc_category_t k = category(c);
    bool separator = k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
    bool other = k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CS ||
                 k == UTF8PROC_CATEGORY_CO || k == UTF8PROC_CATEGORY_CN;
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      append(out, c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == ' ' || !(separator || other)) {
      append(out, c);
    } else {
      if (c >= kRawByte) c -= kRawByte;
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out += quote;
}

std::string repr(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  std::string sign = shortest[0] == '-' ? "-" : "";
  shortest.remove_prefix(sign.size());
  size_t e = shortest.find('e');
  int exponent = std::stoi(std::string(shortest.substr(e + 1)));
  std::string digits(shortest.substr(0, 1));
  if (e > 1) digits += shortest.substr(2, e - 2);
  auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string fraction = count > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02d}", sign, digits[0], fraction, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string json_quote(std::string_view s, bool ascii_only) {
  std::string out = "\"";
  for (char32_t c : decode(s)) {
    if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x20) {
      constexpr std::string_view kNamed = "\b\t\n\f\r";
      constexpr std::string_view kLetters = "btnfr";
      size_t named = kNamed.find(static_cast<char>(c));
      out += named != kNamed.npos ? std::string{'\\', kLetters[named]}
                                  : fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ascii_only && c > 0x7e && c < kRawByte) {
      if (c == 0x7f) {
        out += '\x7f';
      } else if (c >= 0x10000) {
        uint32_t v = static_cast<uint32_t>(c) - 0x10000;
        out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
      } else {
        out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
      }
    } else {
      append(out, c);
    }
  }
  return out += '"';
}

}  // namespace fidelio::jinja
