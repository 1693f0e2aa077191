// Products of vector codes (formats/vector_code.h) on a GPU: y = W x for rows of output, and values one by one for what
// else reads them.
//
// Codes lie in groups of 128 vectors of a row. Lane l of a warp has vectors l, l + 32, l + 64 and l + 96 of a group
// ("which" = 0 to 3), and a group is a record of lines, a word for each lane:
//
//     index   32 bits: up to 256 centroids, vector `which` in bits 8 which ..; if there are more or one sign, which is
//             part of the index (centroids, then the same negated), 64 bits: a place (below) in bits 13 which ..
//     sign    8 signs, 32 bits: entry 4 h + j of a vector in bit 8 j + 2 which + h
//             4 signs, 16 bits: pair 2 h + p in bit 8 p + 2 which + h
//
//     row 0: [index 32 x 4 or 8][sign 32 x 4 or 2] [next group] ...   row 1: ...   whole sixteens of rows
//
// so that an address is a shift and a mask, and four signs, shifted and masked, are the lowest bits of four bytes.
//
// Sixteen lanes read shared memory at once, and where they meet on a pair of its 16 pairs of banks, one after the other.
// Up to 256 centroids have a copy for each pair. More have two places, on pairs that have little to do with each other,
// and the packer chooses between them for each vector, so that lanes meet twice where chance would have them meet three
// times.
//
// Activations times the column scales are rounded to whole numbers of 16 bits (24 where FP32 is asked for) under one
// scale for every group of 128 vectors, and are multiplied as two (three) planes of bytes by the centroids' bytes
// (dp4a); what a lane adds up of a group is an exact integer. The order of the rest is the weight's alone, so a row of
// x gets the same bits in any batch.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

constexpr int kVectorLanes = 32, kVectorGroup = 4 * kVectorLanes;
constexpr int kVectorUnit = 16;  // rows that have one codebook
constexpr int kVectorPlaces = 4096, kVectorPlaceBits = 13;

// The other place of the centroid at one below kVectorPlaces, and the centroid at any.
constexpr int second_place(int centroid) { return kVectorPlaces + (centroid ^ ((centroid >> 4 ^ centroid >> 8) & 15)); }
constexpr int centroid_of(int place) {
  return place < kVectorPlaces ? place : second_place(place - kVectorPlaces) - kVectorPlaces;
}

// Device addresses of a packed weight.
struct VectorWeight {
  int64_t out = 0, in = 0, vectors = 0;  // ceil(in / 8) of a row
  int64_t groups = 0;                    // ceil(vectors / 128)
  int blocks = 0, entries = 0;           // codebooks, and what one has
  int signs = 0;                         // 1, 4 or 8
  bool high = false;
  const uint8_t* codes = nullptr;    // (out, groups, record_bytes()); null: no vector codes
  const int8_t* codebook = nullptr;  // (blocks, entries, 8), from -127 to 127
  const float* row = nullptr;        // (out), whole sixteens
  const uint16_t* column = nullptr;  // FP16 (8 vectors), zeros behind the last
  const float* bias = nullptr;       // (out), or null
  // Corrections: of row r those from begin[r] to begin[r + 1].
  const int32_t* begin = nullptr;  // (out + 1); null: none
  const uint16_t* place = nullptr;
  const int8_t* value = nullptr;    // (., 8)
  const uint16_t* scale = nullptr;  // FP16

  // Of `units()` sixteens of rows, codebook b has those from units() b / blocks on.
  constexpr int units() const { return static_cast<int>((out + kVectorUnit - 1) / kVectorUnit); }
  constexpr int first_unit(int block) const { return static_cast<int>(int64_t{units()} * block / blocks); }
  constexpr int block_of(int unit) const {  // the last one whose first unit is not behind it
    return static_cast<int>(((unit + int64_t{1}) * blocks + units() - 1) / units()) - 1;
  }
  constexpr int sign_at() const { return kVectorLanes * (high ? 8 : 4); }  // in a record
  constexpr int record_bytes() const { return sign_at() + kVectorLanes * (signs == 8 ? 4 : signs == 4 ? 2 : 0); }
  bool goes_with(const VectorWeight& w) const {  // in one launch
    return in == w.in && signs == w.signs && high == w.high;
  }
};

// Columns that a thread block's shared memory has room for, with one row of x of 24 bits.
int64_t most_vector_columns();

struct VectorOutput {
  const VectorWeight* weight = nullptr;
  float* y = nullptr;  // (rows, out)
};
// y = or += W x + bias for each of the outputs, which go with one another; x (rows, in).
void vector_linear(Stream stream, std::span<const VectorOutput> outputs, const float* x, int64_t rows, bool exact,
                   bool add);
// halves (out, in) = values / factor.
void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
