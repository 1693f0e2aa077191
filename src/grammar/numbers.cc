#include "grammar/numbers.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace fidelio::grammar {
namespace {

// A bound of up to kMostPlaces digits is met to its last digit; one of up to kMostDigits digits is read.
constexpr int64_t kMostPlaces = 40, kMostDigits = 400;

Fragment digits(Grammar& g, int64_t low, int64_t high) {
  return g.repeat([&] { return g.byte('0', '9'); }, low, high);
}

// Reads decimals with as many digits as `low` and `high` have, from low to high.
Fragment same_length(Grammar& g, const std::string& low, const std::string& high, size_t at) {
  if (at == low.size()) return g.empty();
  const auto byte = [&](char a, char b) { return g.byte(static_cast<uint8_t>(a), static_cast<uint8_t>(b)); };
  const auto rest = static_cast<int64_t>(low.size() - at - 1);
  if (low[at] == high[at]) return g.sequence(byte(low[at], low[at]), same_length(g, low, high, at + 1));
  // After a first digit strictly between the bounds any digits may follow. The same holds after low's own digit if low
  // goes on with zeros, and after high's if high goes on with nines. Without this test the same digits would be made
  // twice at every place.
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

// Whole numbers are texts of digits here, without leading zeros.
bool is_less(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

std::string one_more(std::string whole) {
  for (size_t at = whole.size(); at-- > 0; whole[at] = '0')
    if (whole[at] != '9') {
      ++whole[at];
      return whole;
    }
  return "1" + whole;
}
std::string one_less(std::string whole) {  // It needs a number above 0.
  for (size_t at = whole.size(); at-- > 0; whole[at] = '9')
    if (whole[at] != '0') {
      --whole[at];
      break;
    }
  return whole.size() > 1 && whole[0] == '0' ? whole.substr(1) : whole;
}

// Reads whole numbers from low to high, with 0 <= low <= high.
Fragment range(Grammar& g, std::string low, const std::string& high) {
  std::vector<Fragment> all;
  while (!is_less(high, low)) {
    const std::string nines(low.size(), '9'), last = is_less(nines, high) ? nines : high;
    all.push_back(same_length(g, low, last, 0));
    low = one_more(last);
  }
  return g.choice(all);
}

// This is a bound that is not negative, in its digits: 12.0625 is {"12", "0625"}, without trailing zeros.
struct Written {
  std::string whole, fraction;
  bool excluded;
  char digit(int at) const { return at < static_cast<int>(fraction.size()) ? fraction[static_cast<size_t>(at)] : '0'; }
  bool only_zeros(int from) const { return from >= static_cast<int>(fraction.size()); }
  // Only zeros are left of a lower bound that is not excluded, so any further digits are no less.
  bool is_passed(int at) const { return only_zeros(at) && !excluded; }
};

// Returns the most digits before the point of numbers within bounds: those of a bound that has more than usual, and one
// more where the numbers go on beyond it.
int64_t width_of(const Bounds& b) {
  int64_t width = kPlaces;
  for (const auto& bound : {b.low, b.high})
    if (bound && bound->value.before <= kMostPlaces) width = std::max(width, bound->value.before);
  for (const auto& nearer : {b.low && !b.low->value.negative ? b.low : std::nullopt,
                             b.high && b.high->value.negative ? b.high : std::nullopt}) {
    if (!nearer) continue;
    check(nearer->value.before <= kMostDigits, "a bound has more than {} digits: it cannot be imposed", kMostDigits);
    const auto& farther = nearer->value.negative ? b.low : b.high;
    if (nearer->value.before >= width && (!farther || farther->value.before > width)) width = nearer->value.before + 1;
  }
  return width;
}

// Returns the most digits behind the point of a number with such a whole part. It has kPlaces digits altogether; the 0
// in front of the point does not count.
int places_behind(const std::string& whole) {
  return whole == "0" ? kPlaces : std::max(kPlaces - static_cast<int>(whole.size()), 0);
}

enum class Round : uint8_t { up, down };
// Returns the number nearest to the absolute value of x, on one side of it, that can be written here. It is x itself
// where that can.
Written rounded(const Bound& bound, Round to, int64_t width) {
  const Decimal& x = bound.value;
  const auto whole = static_cast<size_t>(width);
  if (x.before > width) return {std::string(whole, '9'), "", false};
  std::string all = x.digits;  // These are the digits of a whole part of `width` digits and a fraction.
  all.insert(0, static_cast<size_t>(std::min<int64_t>(width - x.before, width + kPlaces + 1)), '0');
  const size_t size = whole + static_cast<size_t>(places_behind(whole_digits(x)));
  const bool cut = all.size() > size && all.find_first_not_of('0', size) != std::string::npos;
  all.resize(size, '0');
  if (cut && to == Round::up) all = one_more(all);
  const size_t wider = all.size() - size;  // A carry can add one digit.
  std::string fraction = all.substr(whole + wider), before = all.substr(0, whole + wider);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  before.erase(0, std::min(before.find_first_not_of('0'), before.size() - 1));
  return {before, fraction, bound.excluded && !cut};
}

// This is a whole number with its sign, ordered as a number.
struct Signed {
  bool negative;
  std::string size;
};
bool is_less(const Signed& a, const Signed& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? is_less(b.size, a.size) : is_less(a.size, b.size);
}
// Returns the whole number next to a bound, on the side that the bound allows.
Signed next_whole(const Bound& bound, Round to) {
  const Decimal& x = bound.value;
  Signed n{x.negative, whole_digits(x)};
  const bool away = x.negative == (to == Round::down);  // It is true if rounding goes away from 0.
  if (x.whole() ? bound.excluded : away) {
    if (away || n.size == "0")
      n = {to == Round::down, one_more(n.size)};
    else
      n.size = one_less(n.size);
  }
  if (n.size == "0") n.negative = false;
  return n;
}

// This reads the tails of a fraction, which are the digits after the point from the one at `at` on. They keep the
// number between `low` and `high`, both fractions of the same whole part. A null bound means that the digits so far
// have already passed it. The result is empty where no tail fits.
struct Tails {
  Grammar& g;
  const Written *low, *high;
  int places;  // They have at most so many digits.

  std::optional<Fragment> from(int at, bool at_low, bool at_high) {
    if (!at_low && !at_high) return digits(g, at == 0 ? 1 : 0, places - at);
    std::vector<Fragment> all;
    if (at > 0 && may_end(at, at_low, at_high)) all.push_back(g.empty());
    const char first = at_low ? low->digit(at) : '0', last = at_high ? high->digit(at) : '9';
    // Digits equal to a bound's digit continue along that bound; the run of digits between continues freely.
    const auto add = [&](char from_digit, char to_digit, bool stays_low, bool stays_high) {
      if (from_digit > to_digit || at == places) return;
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
  // Digits that are not written count as zeros.
  bool may_end(int at, bool at_low, bool at_high) const {
    return (!at_low || low->is_passed(at)) && (!at_high || !high->only_zeros(at) || !high->excluded);
  }
  // Reads the fraction that may follow the whole part.
  std::optional<Fragment> after_whole() {
    std::vector<Fragment> all;
    if (may_end(0, low != nullptr, high != nullptr)) all.push_back(g.empty());
    if (places > 0)
      if (const auto tail = from(0, low != nullptr, high != nullptr)) all.push_back(g.sequence(g.literal("."), *tail));
    if (all.empty()) return std::nullopt;
    return g.choice(all);
  }
};

// Reads whole numbers from low to high, 0 < low <= high, and all fractions behind them. The digits behind the point
// have the same nodes for wholes of every length; with nodes for each length what meets them would have many times as
// many states.
Fragment with_any_fraction(Grammar& g, std::string low, const std::string& high) {
  std::vector<NodeId> left;  // From node i so many digits, i, may still follow.
  for (int i = 0; i < kPlaces; ++i) {
    left.push_back(g.empty().first);
    if (i == 0) continue;
    g.link(left.back(), left.front());
    g.read(left.back(), '0', '9', left[static_cast<size_t>(i) - 1]);
  }
  const Fragment all{g.empty().first, left.front()};
  while (!is_less(high, low)) {
    const std::string nines(low.size(), '9'), last = is_less(nines, high) ? nines : high;
    const Fragment whole = same_length(g, low, last, 0);
    g.link(all.first, whole.first);
    g.link(whole.last, all.last);
    if (const int places = places_behind(low); places > 0) {
      const NodeId point = g.empty().first;
      g.read(whole.last, '.', '.', point);
      g.read(point, '0', '9', left[static_cast<size_t>(places) - 1]);
    }
    low = one_more(last);
  }
  return all;
}

// Reads numbers that are not negative, from low to high, with or without a fraction.
void add_decimals(Grammar& g, const Written& low, const Written& high, std::vector<Fragment>& all,
                  const std::string& sign) {
  const auto add = [&](const std::string& whole, const Written* at_low, const Written* at_high) {
    if (const auto rest = Tails{g, at_low, at_high, places_behind(whole)}.after_whole())
      all.push_back(g.sequence(g.literal(sign + whole), *rest));
  };
  if (is_less(high.whole, low.whole) || (low.whole == high.whole && low.fraction > high.fraction)) return;
  if (low.whole == high.whole) return add(low.whole, &low, &high);
  add(low.whole, &low, nullptr);
  const std::string first = one_more(low.whole);
  if (is_less(first, high.whole))
    all.push_back(g.sequence(g.literal(sign), with_any_fraction(g, first, one_less(high.whole))));
  add(high.whole, nullptr, &high);
}

}  // namespace

void Bounds::raise(const Bound& to) {
  const int order = low ? compared(to.value, low->value) : 1;
  if (order > 0 || (order == 0 && to.excluded)) low = to;
}
void Bounds::lower(const Bound& to) {
  const int order = high ? compared(to.value, high->value) : -1;
  if (order < 0 || (order == 0 && to.excluded)) high = to;
}

bool Bounds::hold(const Decimal& d) const {
  const int above = low ? compared(d, low->value) : 1, below = high ? compared(d, high->value) : -1;
  return (above > 0 || (above == 0 && !low->excluded)) && (below < 0 || (below == 0 && !high->excluded));
}

bool Bounds::empty(bool integer) const {
  if (!low || !high) return false;
  if (integer && std::max(low->value.before, high->value.before) <= kMostDigits)
    return is_less(next_whole(*high, Round::down), next_whole(*low, Round::up));
  const int order = compared(low->value, high->value);
  return order > 0 || (order == 0 && (low->excluded || high->excluded));
}

std::vector<Bounds> Bounds::without(std::vector<Decimal> unwanted) const {
  std::sort(unwanted.begin(), unwanted.end(), [](const Decimal& a, const Decimal& b) { return compared(a, b) < 0; });
  std::vector<Bounds> all;
  Bounds rest = *this;
  for (const Decimal& one : unwanted) {
    if (!rest.hold(one)) continue;
    Bounds below = rest;
    below.lower({one, true}), rest.raise({one, true});
    all.push_back(std::move(below));
  }
  all.push_back(std::move(rest));
  return all;
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
  check(!bounds.empty(true), "no integer is within the bounds");
  const int64_t width = width_of(bounds);
  const std::string largest(static_cast<size_t>(width), '9');
  const auto within = [&](const std::optional<Bound>& bound, Round to) {
    if (!bound || bound->value.before > width) return Signed{to == Round::up, largest};
    return next_whole(*bound, to);
  };
  const Signed low = within(bounds.low, Round::up), high = within(bounds.high, Round::down);
  std::vector<Fragment> all;
  if (!high.negative) all.push_back(range(g, low.negative ? "0" : low.size, high.size));
  if (low.negative) all.push_back(g.sequence(g.literal("-"), range(g, high.negative ? high.size : "1", low.size)));
  return g.choice(all);
}

Fragment bounded_number(Grammar& g, const Bounds& b) {
  check(!b.empty(false), "no number is within the bounds");
  const int64_t width = width_of(b);
  std::vector<Fragment> all;
  const Written zero{"0", "", false}, above_zero{"0", "", true},
      largest{std::string(static_cast<size_t>(width), '9'), "", false};
  if (!b.high || !b.high->value.negative)
    add_decimals(g, b.low && !b.low->value.negative ? rounded(*b.low, Round::up, width) : zero,
                 b.high ? rounded(*b.high, Round::down, width) : largest, all, "");
  // Numbers below zero are read by their absolute values; "-0" is left to "0".
  if (!b.low || b.low->value.negative)
    add_decimals(g, b.high && b.high->value.negative ? rounded(*b.high, Round::up, width) : above_zero,
                 b.low ? rounded(*b.low, Round::down, width) : largest, all, "-");
  check(!all.empty(), "no number of at most {} digits is within the bounds", kPlaces);
  return g.choice(all);
}

}  // namespace fidelio::grammar
