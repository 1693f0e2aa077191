// This file defines a matrix on its way to vector codes, which the steps of the quantiser (vectors.cc,
// vector_descent.cc) pass to each other.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "formats/vector_code.h"
#include "quant/quantize.h"
#include "quant/vectors/vector_book.h"

namespace fidelio {

// A VectorCorrection is added to a vector: whole numbers in [-127, 127] times an FP16 scale. (SCVQ stores eight FP16
// numbers, which take nearly twice the bytes.)
struct VectorCorrection {
  f16 scale{};
  int8_t value[kVectorDim] = {};
  float at(int64_t j) const { return to_float(scale) * static_cast<float>(value[j]); }
};
VectorCorrection correct(const float* error);  // returns the correction nearest to an error (8)

// The columns of a VectorWork are in working order: vectors by descending price, with the columns of a vector side by
// side, padded to whole vectors. The position of a vector in that order is its place.
struct VectorWork {
  VectorShape shape;
  int64_t padded = 0;           // 8 shape.vectors
  std::vector<int64_t> vector;  // maps a place to the vector of the file
  std::vector<float> w, done;   // (out, padded): the wanted values, and those chosen
  std::vector<float> price;     // (padded): the price of an error in this column
  // The scales as stored. A row's scale includes that of its codebook once that is known.
  std::vector<float> row, column;
  std::vector<float> metrics;           // (padded): the price times the square of the column scale
  std::vector<uint8_t> corrected;       // (out, vectors), by place: whether a vector gets a correction
  const OwnedTensor* shared = nullptr;  // the shared codebook, if there is one; it does not change
  std::vector<VectorBook> books;
  std::vector<float> book_scale;
  // These are the choices, by place.
  std::vector<VectorChoice> code;            // (out, vectors)
  std::vector<VectorCorrection> correction;  // (out, vectors), used only where corrected; empty without corrections

  int64_t column_of(int64_t at) const { return vector[at / kVectorDim] * kVectorDim + at % kVectorDim; }
  const VectorBook& book_of(int64_t row_index) const { return books[shape.block_of(row_index)]; }
};

inline constexpr int64_t kVectorRows = 64;  // rows of a job

// Appends `count` vectors of a matrix, normalised as its codebook sees them and drawn at random, as samples of place
// 0.
void add_normalised(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t count,
                    VectorSamples& to);

// Calls f(block, first row, last row) for pieces of blocks, in all threads.
template <typename F>
void over_rows(const VectorShape& s, ThreadPool& pool, const F& f) {
  std::vector<std::array<int64_t, 3>> jobs;
  for (int64_t b = 0; b < s.blocks; ++b)
    for (int64_t r = s.first_row(b); r < s.first_row(b + 1); r += kVectorRows)
      jobs.push_back({b, r, std::min(r + kVectorRows, s.first_row(b + 1))});
  pool.run(static_cast<int64_t>(jobs.size()), [&](int64_t job, int) { f(jobs[job][0], jobs[job][1], jobs[job][2]); });
}

// The next functions are what the quantisers of the host and of a GPU have in common (vector_steps.cc).
//
// Returns the vectors by descending sum of their columns' diagonal of H. A last vector that the matrix does not fill
// stays last.
std::vector<int64_t> vector_order(std::span<const float> diagonal);
// Returns the vectors that the codebook of a block is fitted to, as row times vectors plus place, with those of one
// place side by side. Corrected vectors and rows of zeros are left out. If nothing remains, the result is -1 alone,
// which stands for a vector of zeros.
std::vector<int32_t> sample_vectors(const VectorShape& shape, int64_t block, std::span<const float> row,
                                    std::span<const uint8_t> corrected);
// Thins these vectors out to those that a shared codebook's scale is fitted to.
std::vector<int32_t> thinned(std::span<const int32_t> vectors);
// Returns the scale of a shared codebook in a matrix. Codes and scale are fitted in turn, beginning with a scale at
// which samples and codebook have the same size.
float fit_shared_scale(const VectorSamples& samples, const VectorBook& book);
VectorBook shared_book(const VectorShape& shape, const OwnedTensor& codebook);
// Marks the `sparse` vectors whose error costs most by itself.
void mark_corrections(std::span<const float> cost, int64_t sparse, std::span<uint8_t> corrected);
LinearWeight to_weight(const FormatSpec& spec, const VectorWork& work);

// Rounds a scale to FP16, positive and within its normal numbers.
float stored_scale(double x);

// VectorLosses holds tr(W H W^T), and tr((W - Q) H (W - Q)^T) at the beginning and at the end of the descent.
struct VectorLosses {
  double energy = 0, before = 0, after = 0;
};

// VectorDescent says what the descent may change: codes, one vector at a time, and the values that the codes
// multiply.
struct VectorDescent {
  int passes = 4;
  bool codes = true, refit = true;
};

// Lowers tr((W - Q) H (W - Q)^T), with H (padded, padded) in working order. Each of `passes` passes first fits column
// scales (once) and codebooks (in the first passes) by conjugate gradients, rounded as stored. Then it chooses every
// vector's code against the error that all others leave, and last it fits row scales. The only step that can raise a
// row's loss is the rounding of a refitted codebook, and that is undone if the loss of its block rises.
VectorLosses descend_vectors(VectorWork& work, std::span<const float> h, const VectorDescent& how, ThreadPool& pool);

// Chooses codes, codebooks and corrections by the paper's algorithm 1, from normalised rows and columns, without
// feedback or descent. `gradient` (out, in) is the mean |dL/dw|, and `work.price` the mean squared inputs.
void quantise_as_paper(VectorWork& work, std::span<const float> gradient, const VectorPaper& how, ThreadPool& pool);

}  // namespace fidelio
