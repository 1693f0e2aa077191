#include <algorithm>
#include <vector>

#include "core/error.h"
#include "grammar/numbers.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostRests = 10'000;

// This automaton has a node for each remainder of the digits so far when divided by `divisor`, once for each number of
// digits after the point: row 0 is before the point, and row j + 1 has j digits after it. After all `places` digits
// only zeros follow.
struct Rests {
  Grammar& g;
  int64_t divisor;
  int places;
  std::vector<NodeId> node{};

  NodeId& at(int row, int64_t rest) { return node[static_cast<size_t>(row * divisor + rest)]; }
  void add_digits(int from, int to) {
    for (int64_t rest = 0; rest < divisor; ++rest)
      for (int64_t digit = 0; digit < 10; ++digit) {
        const auto byte = static_cast<uint8_t>('0' + digit);
        g.read(at(from, rest), byte, byte, at(to, (rest * 10 + digit) % divisor));
      }
  }
  // Digits that are not written count as zeros.
  bool whole(int row, int64_t rest) const {
    for (int j = std::max(row - 1, 0); j < places; ++j) rest = rest * 10 % divisor;
    return rest == 0;
  }
  Fragment fragment() {
    node.resize(static_cast<size_t>((places + 2) * divisor));
    for (NodeId& one : node) one = g.empty().first;
    const NodeId last = g.empty().first;
    add_digits(0, 0);
    for (int64_t rest = 0; rest < divisor; ++rest) g.read(at(0, rest), '.', '.', at(1, rest));
    for (int j = 0; j < places; ++j) add_digits(j + 1, j + 2);
    g.read(at(places + 1, 0), '0', '0', at(places + 1, 0));
    for (int row = 0; row < places + 2; ++row)
      for (int64_t rest = 0; rest < divisor; ++rest)
        if (whole(row, rest)) g.link(at(row, rest), last);
    return {at(0, 0), last};
  }
};

}  // namespace

std::optional<Fragment> multiples(Grammar& g, const Decimal& unit, bool integer) {
  std::optional<int64_t> divisor = scaled(unit, unit.places());
  auto places = static_cast<int>(std::min<int64_t>(unit.places(), kMostRests));
  check(divisor.has_value(), "multipleOf has more than 18 digits: it cannot be imposed on an answer");
  if (integer) {
    for (int64_t common; places > 0; --places) {  // This cancels the common factors of numerator and denominator.
      common = *divisor % 10 == 0 ? 10 : *divisor % 5 == 0 ? 5 : *divisor % 2 == 0 ? 2 : 1;
      *divisor /= common;
    }
    if (*divisor == 1) return std::nullopt;
  }
  check(places <= kPlaces, "multipleOf has digits behind the fifteenth place");
  check(
      *divisor <= kMostRests && *divisor * (places + 2) <= 2 * kMostRests,
      "multipleOf cannot be imposed on an answer: its digits without the point are more than {}, or make more than {} "
      "states with their places",
      kMostRests, 2 * kMostRests);
  return g.sequence(g.optional(g.literal("-")), Rests{g, *divisor, places}.fragment());
}

}  // namespace fidelio::grammar
