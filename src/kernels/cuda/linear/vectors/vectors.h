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

// Quotients of numbers below 2^31 by one that is known ahead: a kernel begins with some of them.
struct Divisor {
  uint32_t by = 1, inverse = UINT32_MAX;
  constexpr Divisor() = default;
  constexpr explicit Divisor(uint32_t by) : by(by), inverse(UINT32_MAX / by) {}
  // inverse is at most (1 + 1 / by) / 2^32 too small, which of less than 2^31 makes less than 1.
#ifdef __CUDACC__
  __device__ uint32_t quotient(uint32_t n) const {
    const uint32_t q = __umulhi(n, inverse);
    return q + (n - q * by >= by ? 1 : 0);
  }
#endif
};

// Device addresses of a packed weight.
struct VectorWeight {
  int64_t out = 0, in = 0, vectors = 0;  // ceil(in / 8) of a row
  int64_t groups = 0;                    // ceil(vectors / 128)
  int entries = 0;                       // of a codebook
  int signs = 0;                         // 1, 4 or 8
  int log_warps = 0;                     // vector_log_warps()
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

  // Of sixteens of rows, of which there are units.by, codebook b of blocks.by has those from units.by b / blocks.by on.
  // The packer checks that these products, and the number of records, are below 2^31.
  Divisor units, blocks;
  bool fits() const {
    const uint64_t most = uint64_t{1} << 31, rows = static_cast<uint64_t>(out) + kVectorUnit;
    return rows * static_cast<uint64_t>(groups) < most && (uint64_t{units.by} + 1) * (uint64_t{blocks.by} + 3) < most;
  }
#ifdef __CUDACC__
  __device__ int first_unit(int block) const { return static_cast<int>(blocks.quotient(units.by * block)); }
  __device__ int block_of(int unit) const {  // the last one whose first unit is not behind it
    return static_cast<int>(units.quotient((unit + 1u) * blocks.by + units.by - 1)) - 1;
  }
#endif
  constexpr int sign_at() const { return kVectorLanes * (high ? 8 : 4); }  // in a record
  constexpr int record_bytes() const { return sign_at() + kVectorLanes * (signs == 8 ? 4 : signs == 4 ? 2 : 0); }
  bool goes_with(const VectorWeight& w) const {  // in one launch
    return in == w.in && signs == w.signs && high == w.high && log_warps == w.log_warps;
  }
};

// Columns that a thread block's shared memory has room for, with one row of x of 24 bits.
int64_t most_vector_columns();

// How many warps take four rows together, as a power of two. A round of four rows costs its groups and about as much as
// one more of them: where a thread block has many rows of a weight, single warps have fewer rounds; where it has few,
// pairs have all warps at work. By the weight alone, as its sums shall not depend on what else is in a launch.
int vector_log_warps(const VectorWeight& w);

struct VectorOutput {
  const VectorWeight* weight = nullptr;
  float* y = nullptr;  // (rows, out)
};
// What is multiplied: rows of values, or one row that the product makes itself, with the bits that it has in memory.
struct VectorInput {
  enum class Kind : uint8_t { values, norm, gate };
  const float* x = nullptr;  // (rows, in); what is normalised; gate's outputs
  int64_t rows = 0;
  Kind kind = Kind::values;
  const float* with = nullptr;  // the norm's weight; up's outputs
  float eps = 0;
};
// Whether a product of these makes its row: where there are corrections, shared memory has to have room for it.
bool makes_vector_input(std::span<const VectorOutput> outputs, const VectorInput& input);
// y = or += W x + bias for each of the outputs, which go with one another.
void vector_linear(Stream stream, std::span<const VectorOutput> outputs, const VectorInput& input, bool exact,
                   bool add);
// halves (out, in) = values / factor.
void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
