// This file defines what the kernels of gated delta nets are given (op::Convolve and op::DeltaRule in step/program.h).
// It is plain data, as kernel_set.h demands.
#pragma once
#include <cstdint>

namespace fidelio::cpu {

// A convolution takes consecutive rows of one sequence through channels [first, last).
struct ConvolveArgs {
  const float* x;       // (rows, channels)
  const float* before;  // (kernel - 1, channels): the inputs before the first row, the oldest first; null means zeros
  const float* weight;  // (kernel, channels): the newest input's row is the last
  float* y;             // (rows, channels)
  int64_t rows, channels, kernel;
  int64_t first, last;
};

// The rows of a chunk (kStateChunk), and those of a part of it, which the chunked form takes at once.
constexpr int kDeltaRows = 64, kDeltaPart = 16;

// A DeltaArgs is up to kDeltaRows consecutive rows of one sequence, for one value head.
struct DeltaArgs {
  int64_t rows, key_dim, value_dim;
  const float *q, *k, *v;  // the head's columns of the first row
  int64_t stride;          // from a row of q, k and v to the next
  const float *b, *a;      // the head's gates in the first row
  int64_t gate_stride;
  float rate, bias;  // the decay is rate log(1 + e^(a + bias)), so rate is negative
  float* out;        // (rows, value_dim)
  int64_t out_stride;
  const float* from;  // (key_dim, value_dim): the state before the first row; null means zeros
  float* to;          // the state after the last row; it may be `from`
  const float* next;  // the state that the caller will come with next, which is fetched; null if there is none
  float* scratch;     // of delta_scratch_floats(key_dim, value_dim)
};

constexpr int64_t in_vectors(int64_t floats) { return (floats + 15) / 16 * 16; }
constexpr int kDeltaColumns = 64;  // the most columns of a state that are worked on at once
// Returns the floats of scratch for keys of so many columns: q and k of all rows, a part's k transposed, some columns
// of the state, two triangles for each part, and six values for each row.
constexpr int64_t delta_scratch_floats(int64_t key_dim) {
  return in_vectors(2 * kDeltaRows * key_dim) + key_dim * (kDeltaPart + kDeltaColumns) + 2 * kDeltaRows * kDeltaPart +
         6 * kDeltaRows;
}

}  // namespace fidelio::cpu
