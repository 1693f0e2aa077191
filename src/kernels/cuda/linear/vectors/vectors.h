// Products of vector codes (formats/vector_code.h) on a GPU: y = W x for rows of output, and values one by one for what
// else reads them.
//
// Codes lie as tensor cores multiply them (m16n8k32): a unit is sixteen rows that have one codebook, a span of it 64
// vectors (512 columns), a chunk four of those. In a span's record lane 4 g + t has of each chunk the vector t of row g
// and of row g + 8: 32 codes, code 2 c + h of chunk c and row g + 8 h.
//
//     index   up to 256 centroids: 8 bits, code i in byte i; if there are more or one sign, which is part of the index
//             (centroids, then the same negated): 16 bits, eight times a place (below)
//     sign    8 signs: half h of code i (entries 4 h to 4 h + 3) in word i / 4; entry 4 h + b in bit 8 b + 7 - k of it,
//             k = 2 (i % 4) + h
//             4 signs: in word i / 8; pair 2 h + p in bit 8 (p + 2 (i % 8 / 4)) + 7 - k
//
//     unit 0: [span 0: index, 16 bytes a lane at a time; sign, so too] [span 1] ...   unit 1: ...
//
// so that an address is one permutation of bytes, and four signs, shifted to the highest bits of four bytes and spread
// over them, are what turns four entries (v ^ -1 is -v - 1).
//
// Sixteen lanes read shared memory at once, and where they meet on a pair of its 16 pairs of banks, one after the other.
// Up to 256 centroids have a copy for each pair. More have two places, on pairs that have little to do with each other,
// and the packer chooses between them for each vector, so that lanes meet twice where chance would have them meet three
// times.
//
// Activations times the column scales are rounded to whole numbers of 16 bits (24 where FP32 is asked for) under one
// scale for every group of 128 vectors, and are multiplied as two (three) planes of bytes by the centroids' bytes: a
// plane of a row of x is a column of the tensor cores' product. A span's sum is an exact integer. The order of the rest
// is the weight's alone, so a row of x gets the same bits in any batch.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

constexpr int kVectorGroup = 128;  // vectors whose columns of x have one scale
constexpr int kVectorUnit = 16, kVectorSpan = 64, kVectorCodes = kVectorUnit * kVectorSpan / 32;  // of a lane
constexpr int kVectorPlaces = 4096;

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

// Where vector v of a row is in its unit: the span, the lane and which of its codes; and where a sign's bit is.
struct VectorSlot {
  int64_t span = 0;
  int lane = 0, code = 0;
  constexpr VectorSlot(int64_t row, int64_t v)
      : span(v / kVectorSpan),
        lane(static_cast<int>(row % 8 * 4 + v % 4)),
        code(static_cast<int>(v % kVectorSpan / 4 * 2 + row % kVectorUnit / 8)) {}
  // Where byte `byte` of what the lane has in a section is, 16 bytes of each lane at a time.
  constexpr int byte_at(int byte) const { return (byte / 16 * 32 + lane) * 16 + byte % 16; }
  // The bit of sign j in what the lane has of signs.
  constexpr int sign_bit(int signs, int j) const {
    const int half = j / (signs / 2), at = j % (signs / 2);
    const int k = 2 * (code % 4) + half, word = code * signs / 32;
    return 32 * word + 8 * (signs == 8 ? at : at + 2 * (code % 8 / 4)) + 7 - k;
  }
};

// Device addresses of a packed weight.
struct VectorWeight {
  int64_t out = 0, in = 0, vectors = 0;  // ceil(in / 8) of a row
  int64_t groups = 0;                    // of 128 vectors
  int entries = 0;                       // of a codebook
  int signs = 0;                         // 1, 4 or 8
  bool high = false;
  const uint8_t* codes = nullptr;    // (units, spans, record_bytes()); null: no vector codes
  const int8_t* codebook = nullptr;  // (blocks, entries, 8), from -127 to 127
  const float* row = nullptr;        // (out), whole sixteens
  const uint16_t* column = nullptr;  // FP16 (8 vectors), zeros behind the last
  const float* bias = nullptr;       // (out), or null
  // Corrections: of row r those from begin[r] to begin[r + 1].
  int64_t corrections = 0;
  const int32_t* begin = nullptr;  // (out + 1); null: none
  const int8_t* value = nullptr;   // (., 8)
  const uint32_t* tag = nullptr;   // the vector's place in the low half, its scale in FP16 in the high one

  // Of sixteens of rows, of which there are units.by, codebook b of blocks.by has those from units.by b / blocks.by on.
  // The packer checks that these products, and the number of records, are below 2^31.
  Divisor units, blocks, spans;
  bool fits() const {
    const uint64_t most = uint64_t{1} << 31, rows = (uint64_t{units.by} + 2) * kVectorUnit;
    return rows * spans.by < most && (uint64_t{units.by} + 1) * (uint64_t{blocks.by} + 3) < most;
  }
#ifdef __CUDACC__
  __device__ int first_unit(int block) const { return static_cast<int>(blocks.quotient(units.by * block)); }
  __device__ int block_of(int unit) const {  // the last one whose first unit is not behind it
    return static_cast<int>(units.quotient((unit + 1u) * blocks.by + units.by - 1)) - 1;
  }
#endif
  constexpr int sign_at() const { return 32 * kVectorCodes * (high ? 2 : 1); }  // in a record
  constexpr int record_bytes() const { return sign_at() + (signs == 1 ? 0 : 32 * kVectorCodes * signs / 8); }
  constexpr bool has_eights() const { return in % 8 == 0; }
  int form() const { return (has_eights() ? 1 : -1) * (high ? 256 : 1) * signs; }  // a kernel has one
  bool goes_with(const VectorWeight& w) const { return in == w.in && form() == w.form(); }
};

// Columns that a thread block's shared memory has room for, with one row of x of 24 bits.
int64_t most_vector_columns();

struct VectorOutput {
  const VectorWeight* weight = nullptr;
  float* y = nullptr;  // (rows, out)
};
struct VectorInput {  // rows of values, or one row that the product makes itself, with the bits that it has in memory
  enum class Kind : uint8_t { values, norm, gate };
  const float* x = nullptr;  // (rows, in); what is normalised; gate's outputs
  int64_t rows = 0;
  Kind kind = Kind::values;
  const float* with = nullptr;  // the norm's weight; up's outputs
  float eps = 0;
};
struct VectorProduct {  // y = or += W x + bias of weights that go with one another
  VectorOutput outputs[kMaxTogether];
  int count = 0;
  VectorInput input;
  bool add = false;
};
// Whether it makes its row: where there are corrections, shared memory has to have room for it.
bool makes_vector_input(const VectorProduct& product);
void vector_linear(Stream stream, const VectorProduct& product, bool exact);

// Products of one row in one launch, whose codes have one form(): each may read what those before it made,
// if it makes its row. Thread blocks, one a multiprocessor, wait for each other: no other stream may have such a launch
// (a cooperative one would see to that, and costs 2.2 us). `arrived`: a GridBarrier's count, 0 at first.
constexpr size_t kMostChained = 4;
void vector_chain(Stream stream, std::span<const VectorProduct> products, uint32_t* arrived);
bool may_chain_vectors();  // not where other processes may have such launches at the same time (MPS)
// halves (out, in) = values / factor.
void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
