// This file makes Hadamard matrices, which have entries +1 and -1 and orthogonal rows, and multiplies by them. Divided
// by the root of their order they are rotations that spread any single column over all of them. QuaRot (Ashkboos et al.
// 2024) applies them to activations before these are rounded.
//
// A matrix of order K 2^m is a Kronecker product of a dense K x K matrix, which Paley's constructions give from the
// squares of a finite field, and m doublings [1 1; 1 -1] (Sylvester), which are m passes of sums and differences.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// This describes the Hadamard transform of a row of columns. The row is cut into blocks of order * stride columns, and
// each block is multiplied by H (x) I_stride / sqrt(order), with H = H_K (x) [1 1; 1 -1]^(x m) and order = K 2^m.
struct Hadamard {
  int64_t columns = 0;
  int64_t stride = 1;         // Column i stride + p of a block is element i, for every p < stride.
  int64_t order = 1;          // An order of 1 transforms nothing.
  int64_t doubled = 1;        // This is 2^m.
  int64_t core = 1;           // This is K.
  std::vector<int8_t> signs;  // This is H_K (K, K) row by row; it is empty where K is 1.

  int64_t block() const { return order * stride; }
  double scale() const;  // This is 1 / sqrt(order).
  // Returns the entry of H, +1 or -1. It defines what the members above mean.
  int entry(int64_t row, int64_t column) const;
};

// Returns the transform of the largest order that divides `length` and whose matrix is available, with the smallest
// dense factor. If the order is below the length, the blocks do not mix. The available dense factors are the multiples
// of 4, at most 512, of the form q + 1 (q = 3 mod 4) or 2 (q + 1) (q = 1 mod 4), where q is a prime to the power of 1,
// 2 or 3. Their products with powers of two are available too.
Hadamard hadamard_for(int64_t length, int64_t stride = 1);

// Returns a dense matrix (order, order) row by row, made by Paley's first or second construction. It is empty if
// neither gives this order.
std::vector<int8_t> paley(int64_t order);

// Replaces row by H row / sqrt(order), block by block. `row` has how.columns values. The transform keeps dot products:
// that of two transformed rows equals that of the rows.
void turn(const Hadamard& how, std::span<double> row);

}  // namespace fidelio
