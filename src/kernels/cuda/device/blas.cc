#include "kernels/cuda/device/blas.h"

#include <cublas_v2.h>

#include "core/error.h"

namespace fidelio::cuda {
namespace {

void blas_check(cublasStatus_t status, const char* doing) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLAS, {}: {}", doing, cublasGetStatusString(status));
}

}  // namespace

Blas::Blas(Stream stream) {
  blas_check(cublasCreate(&handle_), "starting");
  blas_check(cublasSetStream(handle_, stream), "choosing a stream");
  blas_check(cublasSetMathMode(handle_, CUBLAS_PEDANTIC_MATH), "asking for FP32");
}

Blas::~Blas() { cublasDestroy(handle_); }

// cuBLAS reads a row-major matrix as its transpose, so it is asked for c^T = b^T a^T.
void Blas::multiply(int64_t m, int64_t n, int64_t k, float alpha, Window a, bool transposed, Window b, float beta,
                    Window c) {
  if (m == 0 || n == 0) return;
  blas_check(cublasSgemm_64(handle_, CUBLAS_OP_N, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, b.data,
                            b.stride, a.data, a.stride, &beta, c.data, c.stride),
             "multiplying");
}

void Blas::product(int64_t m, int64_t n, int64_t k, const float* a, bool a_transposed, const float* b,
                   bool b_transposed, float beta, float* c) {
  if (m == 0 || n == 0) return;
  const float one = 1;
  blas_check(cublasSgemm_64(handle_, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            n, m, k, &one, b, b_transposed ? k : n, a, a_transposed ? m : k, &beta, c, n),
             "multiplying");
}

}  // namespace fidelio::cuda
