// This file makes vector codes on the GPU: codebooks by k-means, codes with error feedback, and descent over codes
// and over the values that codes multiply. quant/vectors/ explains the method and does the same on the host, step for
// step. quant/device/vectors_cuda.cc calls the steps in order.
//
// A thread block has 32 rows of one codebook and sixteen vectors of them in turn, while all columns to their right
// wait for one FP32 product:
//
//   shared memory   [codebook, magnitudes or values][norms under the vector's metric][32 rows x 128 columns]
//   a vector        wanted value of all rows --> scores of all centroids, eight rows a warp (vector_search.cuh)
//                   --> code, correction, error (or step) --> out of the rows' later columns
//
// Samples of k-means are assigned in the same way, 32 with one codebook and place at a time. They are summed in a
// fixed order (sorted by centroid), so that a codebook is the same in every run.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/vector_code.h"
#include "quant/cuda/second_order.h"
#include "quant/cuda/vector_kernels.h"

namespace fidelio::cuda {

// VectorCodes is the result on the host, in the order of places, as quant/vectors/vector_work.h defines them.
struct VectorCodes {
  std::vector<uint32_t> code;  // (out, vectors): an index, with signs from bit 16 on
  std::vector<float> row, column;
  std::vector<float> book;                 // (blocks, entries, 8)
  std::vector<int8_t> correction;          // (out, padded); empty without corrections
  std::vector<uint16_t> correction_scale;  // (out, vectors)
};
struct VectorDescentLosses {
  double energy = 0, before = 0, after = 0;
};

class Vectors {
 public:
  // For each codebook, Samples lists the vectors to be clustered, as row times vectors plus place. Vectors of one
  // place lie side by side.
  using Samples = std::vector<std::vector<int32_t>>;

  // Returns false if a thread block of this device has no room for a codebook.
  static bool takes(const FormatSpec& spec);

  explicit Vectors(Stream stream) : stream_(stream), blas_(stream) {}
  // Begins a matrix. `ordered` is H in working order (padded, padded), factorised. `columns` gives for each of its
  // columns the column of values (out, in), or -1.
  void begin(const VectorShape& shape, SecondOrder& ordered, std::span<const int32_t> columns, const float* values);
  std::vector<float> normalise();                            // normalises rows and columns; returns the rows' scales
  void fit_books(const Samples& samples);                    // fits one codebook to each list
  void use_book(std::span<const int8_t> book, float scale);  // uses this codebook instead
  // Returns the eight values of each of these vectors, divided by the scales of its row and columns.
  std::vector<float> values_of(const std::vector<int32_t>& vectors);
  std::vector<float> metrics();
  // Returns for each vector, (out, vectors), the cost of the error of its nearest centroid by itself.
  std::vector<float> costs(const Samples& all);
  void correct(std::span<const uint8_t> corrected);  // (out, vectors): which vectors get a correction
  void choose();                                     // chooses codes with error feedback
  VectorDescentLosses descend(int passes, bool codes, bool refit);
  VectorCodes collect();

 private:
  VectorState state() const;
  VectorSampleSet gather(const Samples& samples, const float* book_scale);
  void seed(const VectorSampleSet& set, const Samples& samples);
  VectorMembers sorted(int64_t n, const uint32_t* key);
  void product(const float* a, float* c);  // computes c = a H
  double dot(const float* a, const float* b);
  std::vector<double> decode();  // sets done, error and gradient; returns the loss of each codebook's rows
  void refit_columns(std::vector<double>& loss);
  void refit_books(std::vector<double>& loss);
  void refit_rows();
  void descend_codes();
  using Sum = std::function<void(const float* b, double* sum)>;
  using Spread = std::function<void(const double* p, float* a)>;
  const double* conjugate(int sets, int64_t values, const Sum& sum, const Spread& spread);
  template <typename T>
  std::vector<T> host(const DeviceBuffer& buffer, int64_t n);

  Stream stream_;
  Blas blas_;
  VectorShape shape_;
  SecondOrder* ordered_ = nullptr;
  bool shared_ = false, corrects_ = false;
  // These buffers belong to the matrix (VectorState). `spread_` and `bent_` are a matrix and its product with H.
  DeviceBuffer block_, tiles_, w_, row_, column_, metrics_, book_, book_scale_, code_, corrected_, correction_,
      correction_scale_, done_, error_, level_, gradient_, spread_, bent_, change_, inverse_, columns_, price_, sums_;
  int64_t tile_count_ = 0;
  // These belong to the samples (VectorSampleSet) and to lists sorted by centroid.
  DeviceBuffer begins_, ids_, x_, weight_, place_, sample_tiles_, distance_, sample_code_, key_, active_, uniform_,
      chosen_, partial_, arrived_, member_, sorted_key_, sorted_member_, sort_room_, block_sums_;
  // These belong to the conjugate gradients and to changes that are undone.
  DeviceBuffer curvature_, left_, direction_, bent_values_, moved_, now_, flagged_, old_book_, old_row_, old_column_;
};

}  // namespace fidelio::cuda
