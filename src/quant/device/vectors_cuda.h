// Vector codes by a GPU: what quantize_vectors (quant/vectors/vectors.h) does, with the matrix and all that is as large
// on the device (quant/cuda/vectors.h). The host draws samples, marks corrections and writes the weight.
#pragma once
#include <vector>

#include "quant/cuda/vectors.h"
#include "quant/quantize.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {

class CudaVectors {
 public:
  explicit CudaVectors(cuda::Stream stream) : stream_(stream), ordered_(stream), vectors_(stream) {}
  // The paper's own way is the host's alone.
  static bool takes(const FormatSpec& spec, const GptqOptions& options) {
    return options.gradient.empty() && cuda::Vectors::takes(spec);
  }
  void forget() { factorised_ = false; }  // H is another one
  // `values` (out, in) on the device; `order` has H and its diagonal.
  GptqResult quantize(const FormatSpec& spec, const GptqOptions& options, cuda::SecondOrder& order, const float* values,
                      int64_t out, ThreadPool& pool);

 private:
  void factorize(cuda::SecondOrder& order, double damping);
  void fit_books(const VectorWork& work, ThreadPool& pool);
  void choose_corrections(VectorWork& work, ThreadPool& pool);

  cuda::Stream stream_;
  cuda::SecondOrder ordered_;  // H in working order: once for all matrices of an input
  cuda::Vectors vectors_;
  bool factorised_ = false;
  double damping_ = 0;            // as asked for
  std::vector<int64_t> vector_;   // place -> vector of the file
  std::vector<int32_t> columns_;  // likewise of columns, -1 behind the last
};

}  // namespace fidelio
