#include "grammar/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "core/error.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kLargest = 999'999'999'999'999;

Fragment digits(Grammar& g, int64_t low, int64_t high) {
  return g.repeat([&] { return g.byte('0', '9'); }, low, high);
}

// Decimals of as many digits as `low` and `high` have, from one to the other.
Fragment same_length(Grammar& g, const std::string& low, const std::string& high, size_t at) {
  if (at == low.size()) return g.empty();
  const auto byte = [&](char a, char b) { return g.byte(static_cast<uint8_t>(a), static_cast<uint8_t>(b)); };
  const auto rest = static_cast<int64_t>(low.size() - at - 1);
  if (low[at] == high[at]) return g.sequence(byte(low[at], low[at]), same_length(g, low, high, at + 1));
  // What follows a first digit in between is any; so it is behind low's where that goes on with zeros, and behind high's
  // where that goes on with nines. Without looking there the same digits would be made twice at every place.
  std::vector<Fragment> all;
  const std::string nines(low.size(), '9'), zeros(low.size(), '0');
  char first = low[at], last = high[at];
  if (low.find_first_not_of('0', at + 1) != std::string::npos) {
    all.push_back(g.sequence(byte(first, first), same_length(g, low, nines, at + 1)));
    ++first;
  }
  if (high.find_first_not_of('9', at + 1) != std::string::npos) {
    all.push_back(g.sequence(byte(last, last), same_length(g, zeros, high, at + 1)));
    --last;
  }
  if (first <= last) all.push_back(g.sequence(byte(first, last), digits(g, rest, rest)));
  return g.choice(all);
}

// Whole numbers from low to high, 0 <= low <= high.
Fragment range(Grammar& g, int64_t low, int64_t high) {
  std::vector<Fragment> all;
  for (int64_t first = 0, next = 10; low <= high; first = next, next *= 10) {
    if (low >= next) continue;
    const int64_t last = std::min(high, next - 1);
    all.push_back(same_length(g, std::to_string(std::max(low, first)), std::to_string(last), 0));
    low = last + 1;
  }
  return g.choice(all);
}

// A bound that is not negative, as it is written: 12.0625 is {12, "0625"}, without zeros at the end.
struct Bound {
  int64_t whole;
  std::string fraction;
  bool excluded;
  char digit(int at) const { return at < static_cast<int>(fraction.size()) ? fraction[static_cast<size_t>(at)] : '0'; }
  bool only_zeros(int from) const { return from >= static_cast<int>(fraction.size()); }
  // Zeros are all that is left of a lower bound that may be met: whatever follows is no less.
  bool is_passed(int at) const { return only_zeros(at) && !excluded; }
};

struct Whole {
  int64_t low, high;
};
// The whole numbers within bounds.
Whole whole_of(const Bounds& b) {
  const double limit = static_cast<double>(kLargest);
  double low = std::ceil(b.low.value_or(-limit)), high = std::floor(b.high.value_or(limit));
  if (b.low && b.low_excluded && low == *b.low) ++low;
  if (b.high && b.high_excluded && high == *b.high) --high;
  return {static_cast<int64_t>(std::clamp(low, -limit, limit + 1)),
          static_cast<int64_t>(std::clamp(high, -limit - 1, limit))};
}

enum class Round : uint8_t { up, down };
// The number nearest to x, on one side of it, of those that are written here; x itself where it is one.
Bound rounded(double x, bool excluded, Round to) {
  const Decimal exact = decimal_of(x);
  if (exact.before > kPlaces) return {kLargest + (to == Round::up ? 1 : 0), std::string(kPlaces, '9'), false};
  std::string all = exact.digits;  // of a whole of 15 digits and a fraction of as many
  all.insert(0, static_cast<size_t>(std::min(kPlaces - exact.before, 2 * kPlaces + 1)), '0');
  const bool cut = all.find_first_not_of('0', 2 * kPlaces) != std::string::npos;
  all.resize(2 * kPlaces, '0');
  for (size_t at = all.size(); cut && to == Round::up && at-- > 0;) {
    if (all[at]++ != '9') break;
    all[at] = '0';
  }
  std::string fraction = all.substr(kPlaces);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return {std::stoll(all.substr(0, kPlaces)), fraction, excluded && !cut};
}

// Tails of a fraction: the digits behind the point from the one at `at` on, of numbers that are no less than `low` and no
// more than `high`, both fractions of the same whole (null where the digits so far have left that bound behind). Nothing
// where there is none.
struct Tails {
  Grammar& g;
  const Bound *low, *high;

  std::optional<Fragment> from(int at, bool at_low, bool at_high) {
    if (!at_low && !at_high) return digits(g, at == 0 ? 1 : 0, kPlaces - at);
    std::vector<Fragment> all;
    if (at > 0 && may_end(at, at_low, at_high)) all.push_back(g.empty());
    const char first = at_low ? low->digit(at) : '0', last = at_high ? high->digit(at) : '9';
    // Digits that stay at a bound go on alone, the run between them goes on as any.
    const auto add = [&](char from_digit, char to_digit, bool stays_low, bool stays_high) {
      if (from_digit > to_digit || at == kPlaces) return;
      const std::optional<Fragment> rest = from(at + 1, stays_low, stays_high);
      if (rest)
        all.push_back(g.sequence(g.byte(static_cast<uint8_t>(from_digit), static_cast<uint8_t>(to_digit)), *rest));
    };
    const bool low_alone = at_low && !low->is_passed(at);
    if (low_alone && at_high && first == last) {
      add(first, first, true, true);
    } else {
      if (low_alone) add(first, first, true, false);
      if (at_high) add(last, last, false, true);
      add(static_cast<char>(first + (low_alone ? 1 : 0)), static_cast<char>(last - (at_high ? 1 : 0)), false, false);
    }
    if (all.empty()) return std::nullopt;
    return g.choice(all);
  }
  // Digits that are not written are zeros.
  bool may_end(int at, bool at_low, bool at_high) const {
    return (!at_low || low->is_passed(at)) && (!at_high || !high->only_zeros(at) || !high->excluded);
  }
  // The whole's text stands before: what may follow it.
  std::optional<Fragment> after_whole() {
    std::vector<Fragment> all;
    if (may_end(0, low != nullptr, high != nullptr)) all.push_back(g.empty());
    if (const auto tail = from(0, low != nullptr, high != nullptr)) all.push_back(g.sequence(g.literal("."), *tail));
    if (all.empty()) return std::nullopt;
    return g.choice(all);
  }
};

// Not negative, from low to high, with or without a fraction.
void add_decimals(Grammar& g, const Bound& low, const Bound& high, std::vector<Fragment>& all, const char* sign) {
  const auto add = [&](Fragment whole, const Bound* at_low, const Bound* at_high) {
    if (const auto rest = Tails{g, at_low, at_high}.after_whole())
      all.push_back(g.sequence(g.literal(sign), g.sequence(whole, *rest)));
  };
  if (low.whole > high.whole || (low.whole == high.whole && low.fraction > high.fraction)) return;
  if (low.whole == high.whole) return add(g.literal(std::to_string(low.whole)), &low, &high);
  add(g.literal(std::to_string(low.whole)), &low, nullptr);
  if (low.whole + 1 < high.whole) add(range(g, low.whole + 1, high.whole - 1), nullptr, nullptr);
  add(g.literal(std::to_string(high.whole)), nullptr, &high);
}

}  // namespace

Decimal decimal_of(double x) {
  if (x == 0) return {"", 0};
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::scientific).ptr;
  const std::string written(text.data(), end);  // "d.ddde-dd" or "de+dd"
  const size_t e = written.find('e');
  Decimal decimal{written.substr(0, 1), std::stoi(written.substr(e + 1)) + 1};
  if (e > 2) decimal.digits += written.substr(2, e - 2);
  decimal.digits.erase(decimal.digits.find_last_not_of('0') + 1);
  return decimal;
}

Fragment any_integer(Grammar& g) {
  return g.sequence(g.optional(g.literal("-")),
                    g.choice({g.literal("0"), g.sequence(g.byte('1', '9'), digits(g, 0, 14))}));
}

Fragment any_number(Grammar& g) {
  const auto fraction = g.optional(g.sequence(g.literal("."), digits(g, 1, kPlaces)));
  const auto sign = g.optional(g.choice({g.literal("+"), g.literal("-")}));
  const auto exponent =
      g.optional(g.sequence(g.sequence(g.choice({g.literal("e"), g.literal("E")}), sign), digits(g, 1, 2)));
  return g.sequence(any_integer(g), g.sequence(fraction, exponent));
}

Fragment bounded_integer(Grammar& g, const Bounds& bounds) {
  const Whole w = whole_of(bounds);
  check(w.low <= w.high, "no integer is within the bounds");
  std::vector<Fragment> all;
  if (w.high >= 0) all.push_back(range(g, std::max<int64_t>(w.low, 0), w.high));
  if (w.low < 0) all.push_back(g.sequence(g.literal("-"), range(g, std::max<int64_t>(1, -w.high), -w.low)));
  return g.choice(all);
}

Fragment bounded_number(Grammar& g, const Bounds& b) {
  std::vector<Fragment> all;
  const Bound zero{0, "", false}, above_zero{0, "", true}, largest{kLargest, std::string(kPlaces, '9'), false};
  if (!b.high || *b.high >= 0)
    add_decimals(g, b.low && *b.low >= 0 ? rounded(*b.low, b.low_excluded, Round::up) : zero,
                 b.high ? rounded(*b.high, b.high_excluded, Round::down) : largest, all, "");
  // Below zero by their sizes; "-0" is left to "0".
  if (!b.low || *b.low < 0)
    add_decimals(g, b.high && *b.high < 0 ? rounded(-*b.high, b.high_excluded, Round::up) : above_zero,
                 b.low ? rounded(-*b.low, b.low_excluded, Round::down) : largest, all, "-");
  check(!all.empty(), "no number is within the bounds");
  return g.choice(all);
}

}  // namespace fidelio::grammar
