// Hadamard matrices: entries of +1 and -1, orthogonal rows. Divided by the root of their order they are rotations that
// spread any single column over all of them, which is what QuaRot (Ashkboos et al. 2024) turns activations by before they
// are rounded.
//
// One of order K 2^m is a Kronecker product: a dense K x K one, by Paley's constructions from the squares of a finite
// field, times m doublings [1 1; 1 -1] (Sylvester), which are m passes of sums and differences.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// What a row of columns is turned by: blocks of order * stride columns, each by H (x) I_stride / sqrt(order), with
// H = H_K (x) [1 1; 1 -1]^(x m) and order = K 2^m.
struct Hadamard {
  int64_t columns = 0;
  int64_t stride = 1;         // neighbours that are turned alike: column i stride + p of a block is element i
  int64_t order = 1;          // 1: nothing is turned
  int64_t doubled = 1;        // 2^m
  int64_t core = 1;           // K
  std::vector<int8_t> signs;  // H_K (K, K) row by row; empty where K is 1

  int64_t block() const { return order * stride; }
  double scale() const;  // 1 / sqrt(order)
  // H's entry, +1 or -1: the meaning of the rest.
  int entry(int64_t row, int64_t column) const;
};

// The largest order that divides `length` and whose matrix is at hand, with the smallest dense factor; what is left of
// the length is blocks that do not mix. Every multiple of 4 of the form q + 1 (q = 3 mod 4) or 2 (q + 1) (q = 1 mod 4), q
// a prime to the power of 1, 2 or 3, at most 512, is at hand, and their products with powers of two.
Hadamard hadamard_for(int64_t length, int64_t stride = 1);

// A dense matrix of this order by Paley's first or second construction, (order, order) row by row; empty if there is
// none.
std::vector<int8_t> paley(int64_t order);

// row = H row / sqrt(order), block by block, in place. `row` has how.columns values. The dot product of two rows turned
// alike is that of the rows.
void turn(const Hadamard& how, std::span<double> row);

}  // namespace fidelio
