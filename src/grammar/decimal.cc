#include "grammar/decimal.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostScaled = 18;  // 64 bits hold this many digits.
constexpr int64_t kLargestExponent = 1'000'000;

}  // namespace

Decimal decimal_of(std::string_view written) {
  Decimal d;
  d.negative = written.starts_with('-');
  if (d.negative) written.remove_prefix(1);
  const size_t e = std::min(written.find_first_of("eE"), written.size());
  int64_t exponent = 0;
  if (e < written.size()) {
    std::string_view power = written.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    std::from_chars(power.data(), power.data() + power.size(), exponent);
    exponent = std::clamp(exponent, -kLargestExponent, kLargestExponent);
  }
  const std::string_view number = written.substr(0, e);
  const size_t point = std::min(number.find('.'), number.size());
  d.digits = number.substr(0, point);
  d.before = static_cast<int64_t>(point) + exponent;
  if (point < number.size()) d.digits += number.substr(point + 1);
  const size_t zeros = std::min(d.digits.find_first_not_of('0'), d.digits.size());
  d.digits.erase(0, zeros);
  d.before -= static_cast<int64_t>(zeros);
  d.digits.erase(d.digits.find_last_not_of('0') + 1);
  if (d.digits.empty()) d = {};
  return d;
}

int compared(const Decimal& a, const Decimal& b) {
  const auto sign = [](const Decimal& d) { return d.digits.empty() ? 0 : d.negative ? -1 : 1; };
  if (sign(a) != sign(b) || sign(a) == 0) return sign(a) - sign(b);
  const int larger = a.before != b.before ? (a.before > b.before ? 1 : -1) : a.digits.compare(b.digits);
  return larger == 0 ? 0 : (larger > 0) != a.negative ? 1 : -1;
}

std::string whole_digits(const Decimal& d) {
  if (d.before <= 0) return "0";
  std::string all = d.digits.substr(0, std::min(d.digits.size(), static_cast<size_t>(d.before)));
  all.resize(static_cast<size_t>(d.before), '0');
  return all;
}

std::optional<int64_t> scaled(const Decimal& d, int64_t places) {
  if (d.digits.empty()) return 0;
  if (d.before + places > kMostScaled || d.places() > places) return std::nullopt;
  std::string all = d.digits;
  all.resize(static_cast<size_t>(d.before + places), '0');
  return std::stoll(all);
}

bool is_multiple(const Decimal& d, const Decimal& unit) {
  const auto divisor = scaled(unit, unit.places());
  check(divisor && *divisor > 0, "multipleOf has more than {} digits: it cannot be imposed", kMostScaled);
  if (d.places() > unit.places()) {  // The unit has no digits this far after the point, so the number is no multiple.
    return false;
  }
  __extension__ using Wide = __int128;
  Wide rest = 0;
  const int64_t written = d.before + unit.places();
  for (int64_t i = 0; i < written; ++i) {
    const auto at = static_cast<size_t>(i);
    rest = (rest * 10 + (at < d.digits.size() ? d.digits[at] - '0' : 0)) % *divisor;
  }
  return rest == 0;
}

}  // namespace fidelio::grammar
