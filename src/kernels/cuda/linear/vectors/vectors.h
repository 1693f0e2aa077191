// Products of vector codes (formats/vector_code.h) on a GPU: y = W x for rows of output, and values one by one for what
// else reads them.
//
// Codes lie in groups of 128 vectors of a row: word l of a group holds vectors l, l + 32, l + 64 and l + 96 of it, a
// byte each (low bytes of indices, eight signs) or a nibble each in a half word (high bits of indices, four signs). So a
// lane's word is four of its vectors, and a warp's words are one line:
//
//     row:    [group 0: 32 words of low bytes][group 1] ...     signs likewise; nibbles [32 half words] ...
//
// A thread block keeps the codebook of its rows in shared memory. A warp has a row of W: lane l adds up vectors l, l +
// 32, ... in order, entries 0 to 7 of each, FP32, then the lanes are added as a tree, then the corrections, lane by lane
// and as a tree: an order that the weight alone gives, so a row of x gets the same bits in any batch.
#pragma once
#include <cstdint>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

constexpr int kVectorLanes = 32, kVectorGroup = 4 * kVectorLanes;

// Device addresses of a packed weight.
struct VectorWeight {
  int64_t out = 0, in = 0, vectors = 0;  // ceil(in / 8) of a row
  int64_t groups = 0;                    // ceil(vectors / 128)
  int64_t blocks = 0, entries = 0;       // codebooks of the matrix, entries of one
  int signs = 0;                         // 1, 4 or 8
  const uint32_t* index = nullptr;       // (out, groups, 32); null: no vector codes
  const uint16_t* high = nullptr;        // (out, groups, 32), or null: with one sign, that is a nibble's top bit
  const uint32_t* sign8 = nullptr;       // (out, groups, 32) with eight signs
  const uint16_t* sign4 = nullptr;       // (out, groups, 32) with four
  const int8_t* codebook = nullptr;      // (blocks, entries, 8)
  const int32_t* first_row = nullptr;    // (blocks + 1)
  const float* row = nullptr;            // (out)
  const float* column = nullptr;         // (8 vectors), zeros behind the last
  const float* bias = nullptr;           // (out), or null
  // Corrections: of row r those from begin[r] to begin[r + 1].
  const int32_t* begin = nullptr;  // (out + 1); null: none
  const uint16_t* place = nullptr;
  const int8_t* value = nullptr;  // (., 8)
  const float* scale = nullptr;
};

// scaled (rows, 8 vectors) = x (rows, in) times the column scales, padded by zeros.
void scale_inputs(Stream stream, const VectorWeight& w, const float* x, int64_t rows, float* scaled);
// y (rows, out) = or += W x + bias; `scaled` as above.
void vector_linear(Stream stream, const VectorWeight& w, const float* x, const float* scaled, int64_t rows, float* y,
                   bool add);
// halves (out, in) = values / factor.
void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
