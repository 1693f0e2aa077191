#include "grammar/numbers.h"

#include <algorithm>
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

// Not negative, within bounds, with or without a fraction.
void add_decimals(Grammar& g, const Bounds& b, bool zero, std::vector<Fragment>& all, const char* sign) {
  Whole w = whole_of(b);
  w.low = std::max<int64_t>(w.low, 0);
  const auto fraction = [&] { return g.sequence(g.literal("."), digits(g, 1, 15)); };
  // n.xxx is below n + 1: inside if n is and n + 1 is no higher than the upper bound.
  const auto whole_units = static_cast<int64_t>(std::floor(std::min(b.high.value_or(1e15), 1e15))) - 1;
  const auto signed_one = [&](Fragment f) { return g.sequence(g.literal(sign), f); };
  if (w.low <= std::min(whole_units, kLargest))
    all.push_back(signed_one(g.sequence(range(g, w.low, std::min(whole_units, kLargest)), g.optional(fraction()))));
  const int64_t low = zero ? w.low : std::max<int64_t>(w.low, 1);
  if (low <= w.high) all.push_back(signed_one(range(g, low, w.high)));
}

}  // namespace

Fragment any_integer(Grammar& g) {
  return g.sequence(g.optional(g.literal("-")),
                    g.choice({g.literal("0"), g.sequence(g.byte('1', '9'), digits(g, 0, 14))}));
}

Fragment any_number(Grammar& g) {
  const auto fraction = g.optional(g.sequence(g.literal("."), digits(g, 1, 15)));
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
  if (!b.high || *b.high >= 0) add_decimals(g, b, true, all, "");
  if (!b.low || *b.low < 0) {
    Bounds mirrored;
    if (b.high) mirrored.low = -*b.high;
    if (b.low) mirrored.high = -*b.low;
    mirrored.low_excluded = b.high_excluded, mirrored.high_excluded = b.low_excluded;
    // "-0.5" is below a bound of 0 that is excluded, "-0" and "-0.0" are not.
    if (mirrored.low && *mirrored.low == 0 && mirrored.low_excluded) mirrored.low = 1, mirrored.low_excluded = false;
    add_decimals(g, mirrored, false, all, "-");
  }
  check(!all.empty(), "no number of a plain form is within the bounds: they are less than two whole numbers apart");
  return g.choice(all);
}

}  // namespace fidelio::grammar
