// The launchers behind vectors.h: pointers into device memory, matrices row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

constexpr int kVectorTile = 32;      // rows or samples whose nearest centroids a thread block looks for at a time
constexpr int kVectorsBetween = 16;  // vectors of a row between two products
constexpr int kVectorBlock = 8 * kVectorsBetween;
constexpr int kSeedChunk = 2048;  // samples of a thread block that seeds

// Up to kVectorTile rows of one codebook, or samples of one codebook and one place.
struct VectorTile {
  int32_t block, first, count, place;
};

// A matrix in working order (vectors by descending price, padded to whole ones) and what it has become so far. A code
// is an index, and signs from bit 16 on.
struct VectorState {
  int64_t out = 0, padded = 0, vectors = 0;
  int blocks = 0, entries = 0, signs = 0;
  const int32_t* block = nullptr;     // (out): the codebook of a row
  const VectorTile* tiles = nullptr;  // of rows
  int64_t tile_count = 0;
  float* w = nullptr;                                           // (out, padded)
  float *row = nullptr, *column = nullptr, *metrics = nullptr;  // (out), (padded), (padded)
  float* book = nullptr;                                        // (blocks, entries, 8)
  uint32_t* code = nullptr;                                     // (out, vectors)
  uint8_t* corrected = nullptr;                                 // (out, vectors)
  int8_t* correction = nullptr;                                 // (out, padded), times
  uint16_t* correction_scale = nullptr;                         // (out, vectors), FP16
  float *done = nullptr, *error = nullptr;                      // (out, padded): what was chosen, and what is left of w
  int8_t* level = nullptr;                                      // (out, padded): the codes' entries with their signs
};

// Vectors to be clustered, those of one codebook and of one place side by side.
struct VectorSampleSet {
  int64_t n = 0;
  int blocks = 0, entries = 0, signs = 0;
  const int32_t* begin = nullptr;         // (blocks + 1)
  const int32_t* id = nullptr;            // (n): row times vectors plus place; -1: zeros
  float *x = nullptr, *weight = nullptr;  // (n, 8), (n)
  int32_t* place = nullptr;               // (n)
  const float* metrics = nullptr;         // (places, 8)
  const VectorTile* tiles = nullptr;
  int64_t tile_count = 0;
  float* book = nullptr;                     // (blocks, entries, 8)
  double* distance = nullptr;                // (n): to the nearest centroid
  uint32_t *code = nullptr, *key = nullptr;  // (n): the choice; codebook times entries plus index
  const uint8_t* active = nullptr;           // (blocks): codebooks that are still moving
};

// k-means++: what a step needs beside the samples.
struct VectorSeeding {
  const double* uniform = nullptr;  // (entries): where in the sum of distances the next centroid lies
  int32_t* chosen = nullptr;        // (blocks): a sample, from the block's first on
  double* partial = nullptr;        // (blocks, chunks)
  uint32_t* arrived = nullptr;      // (blocks), zeros
  int chunks = 0;                   // of kSeedChunk samples, of the largest block
};

// Members of a list sorted by key: of codebook b and entry e those with the key b entries + e.
struct VectorMembers {
  int64_t n = 0;
  const uint32_t* key = nullptr;
  const int32_t* member = nullptr;
};

// vector_scales.cu: working order, scales, decoding, conjugate gradients.
// w (out, padded) = columns order[i] of values (out, in), zeros where that is -1 or the diagonal (padded) of H is zero.
void gather_vectors(Stream stream, const float* values, const float* diagonal, const int32_t* order, int64_t in,
                    const VectorState& s);
// price (padded): what an error in a column costs while only later vectors make up for it.
void vector_prices(Stream stream, const float* upper, const float* diagonal, int64_t padded, float* price);
void normalise_vectors(Stream stream, const float* price, int64_t in, const VectorState& s);
void scale_rows(Stream stream, const float* book_scale,
                const VectorState& s);  // row *= its codebook's scale, as stored
void descent_metrics(Stream stream, const float* diagonal, const VectorState& s);
void invert_squares(Stream stream, const float* h, int64_t padded, double* inverse);  // (vectors, 8, 8)
void decode_vectors(Stream stream, const VectorState& s);                             // level, done, error
void decoded_levels(Stream stream, const VectorState& s, float* main);                // row column level
void refit_rows(Stream stream, const VectorState& s, const float* main, const float* bent, const float* gradient);
void vector_dots(Stream stream, const VectorState& s, const float* a, const float* b, double* sums);  // (out)

// Conjugate gradients over values of which every row's decoded weight is linear, `sets` of `values` each. sum = over
// elements of factor b, or of factor^2 H_ii where b is null; a = factor p.
void sum_by_column(Stream stream, const VectorState& s, const float* b, const float* diagonal, double* sum);
void spread_columns(Stream stream, const VectorState& s, const double* p, float* a);
void sum_by_entry(Stream stream, const VectorState& s, const VectorMembers& members, const float* b,
                  const float* diagonal, double* sum);
void spread_entries(Stream stream, const VectorState& s, const double* p, float* a);
struct Conjugate {
  int sets = 0;
  int64_t values = 0;
  double *curvature = nullptr, *left = nullptr, *p = nullptr, *bent = nullptr, *change = nullptr;  // (sets, values)
  double* now = nullptr;                                                                           // (sets)
  uint8_t* active = nullptr;                                                                       // (sets)
};
void conjugate_direction(Stream stream, const Conjugate& c, bool first);
void conjugate_step(Stream stream, const Conjugate& c);
void change_columns(Stream stream, const VectorState& s, const double* change);
void change_books(Stream stream, const VectorState& s, const double* change);
// Codebooks and rows of the blocks that are flagged become what they were.
void restore_books(Stream stream, const VectorState& s, const uint8_t* flagged, const float* book, const float* row);

// vector_books.cu: k-means.
void gather_samples(Stream stream, const VectorState& s, const float* book_scale, const VectorSampleSet& samples);
void seed_centroid(Stream stream, const VectorSampleSet& samples, const VectorSeeding& seeding, int entry);
void sum_distances(Stream stream, const VectorSampleSet& samples, double* sum);  // (blocks)
void move_centroids(Stream stream, const VectorSampleSet& samples, const VectorMembers& members);
void round_books(Stream stream, const VectorSampleSet& samples, float* scale);  // (blocks)
void scatter_costs(Stream stream, const VectorSampleSet& samples, float* cost);
void code_keys(Stream stream, const VectorState& s, uint32_t* key);
// Sorts n keys below `bound`, and the members 0 .. n - 1 with them. Without `room` sets its size alone.
void sort_members(Stream stream, int64_t n, uint32_t bound, const uint32_t* key, const int32_t* member,
                  uint32_t* sorted_key, int32_t* sorted_member, void* room, size_t& room_bytes);
void count_up(Stream stream, int64_t n, int32_t* member);

// vectors.cu: nearest centroids.
bool vector_search_fits(int entries);  // in the shared memory of the current device
void assign_samples(Stream stream, const VectorSampleSet& samples);
// Vectors [begin, begin + kVectorsBetween) of every row: their codes, each one's error out of the later ones of `target`
// in the block, and `error` (out, kVectorBlock) for those behind it.
void feed_back_vectors(Stream stream, const VectorState& s, int64_t begin, const float* upper, const float* target,
                       float* error);
// Likewise against what all others leave; `change` of their values.
void descend_vectors(Stream stream, const VectorState& s, int64_t begin, const float* h, const double* inverse,
                     const float* gradient, float* change);

}  // namespace fidelio::cuda
