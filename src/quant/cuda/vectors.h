// Vector codes on the device: codebooks by k-means, error feedback, descent over vectors and what codes multiply.
// quant/vectors/ says what they are and does the same on the host, step for step; who calls the steps in turn is
// quant/device/vectors_cuda.cc.
//
// A thread block has 32 rows of one codebook and sixteen vectors of them in turn, while everything to their right waits
// for one FP32 product:
//
//   shared memory   [codebook, magnitudes or values][norms under the vector's metric][32 rows x 128 columns]
//   a vector        wanted value of all rows --> scores of all centroids, eight rows a warp in registers (vector_search.cuh)
//                   --> code, correction, error (or step) --> out of the rows' later columns
//
// Samples of k-means are assigned in the same way, 32 of one codebook and place at a time, and summed in an order of
// their own (sorted by centroid), so that a codebook is the same in every run.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/vector_code.h"
#include "quant/cuda/second_order.h"
#include "quant/cuda/vector_kernels.h"

namespace fidelio::cuda {

// On the host, by place: what quant/vectors/vector_work.h calls so.
struct VectorCodes {
  std::vector<uint32_t> code;  // (out, vectors): index, signs from bit 16 on
  std::vector<float> row, column;
  std::vector<float> book;                 // (blocks, entries, 8)
  std::vector<int8_t> correction;          // (out, padded), empty without corrections
  std::vector<uint16_t> correction_scale;  // (out, vectors)
};
struct VectorDescentLosses {
  double energy = 0, before = 0, after = 0;
};

class Vectors {
 public:
  // Vectors to be clustered, of each codebook: row times vectors plus place, those of one place side by side.
  using Samples = std::vector<std::vector<int32_t>>;

  // False where a thread block of this device has no room for a codebook.
  static bool takes(const FormatSpec& spec);

  explicit Vectors(Stream stream) : stream_(stream), blas_(stream) {}
  // `ordered`: H in working order, (padded, padded), factorised; of each of its columns that of values (out, in), or -1.
  void begin(const VectorShape& shape, SecondOrder& ordered, std::span<const int32_t> columns, const float* values);
  std::vector<float> normalise();                            // the rows' scales
  void fit_books(const Samples& samples);                    // a codebook each
  void use_book(std::span<const int8_t> book, float scale);  // instead
  // Eight values of each of these vectors over the scales of its row and columns.
  std::vector<float> values_of(const std::vector<int32_t>& vectors);
  std::vector<float> metrics();
  // (out, vectors): what the error of the nearest centroid costs by itself.
  std::vector<float> costs(const Samples& all);
  void correct(std::span<const uint8_t> corrected);  // (out, vectors)
  void choose();                                     // codes, with error feedback
  VectorDescentLosses descend(int passes, bool codes, bool refit);
  VectorCodes collect();

 private:
  VectorState state() const;
  VectorSampleSet gather(const Samples& samples, const float* book_scale);
  void seed(const VectorSampleSet& set, const Samples& samples);
  VectorMembers sorted(int64_t n, const uint32_t* key);
  void product(const float* a, float* c);  // c = a H
  double dot(const float* a, const float* b);
  std::vector<double> decode();  // done, error, gradient; the loss of each codebook's rows
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
  // Of the matrix (VectorState); `spread_` and `bent_` are a matrix and its product with H.
  DeviceBuffer block_, tiles_, w_, row_, column_, metrics_, book_, book_scale_, code_, corrected_, correction_,
      correction_scale_, done_, error_, level_, gradient_, spread_, bent_, change_, inverse_, columns_, price_, sums_;
  int64_t tile_count_ = 0;
  // Of samples (VectorSampleSet), and of lists sorted by centroid.
  DeviceBuffer begins_, ids_, x_, weight_, place_, sample_tiles_, distance_, sample_code_, key_, active_, uniform_,
      chosen_, partial_, arrived_, member_, sorted_key_, sorted_member_, sort_room_, block_sums_;
  // Of conjugate gradients, and what is taken back.
  DeviceBuffer curvature_, left_, direction_, bent_values_, moved_, now_, flagged_, old_book_, old_row_, old_column_;
};

}  // namespace fidelio::cuda
