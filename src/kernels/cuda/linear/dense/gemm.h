// This file multiplies dense FP16 matrices by cuBLASLt: y (M, N) in FP32 = or += factor x (M, K) w (N, K)^T.
//
// cuBLASLt's own choice of algorithm depends on M, and with it the order of sums. Here one algorithm is chosen for
// each (N, K), for M = 4096, and kept, so that a row's result does not depend on the number of rows. Products of few
// rows are in lowbit.h.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(Gemm&&) noexcept;
  // Returns true if the product can be done: alignment requires that K is a multiple of 8.
  static bool takes(int64_t in) { return in % 8 == 0; }
  void run(Stream stream, const uint16_t* w, const uint16_t* x, float factor, int64_t M, int64_t N, int64_t K, float* y,
           bool add = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fidelio::cuda
