#include "kernels/cuda/device/blas.h"

#include <cublas_v2.h>

#include "core/error.h"

namespace fidelio::cuda {
namespace {

void blas_check(cublasStatus_t status, const char* doing) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLAS, {}: {}", doing, cublasGetStatusString(status));
}

cublasOperation_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
cudaDataType_t type_of(Arithmetic arithmetic) { return arithmetic == Arithmetic::bf16 ? CUDA_R_16BF : CUDA_R_32F; }
cublasComputeType_t compute_of(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::fp32   ? CUBLAS_COMPUTE_32F_PEDANTIC
         : arithmetic == Arithmetic::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
}

}  // namespace

Blas::Blas(Stream stream, Arithmetic arithmetic) : arithmetic_(arithmetic) {
  blas_check(cublasCreate(&handle_), "starting");
  blas_check(cublasSetStream(handle_, stream), "choosing a stream");
  if (arithmetic == Arithmetic::fp32) blas_check(cublasSetMathMode(handle_, CUBLAS_PEDANTIC_MATH), "asking for FP32");
  if (arithmetic == Arithmetic::tf32)
    blas_check(cublasSetMathMode(handle_, CUBLAS_TF32_TENSOR_OP_MATH), "asking for TF32");
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

void Blas::product(int64_t m, int64_t n, int64_t k, const void* a, bool a_transposed, const void* b, bool b_transposed,
                   float beta, float* c) {
  if (m == 0 || n == 0) return;
  const float one = 1;
  const cudaDataType_t type = type_of(arithmetic_);
  blas_check(cublasGemmEx_64(handle_, operation(b_transposed), operation(a_transposed), n, m, k, &one, b, type,
                             b_transposed ? k : n, a, type, a_transposed ? m : k, &beta, c, CUDA_R_32F, n,
                             compute_of(arithmetic_), CUBLAS_GEMM_DEFAULT),
             "multiplying");
}

void Blas::products(int64_t m, int64_t n, int64_t k, float alpha, Factors a, Factors b, float beta, void* const* c,
                    int64_t c_stride, int64_t count) {
  if (m == 0 || n == 0 || count == 0) return;
  const cudaDataType_t type = type_of(arithmetic_);
  blas_check(cublasGemmBatchedEx_64(handle_, operation(b.transposed), operation(a.transposed), n, m, k, &alpha, b.data,
                                    type, b.stride, a.data, type, a.stride, &beta, c, CUDA_R_32F, c_stride, count,
                                    compute_of(arithmetic_), CUBLAS_GEMM_DEFAULT),
             "multiplying many matrices");
}

}  // namespace fidelio::cuda
