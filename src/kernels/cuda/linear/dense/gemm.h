// Dense products of FP16 matrices by cuBLASLt: y (M, N) FP32 = or += factor x (M, K) w (N, K)^T.
//
// cuBLASLt's own choice of algorithm changes with M, and with it the order of sums; here one algorithm is chosen for
// each (N, K), for M = 4096, and kept, so a row's result does not depend on how many rows there are. Few rows are
// lowbit.h's.
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
  // Alignment asks for K to be a multiple of 8.
  static bool takes(int64_t in) { return in % 8 == 0; }
  void run(Stream stream, const uint16_t* w, const uint16_t* x, float factor, int64_t M, int64_t N, int64_t K, float* y,
           bool add = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fidelio::cuda
