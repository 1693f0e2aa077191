// This file describes grids of 6 bits as a curve. A GPU looks up a byte among 8 in one instruction, so looking it up
// among 64 entries takes twice the time of a polynomial in halves (for 32 entries it is the other way round:
// kernels/cuda/linear/decode/NOTES.md). Such a grid is stored like any other, by its entries (linear_weight.h), and a
// reader recovers the curve from the entries.
//
//   u = (2 q + 1) / 2^b - 1            exact in FP16
//   entry = nearest integer of u (a1 + t (a3 + t a5)) + a0, t = u^2
//
// Every operation is a fused multiply-add rounded to FP16. The last one adds the half 1664 + a0: halves from 1024 to
// 2048 are whole numbers, and the low byte of that sum is the entry + 128.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fidelio {

struct GridCurve {
  float a1 = 0, a3 = 0, a5 = 0;  // These are FP16 values.
  int a0 = 0;
  bool operator==(const GridCurve&) const = default;
};

constexpr bool is_curve_width(int bits) { return bits == 6; }
// Returns the 2^bits entries of a curve. For a curve made by fit_curve() they ascend, and the largest magnitude is 127.
std::vector<int8_t> entries_of(const GridCurve& curve, int bits);
// Returns the grid of the curve that is nearest to these entries, which ascend and may be in any unit. `weights` are
// the weights of their squared errors. Returns nullopt where no such curve ascends, or none is recovered from its
// entries.
std::optional<std::vector<int8_t>> fit_curve(std::span<const double> entries, std::span<const double> weights);
// Returns the grid of a curve that fits a bell-shaped distribution with its tails cut. Synthetic models and tests use
// it in place of a fitted one.
std::vector<int8_t> typical_grid(int bits);
// Returns the curve whose entries these are, or nullopt.
std::optional<GridCurve> curve_of(std::span<const int8_t> entries);

}  // namespace fidelio
