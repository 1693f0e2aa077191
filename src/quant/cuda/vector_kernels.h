// This file declares the functions that launch the kernels behind vectors.h. Pointers are into device memory, and
// matrices are row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

constexpr int kVectorTile = 32;      // rows or samples for which a thread block searches nearest centroids at a time
constexpr int kVectorsBetween = 16;  // vectors of a row between two products
constexpr int kVectorBlock = 8 * kVectorsBetween;
constexpr int kSeedChunk = 2048;  // samples of one thread block during seeding

// A tile is up to kVectorTile rows with one codebook, or samples with one codebook and one place. A place is the
// position of a vector within its row in working order.
struct VectorTile {
  int32_t block, first, count, place;
};

// A VectorState is a matrix in working order (vectors by descending price, padded to whole vectors) and the codes
// chosen so far. A code is an index with the signs from bit 16 on.
struct VectorState {
  int64_t out = 0, padded = 0, vectors = 0;
  int blocks = 0, entries = 0, signs = 0;
  const int32_t* block = nullptr;     // (out): the index of each row's codebook
  const VectorTile* tiles = nullptr;  // the tiles of rows
  int64_t tile_count = 0;
  float* w = nullptr;                                           // (out, padded)
  float *row = nullptr, *column = nullptr, *metrics = nullptr;  // (out), (padded), (padded)
  float* book = nullptr;                                        // (blocks, entries, 8)
  uint32_t* code = nullptr;                                     // (out, vectors)
  uint8_t* corrected = nullptr;                                 // (out, vectors)
  int8_t* correction = nullptr;                                 // (out, padded), in multiples of the scale
  uint16_t* correction_scale = nullptr;                         // (out, vectors), FP16
  float *done = nullptr, *error = nullptr;  // (out, padded): the values chosen, and what is left of w.
  int8_t* level = nullptr;                  // (out, padded): the entries of the codes, with their signs
};

// A VectorSampleSet holds the vectors to be clustered. Vectors of one codebook and of one place lie side by side.
struct VectorSampleSet {
  int64_t n = 0;
  int blocks = 0, entries = 0, signs = 0;
  const int32_t* begin = nullptr;         // (blocks + 1)
  const int32_t* id = nullptr;            // (n): row times vectors plus place; -1 stands for a vector of zeros
  float *x = nullptr, *weight = nullptr;  // (n, 8), (n)
  int32_t* place = nullptr;               // (n)
  const float* metrics = nullptr;         // (places, 8)
  const VectorTile* tiles = nullptr;
  int64_t tile_count = 0;
  float* book = nullptr;       // (blocks, entries, 8)
  double* distance = nullptr;  // (n): distance to the nearest centroid
  // (n): the chosen code, and a key that is codebook times entries plus index.
  uint32_t *code = nullptr, *key = nullptr;
  const uint8_t* active = nullptr;  // (blocks): which codebooks still move
};

// VectorSeeding holds what a step of k-means++ needs in addition to the samples.
struct VectorSeeding {
  const double* uniform = nullptr;  // (entries): where in the sum of distances the next centroid lies
  int32_t* chosen = nullptr;        // (blocks): a sample, counted from the codebook's first one
  double* partial = nullptr;        // (blocks, chunks)
  uint32_t* arrived = nullptr;      // (blocks), zeros at the beginning
  int chunks = 0;                   // chunks of kSeedChunk samples in the largest codebook's samples
};

// VectorMembers is a list sorted by key. Entry e of codebook b has the members with the key b entries + e.
struct VectorMembers {
  int64_t n = 0;
  const uint32_t* key = nullptr;
  const int32_t* member = nullptr;
};

// The next functions are in vector_scales.cu: working order, scales, decoding and conjugate gradients. The first sets
// column i of w (out, padded) to column order[i] of values (out, in), or to zeros if that is -1 or the diagonal
// (padded) of H is zero there.
void gather_vectors(Stream stream, const float* values, const float* diagonal, const int32_t* order, int64_t in,
                    const VectorState& s);
// Computes price (padded): the cost of an error in a column if only later vectors make up for it.
void vector_prices(Stream stream, const float* upper, const float* diagonal, int64_t padded, float* price);
void normalise_vectors(Stream stream, const float* price, int64_t in, const VectorState& s);
// Multiplies each row's scale by its codebook's scale and rounds it as stored.
void scale_rows(Stream stream, const float* book_scale, const VectorState& s);
void descent_metrics(Stream stream, const float* diagonal, const VectorState& s);
void invert_squares(Stream stream, const float* h, int64_t padded, double* inverse);  // inverse is (vectors, 8, 8)
void decode_vectors(Stream stream, const VectorState& s);                             // sets level, done and error
// main = row scale times column scale times level.
void decoded_levels(Stream stream, const VectorState& s, float* main);
void refit_rows(Stream stream, const VectorState& s, const float* main, const float* bent, const float* gradient);
void vector_dots(Stream stream, const VectorState& s, const float* a, const float* b, double* sums);  // sums is (out)

// The next functions run conjugate gradients over values in which every row's decoded weight is linear. There are
// `sets` sets of `values` values each. A sum over elements is of factor times b, or of factor^2 H_ii if b is null.
// Spreading computes a = factor times p.
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
// Restores the codebooks and rows of the flagged blocks to their earlier values.
void restore_books(Stream stream, const VectorState& s, const uint8_t* flagged, const float* book, const float* row);

// The next functions are in vector_books.cu: k-means.
void gather_samples(Stream stream, const VectorState& s, const float* book_scale, const VectorSampleSet& samples);
void seed_centroid(Stream stream, const VectorSampleSet& samples, const VectorSeeding& seeding, int entry);
void sum_distances(Stream stream, const VectorSampleSet& samples, double* sum);  // sum is (blocks)
void move_centroids(Stream stream, const VectorSampleSet& samples, const VectorMembers& members);
void round_books(Stream stream, const VectorSampleSet& samples, float* scale);  // scale is (blocks)
void scatter_costs(Stream stream, const VectorSampleSet& samples, float* cost);
void code_keys(Stream stream, const VectorState& s, uint32_t* key);
// Sorts n keys below `bound`, and the members 0 .. n - 1 with them. If `room` is null it only sets the size of the
// room that is needed.
void sort_members(Stream stream, int64_t n, uint32_t bound, const uint32_t* key, const int32_t* member,
                  uint32_t* sorted_key, int32_t* sorted_member, void* room, size_t& room_bytes);
void count_up(Stream stream, int64_t n, int32_t* member);

// The next functions are in vectors.cu: nearest centroids.
bool vector_search_fits(int entries);  // whether a codebook fits the shared memory of the current device
void assign_samples(Stream stream, const VectorSampleSet& samples);
// Chooses the codes of vectors [begin, begin + kVectorsBetween) of every row. Each one's error is taken out of the
// later vectors of `target` in the block. `error` (out, kVectorBlock) keeps the errors for the columns behind the
// block.
void feed_back_vectors(Stream stream, const VectorState& s, int64_t begin, const float* upper, const float* target,
                       float* error);
// Chooses the same vectors again, each against the error that all others leave. `change` receives the changes of
// their values.
void descend_vectors(Stream stream, const VectorState& s, int64_t begin, const float* h, const double* inverse,
                     const float* gradient, float* change);

}  // namespace fidelio::cuda
