#include "grammar/characters.h"

#include <algorithm>
#include <string>

namespace fidelio::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr CharRange kSurrogates{0xD800, 0xDFFF};

struct ByteRange {
  uint8_t low, high;
};

std::string utf8_of(char32_t c) {
  const auto tail = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(c)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(c >> 6), tail(c)};
  return {static_cast<char>(0xF0 | c >> 18), tail(c >> 12), tail(c >> 6), tail(c)};
}

// Adds sequences of byte ranges that write exactly the characters from low to high, which have equally many bytes. The
// range is cut where the last bytes do not run from 80 to BF.
void add_sequences(char32_t low, char32_t high, size_t bytes, std::vector<std::vector<ByteRange>>& to) {
  for (size_t tail = 1; tail < bytes; ++tail) {
    const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_sequences(low, low | mask, bytes, to);
      return add_sequences((low | mask) + 1, high, bytes, to);
    }
    if ((high & mask) != mask) {
      add_sequences(low, (high & ~mask) - 1, bytes, to);
      return add_sequences(high & ~mask, high, bytes, to);
    }
  }
  const std::string first = utf8_of(low), last = utf8_of(high);
  std::vector<ByteRange> one;
  for (size_t i = 0; i < first.size(); ++i)
    one.push_back({static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])});
  to.push_back(std::move(one));
}

Fragment utf8_range(Grammar& g, CharRange range) {
  std::vector<std::vector<ByteRange>> sequences;
  const char32_t ends[] = {0x7F, 0x7FF, 0xFFFF, kLast};
  char32_t low = range.low;
  for (size_t bytes = 1; bytes <= 4 && low <= range.high; ++bytes) {
    if (low > ends[bytes - 1]) continue;
    const char32_t high = std::min(range.high, ends[bytes - 1]);
    add_sequences(low, high, bytes, sequences);
    low = high + 1;
  }
  std::vector<Fragment> all;
  for (const auto& sequence : sequences) {
    Fragment f = g.byte(sequence[0].low, sequence[0].high);
    for (size_t i = 1; i < sequence.size(); ++i) f = g.sequence(f, g.byte(sequence[i].low, sequence[i].high));
    all.push_back(f);
  }
  return all.size() == 1 ? all[0] : g.choice(all);
}

bool is_escaped(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

Fragment escape_of(Grammar& g, char32_t c) {
  const std::string shorts = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
  const size_t at = c < 0x80 ? shorts.find(static_cast<char>(c)) : std::string::npos;
  if (c != 0 && at != std::string::npos) return g.literal(std::string("\\") + letters[at]);
  constexpr std::string_view digits = "0123456789abcdef";
  return g.literal(std::string("\\u00") + digits[c >> 4] + digits[c & 15]);
}

}  // namespace

CharSet normalised(CharSet set) {
  std::sort(set.begin(), set.end(), [](CharRange a, CharRange b) { return a.low < b.low; });
  CharSet merged;
  for (const CharRange& r : set) {
    if (!merged.empty() && r.low <= merged.back().high + 1)
      merged.back().high = std::max(merged.back().high, r.high);
    else
      merged.push_back(r);
  }
  CharSet out;
  for (const CharRange& r : merged) {
    if (r.low < kSurrogates.low) out.push_back({r.low, std::min<char32_t>(r.high, kSurrogates.low - 1)});
    if (r.high > kSurrogates.high)
      out.push_back({std::max<char32_t>(r.low, kSurrogates.high + 1), std::min(r.high, kLast)});
  }
  return out;
}

CharSet complement(const CharSet& set) {
  CharSet out;
  char32_t next = 0;
  for (const CharRange& r : normalised(set)) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kLast) out.push_back({next, kLast});
  return normalised(out);
}

CharSet every_character() { return complement({}); }

Fragment one_of(Grammar& g, const CharSet& set, Writing writing) {
  std::vector<Fragment> all;
  for (const CharRange& r : set) {
    if (writing == Writing::utf8) {
      all.push_back(utf8_range(g, r));
      continue;
    }
    char32_t next = r.low;
    for (char32_t c = r.low; c <= std::min<char32_t>(r.high, '\\'); ++c) {
      if (!is_escaped(c)) continue;
      if (c > next) all.push_back(utf8_range(g, {next, c - 1}));
      all.push_back(escape_of(g, c));
      next = c + 1;
    }
    if (next <= r.high) all.push_back(utf8_range(g, {next, r.high}));
  }
  if (all.empty()) return g.nothing();
  return all.size() == 1 ? all[0] : g.choice(all);
}

Fragment string_character(Grammar& g) {
  std::vector<Fragment> all;
  for (const CharRange& r : normalised({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLast}})) all.push_back(utf8_range(g, r));
  std::vector<Fragment> escapes;
  for (const char c : std::string("\"\\/bfnrt"))
    escapes.push_back(g.byte(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  const auto hex = [&] { return g.choice({g.byte('0', '9'), g.byte('a', 'f'), g.byte('A', 'F')}); };
  const auto first =
      g.choice({g.byte('0', '9'), g.byte('a', 'c'), g.byte('A', 'C'), g.byte('e', 'f'), g.byte('E', 'F')});
  const auto low = g.sequence(g.choice({g.byte('d', 'd'), g.byte('D', 'D')}), g.byte('0', '7'));
  Fragment code = g.sequence(g.choice({g.sequence(first, hex()), low}), g.sequence(hex(), hex()));
  escapes.push_back(g.sequence(g.byte('u', 'u'), code));
  all.push_back(g.sequence(g.byte('\\', '\\'), g.choice(escapes)));
  return g.choice(all);
}

}  // namespace fidelio::grammar
