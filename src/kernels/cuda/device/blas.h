// This file has dense products by cuBLAS, in FP32 unless asked otherwise, and never in TF32 by default. Matrices are
// row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

struct cublasContext;

namespace fidelio::cuda {

// A Window is a matrix or a part of one; its rows lie `stride` values apart.
struct Window {
  float* data = nullptr;
  int64_t stride = 0;
};

// This says what a product's factors are rounded to; sums are always FP32.
enum class Arithmetic : uint8_t {
  fp32,
  tf32,  // 10 bits of mantissa; the tensor cores round FP32 values from memory
  bf16,  // factors lie in memory as BF16
};

// Factors describes the factors of many products of one shape: an array of pointers in the device's memory, one for
// each product, to FP32 or, with Arithmetic::bf16, BF16. Rows lie `stride` values apart.
struct Factors {
  const void* const* data;
  int64_t stride;
  bool transposed;
};

class Blas {
 public:
  explicit Blas(Stream stream, Arithmetic arithmetic = Arithmetic::fp32);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Computes c (m, n) = alpha a (m, k) b (k, n) + beta c; with `transposed`, a is given as (k, m). It takes FP32
  // values, which Arithmetic::tf32 rounds.
  void multiply(int64_t m, int64_t n, int64_t k, float alpha, Window a, bool transposed, Window b, float beta,
                Window c);
  // Computes c (m, n) = op(a) op(b) + beta c, all dense. With a_transposed, a is given as (k, m); with b_transposed,
  // b as (n, k). a and b are FP32 or, with Arithmetic::bf16, BF16.
  void product(int64_t m, int64_t n, int64_t k, const void* a, bool a_transposed, const void* b, bool b_transposed,
               float beta, float* c);
  // Computes c (m, n; rows c_stride apart) = alpha op(a) op(b) + beta c for `count` products.
  void products(int64_t m, int64_t n, int64_t k, float alpha, Factors a, Factors b, float beta, void* const* c,
                int64_t c_stride, int64_t count);

 private:
  cublasContext* handle_ = nullptr;
  Arithmetic arithmetic_;
};

}  // namespace fidelio::cuda
