// Grids of 6 bits as a curve. A GPU looks a byte up among 8 in one instruction, so 64 entries cost it twice the time
// that a polynomial in halves does (of 32 it is the other way round: kernels/cuda/linear/decode/NOTES.md). Such a grid
// is stored as any other (its entries, linear_weight.h), and a reader finds the curve again from the entries.
//
//   u = (2 q + 1) / 2^b - 1            exact in FP16
//   entry = nearest integer of u (a1 + t (a3 + t a5)) + a0, t = u^2
//
// every operation a fused multiply-add rounded to FP16, the last by the half 1664 + a0 being added: halves from 1024 to
// 2048 are whole numbers, and the low byte of that sum is the entry + 128.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fidelio {

struct GridCurve {
  float a1 = 0, a3 = 0, a5 = 0;  // values of FP16
  int a0 = 0;
  bool operator==(const GridCurve&) const = default;
};

constexpr bool is_curve_width(int bits) { return bits == 6; }
// The 2^bits entries. Those of a curve that fit_curve() made are ascending, the largest magnitude 127.
std::vector<int8_t> entries_of(const GridCurve& curve, int bits);
// The grid of a curve nearest to these entries (ascending, in any unit; weights: of their squared errors). nullopt where
// no such curve ascends, or none is found again from its entries.
std::optional<std::vector<int8_t>> fit_curve(std::span<const double> entries, std::span<const double> weights);
// The grid of a curve that bells have whose ends are cut: what synthetic models and tests take for one that was fitted.
std::vector<int8_t> typical_grid(int bits);
// The curve whose entries these are, or nullopt.
std::optional<GridCurve> curve_of(std::span<const int8_t> entries);

}  // namespace fidelio
