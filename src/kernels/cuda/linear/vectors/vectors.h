// This file has products of vector codes (formats/vector_code.h) on a GPU: y = W x for output rows, and values one by
// one for everything else that reads them.
//
// Codes lie as tensor cores multiply them (m16n8k32). A unit is sixteen rows that share a codebook; a span of it is
// 64 vectors (512 columns), and a chunk is four of those. In a span's record lane 4 g + t has, of each chunk, vector
// t of row g and of row g + 8: 32 codes, with code 2 c + h for chunk c and row g + 8 h.
//
//     index   up to 256 centroids: 8 bits, code i in byte i. If there are more, or one sign, which is then part of the
//             index (centroids, then their negations): 16 bits, eight times a place (below)
//     sign    8 signs: half h of code i (entries 4 h to 4 h + 3) in word i / 4; entry 4 h + b in bit 8 b + 7 - k of it,
//             k = 2 (i % 4) + h
//             4 signs: in word i / 8; pair 2 h + p in bit 8 (p + 2 (i % 8 / 4)) + 7 - k
//
//     unit 0: [span 0: index, 16 bytes a lane at a time; sign, so too] [span 1] ...   unit 1: ...
//
// So an address is one permutation of bytes. Four signs, shifted to the highest bits of four bytes and spread over
// them, negate four entries (v ^ -1 is -v - 1).
//
// Sixteen lanes read shared memory at once. Lanes that meet on one of its 16 pairs of banks are served one after the
// other. Up to 256 centroids have a copy for each pair. More centroids have two places, on pairs that are nearly
// independent, and the packer chooses between them for each vector, so that lanes meet twice where by chance they
// would meet three times.
//
// Activations times the column scales are rounded to whole numbers of 16 bits (24 if FP32 is asked for), with one
// scale for every group of 128 vectors. They are multiplied as two (three) planes of bytes by the centroids' bytes;
// one plane of a row of x is a column of the tensor cores' product. A span's sum is an exact integer. The order of
// the rest depends on the weight alone, so a row of x gets the same bits in any batch. (SCVQ multiplies in FP16, and
// a second kernel adds its sparse matrix. Here the same launch adds the corrections.)
#pragma once
#include <cstdint>
#include <span>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

constexpr int kVectorGroup = 128;  // vectors whose columns of x have one scale
// Rows of a unit, vectors of a span, and codes of a lane.
constexpr int kVectorUnit = 16, kVectorSpan = 64, kVectorCodes = kVectorUnit * kVectorSpan / 32;
constexpr int kVectorPlaces = 4096;

// second_place() returns the other place of the centroid whose first place is below kVectorPlaces. centroid_of()
// returns the centroid at any place.
constexpr int second_place(int centroid) { return kVectorPlaces + (centroid ^ ((centroid >> 4 ^ centroid >> 8) & 15)); }
constexpr int centroid_of(int place) {
  return place < kVectorPlaces ? place : second_place(place - kVectorPlaces) - kVectorPlaces;
}

// A Divisor computes quotients of numbers below 2^31 by a number that is known in advance, which kernels need at
// their beginning.
struct Divisor {
  uint32_t by = 1, inverse = UINT32_MAX;
  constexpr Divisor() = default;
  constexpr explicit Divisor(uint32_t by) : by(by), inverse(UINT32_MAX / by) {}
  // inverse is at most (1 + 1 / by) / 2^32 too small, which makes less than 1 for numbers below 2^31.
#ifdef __CUDACC__
  __device__ uint32_t quotient(uint32_t n) const {
    const uint32_t q = __umulhi(n, inverse);
    return q + (n - q * by >= by ? 1 : 0);
  }
#endif
};

// A VectorSlot says where vector v of a row is in its unit: its span, its lane and which of the lane's codes it is,
// and where the bit of a sign is.
struct VectorSlot {
  int64_t span = 0;
  int lane = 0, code = 0;
  constexpr VectorSlot(int64_t row, int64_t v)
      : span(v / kVectorSpan),
        lane(static_cast<int>(row % 8 * 4 + v % 4)),
        code(static_cast<int>(v % kVectorSpan / 4 * 2 + row % kVectorUnit / 8)) {}
  // Returns the offset of byte `byte` of the lane's data in a section, in which each lane has 16 bytes at a time.
  constexpr int byte_at(int byte) const { return (byte / 16 * 32 + lane) * 16 + byte % 16; }
  // Returns the bit of sign j in the lane's data of signs.
  constexpr int sign_bit(int signs, int j) const {
    const int half = j / (signs / 2), at = j % (signs / 2);
    const int k = 2 * (code % 4) + half, word = code * signs / 32;
    return 32 * word + 8 * (signs == 8 ? at : at + 2 * (code % 8 / 4)) + 7 - k;
  }
};

// A VectorWeight holds the device addresses of a packed weight.
struct VectorWeight {
  int64_t out = 0, in = 0, vectors = 0;  // vectors of a row: ceil(in / 8)
  int64_t groups = 0;                    // groups of 128 vectors
  int entries = 0;                       // entries of a codebook
  int signs = 0;                         // 1, 4 or 8
  bool high = false;
  const uint8_t* codes = nullptr;    // (units, spans, record_bytes()); null if there are no vector codes
  const int8_t* codebook = nullptr;  // (blocks, entries, 8), from -127 to 127
  const float* row = nullptr;        // (out), rounded up to a multiple of sixteen
  const uint16_t* column = nullptr;  // FP16 (8 vectors), zeros behind the last column
  const float* bias = nullptr;       // (out), or null
  // The corrections of row r are those from begin[r] to begin[r + 1].
  int64_t corrections = 0;
  const int32_t* begin = nullptr;  // (out + 1); null if there are none
  const int8_t* value = nullptr;   // (corrections, 8)
  const uint32_t* tag = nullptr;   // the low half is the vector's place, the high half its scale in FP16

  // There are units.by units of sixteen rows and blocks.by codebooks; codebook b has the units from units.by b /
  // blocks.by on. The packer checks that these products, and the number of records, are below 2^31.
  Divisor units, blocks, spans;
  bool fits() const {
    const uint64_t most = uint64_t{1} << 31, rows = (uint64_t{units.by} + 2) * kVectorUnit;
    return rows * spans.by < most && (uint64_t{units.by} + 1) * (uint64_t{blocks.by} + 3) < most;
  }
#ifdef __CUDACC__
  __device__ int first_unit(int block) const { return static_cast<int>(blocks.quotient(units.by * block)); }
  __device__ int block_of(int unit) const {  // the last codebook whose first unit is not behind this one
    return static_cast<int>(units.quotient((unit + 1u) * blocks.by + units.by - 1)) - 1;
  }
#endif
  constexpr int sign_at() const { return 32 * kVectorCodes * (high ? 2 : 1); }  // offset in a record
  constexpr int record_bytes() const { return sign_at() + (signs == 1 ? 0 : 32 * kVectorCodes * signs / 8); }
  constexpr bool has_eights() const { return in % 8 == 0; }
  int form() const { return (has_eights() ? 1 : -1) * (high ? 256 : 1) * signs; }  // a kernel handles one form
  bool goes_with(const VectorWeight& w) const { return in == w.in && form() == w.form(); }
};

// Returns how many columns a thread block's shared memory has room for, with one row of x of 24 bits.
int64_t most_vector_columns();

struct VectorOutput {
  const VectorWeight* weight = nullptr;
  float* y = nullptr;  // (rows, out)
};
struct VectorInput {  // rows of values, or one row that the product makes itself, with the bits that it has in memory
  enum class Kind : uint8_t { values, norm, gate };
  const float* x = nullptr;  // (rows, in): the values, what is normalised, or the outputs of gate
  int64_t rows = 0;
  Kind kind = Kind::values;
  const float* with = nullptr;  // the norm's weight, or the outputs of up
  float eps = 0;
};
struct VectorProduct {  // y = or += W x + bias, for weights that go with one another
  VectorOutput outputs[kMaxTogether];
  int count = 0;
  VectorInput input;
  bool add = false;
};
// Returns true if the product can make its row itself. If there are corrections, shared memory must have room for the
// row.
bool makes_vector_input(const VectorProduct& product);
// Multiplies. With `exact`, activations have 24 bits.
void vector_linear(Stream stream, const VectorProduct& product, bool exact);

// Computes products of one row in one launch. Their codes must have one form(). Each may read what those before it
// made, if it makes its row itself. Thread blocks, one on each multiprocessor, wait for each other, so no other
// stream may have such a launch at the same time. (A cooperative launch would ensure that, but costs 2.2 us.)
// `arrived` is the count of a GridBarrier, 0 at first.
constexpr size_t kMostChained = 4;
void vector_chain(Stream stream, std::span<const VectorProduct> products, uint32_t* arrived);
bool may_chain_vectors();  // false if other processes may have such launches at the same time (MPS)
// Computes halves (out, in) = values / factor.
void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
