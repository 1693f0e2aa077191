#include "kernels/cuda/linear/dense/gemm.h"

#include <cublasLt.h>

#include <map>
#include <utility>

#include "core/error.h"

namespace fidelio::cuda {
namespace {

void blas_check(cublasStatus_t status, const char* doing) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt, {}: {}", doing, cublasLtGetStatusString(status));
}

constexpr size_t kWorkspace = size_t{32} << 20;

cublasLtMatrixLayout_t layout(cudaDataType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t l;
  blas_check(cublasLtMatrixLayoutCreate(&l, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
             "describing a matrix");
  return l;
}

// These are column-major, as cuBLAS reads them: w is (K, N), x is (K, M), and y is (N, M).
struct Layouts {
  cublasLtMatrixLayout_t w, x, y;
  Layouts(int64_t M, int64_t N, int64_t K)
      : w(layout(CUDA_R_16F, K, N)), x(layout(CUDA_R_16F, K, M)), y(layout(CUDA_R_32F, N, M)) {}
  ~Layouts() {
    cublasLtMatrixLayoutDestroy(w);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(y);
  }
  Layouts(const Layouts&) = delete;
};

}  // namespace

struct Gemm::State {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  DeviceBuffer workspace{kWorkspace};
  std::map<std::pair<int64_t, int64_t>, cublasLtMatmulAlgo_t> chosen;  // by N, K

  State() {
    blas_check(cublasLtCreate(&handle), "starting");
    blas_check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    blas_check(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
               "describing a product");
  }
  ~State() {
    cublasLtMatmulDescDestroy(product);
    cublasLtDestroy(handle);
  }

  const cublasLtMatmulAlgo_t& algorithm(int64_t N, int64_t K) {
    const std::pair key(N, K);
    if (const auto it = chosen.find(key); it != chosen.end()) return it->second;
    const Layouts l(4096, N, K);
    cublasLtMatmulPreference_t preference;
    blas_check(cublasLtMatmulPreferenceCreate(&preference), "asking for algorithms");
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                         sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, product, l.w, l.x, l.y, l.y, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    blas_check(status, "choosing an algorithm");
    check(count > 0, "cuBLASLt has no algorithm for a {} x {} weight", N, K);
    return chosen.emplace(key, found.algo).first->second;
  }
};

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::~Gemm() = default;
Gemm::Gemm(Gemm&&) noexcept = default;

void Gemm::run(Stream stream, const uint16_t* w, const uint16_t* x, float factor, int64_t M, int64_t N, int64_t K,
               float* y, bool add) {
  const cublasLtMatmulAlgo_t& algorithm = state_->algorithm(N, K);
  const Layouts l(M, N, K);
  const float beta = add ? 1 : 0;
  blas_check(cublasLtMatmul(state_->handle, state_->product, &factor, w, l.w, x, l.x, &beta, y, l.y, y, l.y, &algorithm,
                            state_->workspace.data(), kWorkspace, stream),
             "multiplying");
}

}  // namespace fidelio::cuda
