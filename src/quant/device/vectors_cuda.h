// This file makes vector codes with a GPU. It does what quantize_vectors (quant/vectors/vectors.h) does, with the
// matrix and everything of its size on the device (quant/cuda/vectors.h). The host draws samples, marks corrections
// and writes the weight.
#pragma once
#include <vector>

#include "quant/cuda/vectors.h"
#include "quant/quantize.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {

class CudaVectors {
 public:
  explicit CudaVectors(cuda::Stream stream) : stream_(stream), ordered_(stream), vectors_(stream) {}
  // Returns true if the GPU can quantise so. The paper's own algorithm (with gradients) runs only on the host.
  static bool takes(const FormatSpec& spec, const GptqOptions& options) {
    return options.gradient.empty() && cuda::Vectors::takes(spec);
  }
  void forget() { factorised_ = false; }  // must be called when H has changed
  // Quantises `values` (out, in), which are on the device. `order` has H and its diagonal.
  GptqResult quantize(const FormatSpec& spec, const GptqOptions& options, cuda::SecondOrder& order, const float* values,
                      int64_t out, ThreadPool& pool);

 private:
  void factorize(cuda::SecondOrder& order, double damping);
  void fit_books(const VectorWork& work, ThreadPool& pool);
  void choose_corrections(VectorWork& work, ThreadPool& pool);

  cuda::Stream stream_;
  cuda::SecondOrder ordered_;  // H in working order, made once for all matrices of an input
  cuda::Vectors vectors_;
  bool factorised_ = false;
  double damping_ = 0;            // as it was asked for
  std::vector<int64_t> vector_;   // maps a place to the vector of the file
  std::vector<int32_t> columns_;  // does the same for columns; -1 behind the last one
};

}  // namespace fidelio
