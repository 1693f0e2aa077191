#include "formats/grid_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace fidelio {
namespace {

constexpr int kBits = 6;  // Grids of this many bits are curves.

// Returns entries as Lloyd's algorithm gives them: denser in the middle and noisy by a share of a step.
std::vector<double> noisy_entries(Rng& rng) {
  std::vector<double> entries(size_t{1} << kBits);
  const double middle = 0.55 + 0.3 * rng.uniform(), offset = 0.02 * rng.normal();
  for (size_t k = 0; k < entries.size(); ++k) {
    const double u = static_cast<double>(2 * k + 1) / static_cast<double>(entries.size()) - 1;
    entries[k] = offset + u * (middle + (1 - middle) * u * u * u * u) +
                 0.2 * middle / static_cast<double>(entries.size()) * rng.normal();
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

TEST(GridCurve, AGridThatWasFittedIsKnownByItsEntries) {
  Rng rng(3);
  int fitted = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<double> entries = noisy_entries(rng), even(entries.size(), 1.0);
    const auto grid = fit_curve(entries, even);
    if (!grid) continue;
    ++fitted;
    const std::optional<GridCurve> curve = curve_of(*grid);
    ASSERT_TRUE(curve);
    EXPECT_EQ(entries_of(*curve, kBits), *grid);
    EXPECT_EQ(std::max<int>(grid->back(), -grid->front()), 127);
    // The noise is a fifth of a step in the middle. A curve of four terms through 64 points follows the rest.
    const double scale = 127 / std::max(entries.back(), -entries.front());
    double squares = 0;
    for (size_t k = 0; k < entries.size(); ++k) squares += std::pow((*grid)[k] - scale * entries[k], 2);
    EXPECT_LT(std::sqrt(squares / static_cast<double>(entries.size())), 4.0);
  }
  EXPECT_GE(fitted, 990);  // The other grids keep entries of their own.
}

TEST(GridCurve, EntriesOfNoCurveAreNotTakenForOne) {
  std::vector<int8_t> grid = typical_grid(kBits);
  ASSERT_TRUE(curve_of(grid));
  const size_t middle = grid.size() / 2;
  ASSERT_GT(grid[middle + 2] - grid[middle], 2);
  grid[middle + 1] = static_cast<int8_t>(grid[middle] + 1);
  const auto curve = curve_of(grid);
  EXPECT_TRUE(!curve || entries_of(*curve, kBits) == grid);
  EXPECT_FALSE(curve);
  grid[middle + 1] = grid[middle];
  EXPECT_FALSE(curve_of(grid)) << "does not ascend";
  EXPECT_FALSE(curve_of(std::vector<int8_t>(16, 1)));
  EXPECT_FALSE(curve_of(std::vector<int8_t>(33, 1)));
}

// This is computed by hand: at the last code u = 31/32 and t = 961/1024, both exact in FP16, and the unit of the sum is
// 1.
TEST(GridCurve, EveryOperationIsRoundedToFp16) {
  const GridCurve line{127, 0, 0, 0};
  const std::vector<int8_t> entries = entries_of(line, 5);
  for (int k = 0; k < 32; ++k)
    EXPECT_EQ(entries[static_cast<size_t>(k)], std::nearbyint(127 * (2 * k - 31) / 32.0)) << k;
  const GridCurve bent{64, 0, 63, 1};  // half(63 t) is 59.125 and half(64 + 59.125 t) is 119.5.
  EXPECT_EQ(entries_of(bent, 5)[31], std::nearbyint(119.5 * 31 / 32 + 1));
}

}  // namespace
}  // namespace fidelio
