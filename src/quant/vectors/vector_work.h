// A matrix on its way to vector codes: what the steps of the quantiser (vectors.cc, vector_descent.cc) hand each other.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "formats/vector_code.h"
#include "quant/quantize.h"
#include "quant/vectors/vector_book.h"

namespace fidelio {

// The correction of a vector: whole numbers in [-127, 127] times an FP16.
struct VectorCorrection {
  f16 scale{};
  int8_t value[kVectorDim] = {};
  float at(int64_t j) const { return to_float(scale) * static_cast<float>(value[j]); }
};
VectorCorrection correct(const float* error);  // the nearest to it (8)

// Columns in working order: vectors by descending price, the columns of a vector side by side, padded to whole vectors.
struct VectorWork {
  VectorShape shape;
  int64_t padded = 0;                   // 8 shape.vectors
  std::vector<int64_t> vector;          // place -> vector of the file
  std::vector<float> w, done;           // (out, padded): what is wanted, and what was chosen for it
  std::vector<float> price;             // (padded): of an error in this column
  std::vector<float> row, column;       // scales as stored; a row's has its codebook's in it once that is known
  std::vector<float> metrics;           // (padded): price times the column scale's square
  std::vector<uint8_t> corrected;       // (out, vectors), by place
  const OwnedTensor* shared = nullptr;  // the codebook is this one, and stays as it is
  std::vector<VectorBook> books;
  std::vector<float> book_scale;
  // What was chosen, by place.
  std::vector<VectorChoice> code;            // (out, vectors)
  std::vector<VectorCorrection> correction;  // the same, only where corrected; empty without corrections

  int64_t column_of(int64_t at) const { return vector[at / kVectorDim] * kVectorDim + at % kVectorDim; }
  const VectorBook& book_of(int64_t row_index) const { return books[shape.block_of(row_index)]; }
};

inline constexpr int64_t kVectorRows = 64;  // of a job

// `count` vectors of a matrix in its codebook's terms, drawn at random, as samples of place 0.
void add_normalised(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t count,
                    VectorSamples& to);

// f(block, first row, last row) over pieces of blocks.
template <typename F>
void over_rows(const VectorShape& s, ThreadPool& pool, const F& f) {
  std::vector<std::array<int64_t, 3>> jobs;
  for (int64_t b = 0; b < s.blocks; ++b)
    for (int64_t r = s.first_row(b); r < s.first_row(b + 1); r += kVectorRows)
      jobs.push_back({b, r, std::min(r + kVectorRows, s.first_row(b + 1))});
  pool.run(static_cast<int64_t>(jobs.size()), [&](int64_t job, int) { f(jobs[job][0], jobs[job][1], jobs[job][2]); });
}

// What the host's quantiser and a GPU's have in common (vector_steps.cc).
//
// Vectors by descending sum of their columns' diagonal of H; a last one that the matrix does not fill stays last.
std::vector<int64_t> vector_order(std::span<const float> diagonal);
// What the codebook of a block is fitted to, row times vectors plus place, those of one place side by side: without what
// is corrected and rows of zeros. -1 alone, which stands for zeros, if that is nothing.
std::vector<int32_t> sample_vectors(const VectorShape& shape, int64_t block, std::span<const float> row,
                                    std::span<const uint8_t> corrected);
std::vector<int32_t> thinned(std::span<const int32_t> vectors);  // to what a shared codebook's scale is fitted to
// A shared codebook's scale in a matrix: codes and scale in turn, from where both have the same size.
float fit_shared_scale(const VectorSamples& samples, const VectorBook& book);
VectorBook shared_book(const VectorShape& shape, const OwnedTensor& codebook);
// The `sparse` vectors whose error costs most by themselves.
void mark_corrections(std::span<const float> cost, int64_t sparse, std::span<uint8_t> corrected);
LinearWeight to_weight(const FormatSpec& spec, const VectorWork& work);

// A scale as FP16 holds it: positive, within its normal numbers.
float stored_scale(double x);

// tr(W H W^T), and tr((W - Q) H (W - Q)^T) when descent begins and ends.
struct VectorLosses {
  double energy = 0, before = 0, after = 0;
};

// What descent may change: codes, one vector at a time, and what the codes multiply.
struct VectorDescent {
  int passes = 4;
  bool codes = true, refit = true;
};

// Lowers tr((W - Q) H (W - Q)^T), H (padded, padded) in working order: for `passes`, column scales (once) and codebooks
// (in the first passes) by conjugate gradients, rounded as stored, then every vector's code against what all others
// leave to it; row scales at the end of each. No step raises a row's loss but the roundings of a refitted codebook, which is taken
// back if its block's loss rises.
VectorLosses descend_vectors(VectorWork& work, std::span<const float> h, const VectorDescent& how, ThreadPool& pool);

// Codes, codebooks and corrections as in the paper's algorithm 1, from normalised rows and columns: no feedback, no
// descent. `gradient` (out, in): mean |dL/dw|; `work.price`: mean squared inputs.
void quantise_as_paper(VectorWork& work, std::span<const float> gradient, const VectorPaper& how, ThreadPool& pool);

}  // namespace fidelio
