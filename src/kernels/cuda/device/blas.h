// Dense products in FP32 by cuBLAS, never in TF32: what quantising multiplies. Matrices are row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

struct cublasContext;

namespace fidelio::cuda {

// A matrix, or a window of one: rows lie `stride` values apart.
struct Window {
  float* data = nullptr;
  int64_t stride = 0;
};

class Blas {
 public:
  explicit Blas(Stream stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // c (m, n) = alpha a (m, k) b (k, n) + beta c; with `transposed`, a is given as (k, m).
  void multiply(int64_t m, int64_t n, int64_t k, float alpha, Window a, bool transposed, Window b, float beta,
                Window c);
  // c (m, n) = op(a) op(b) + beta c, all dense; with a_transposed a is given as (k, m), with b_transposed b as (n, k).
  void product(int64_t m, int64_t n, int64_t k, const float* a, bool a_transposed, const float* b, bool b_transposed,
               float beta, float* c);

 private:
  cublasContext* handle_ = nullptr;
};

}  // namespace fidelio::cuda
