#include "quant/cuda/second_order.h"

#include <cusolverDn.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "kernels/cuda/device/cuda_error.cuh"

namespace fidelio::cuda {
namespace {

constexpr int64_t kPanel = 1024;  // columns of H that one product sums, from its diagonal down

void solver_check(cusolverStatus_t status, const char* doing) {
  check(status == CUSOLVER_STATUS_SUCCESS, "cuSOLVER, {}: status {}", doing, static_cast<int>(status));
}

}  // namespace

SecondOrder::SecondOrder(Stream stream) : stream_(stream), sums_blas_(stream, Arithmetic::tf32), status_(sizeof(int)) {
  solver_check(cusolverDnCreate(&solver_), "starting");
  solver_check(cusolverDnSetStream(solver_, stream), "choosing a stream");
  solver_check(cusolverDnCreateParams(&parameters_), "starting");
}

SecondOrder::~SecondOrder() {
  cusolverDnDestroyParams(parameters_);
  cusolverDnDestroy(solver_);
}

void SecondOrder::begin(int64_t in) {
  in_ = in;
  tokens_ = 0;
  mirrored_ = false;
  factor_ = {};
  reserve(stream_, sums_, in * in * 4);
  zero_device(stream_, sums_.data(), static_cast<size_t>(in * in) * 4);
  for (DeviceBuffer* buffer : {&order_, &diagonal_, &weight_}) reserve(stream_, *buffer, in * 4);
}

void SecondOrder::begin(std::span<const float> matrix, int64_t in, int64_t tokens) {
  begin(in);
  to_device(stream_, sums_.data(), matrix.data(), matrix.size_bytes());
  wait_for(stream_);
  tokens_ = tokens;
  mirrored_ = true;
}

void SecondOrder::add(std::span<const float> x) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / in_;
  check(tokens * in_ == static_cast<int64_t>(x.size()), "{} values are not rows of {} columns", x.size(), in_);
  reserve(stream_, rows_, static_cast<int64_t>(x.size_bytes()));
  to_device(stream_, rows_.data(), x.data(), x.size_bytes());
  wait_for(stream_);
  for (int64_t begin = 0; begin < in_; begin += kPanel) {
    const Window below{rows_.as<float>() + begin, in_};
    sums_blas_.multiply(in_ - begin, std::min(kPanel, in_ - begin), tokens, 1, below, true, below, 1,
                        {sums_.as<float>() + begin * in_ + begin, in_});
  }
  tokens_ += tokens;
  mirrored_ = false;
}

void SecondOrder::take(SecondOrder& other, std::span<const int32_t> columns) {
  const auto n = static_cast<int64_t>(columns.size());
  begin(n);
  to_device(stream_, order_.data(), columns.data(), columns.size_bytes());
  gather_square(stream_, other.matrix(), order(), other.in_, n, sums_.as<float>());
  wait_for(stream_);
  tokens_ = other.tokens_;
  mirrored_ = true;
}

const float* SecondOrder::matrix() {
  if (!std::exchange(mirrored_, true)) mirror(stream_, sums_.as<float>(), in_);
  return sums_.as<float>();
}

std::vector<float> SecondOrder::inspected_diagonal() {
  check(first_not_finite(stream_, matrix(), in_ * in_) < 0,
        "the Hessian has entries that are not finite; are the calibration activations?");
  read_diagonal(stream_, matrix(), in_, diagonal_.as<float>());
  std::vector<float> diagonal(static_cast<size_t>(in_));
  from_device(stream_, diagonal.data(), diagonal_.data(), diagonal.size() * sizeof(float));
  for (int64_t i = 0; i < in_; ++i)
    check(diagonal[static_cast<size_t>(i)] >= 0,
          "the Hessian's diagonal is {} at column {}; a sum of squares is not negative",
          diagonal[static_cast<size_t>(i)], i);
  return diagonal;
}

const SecondOrder::Factor& SecondOrder::factorize(double damping, bool act_order) {
  const std::vector<float> diagonal = inspected_diagonal();
  factor_.dead = std::count(diagonal.begin(), diagonal.end(), 0.0f);
  double mean = 0;
  for (const float x : diagonal) mean += x;
  if (factor_.dead < in_) mean /= static_cast<double>(in_ - factor_.dead);
  factor_.order.resize(static_cast<size_t>(in_));
  std::iota(factor_.order.begin(), factor_.order.end(), 0);
  if (act_order)
    std::stable_sort(factor_.order.begin(), factor_.order.end(), [&](int32_t a, int32_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  to_device(stream_, order_.data(), factor_.order.data(), factor_.order.size() * sizeof(int32_t));
  reserve(stream_, triangle_, in_ * in_ * 8);
  reserve(stream_, upper_, in_ * in_ * 4);
  for (factor_.damping = damping;; factor_.damping = factor_.damping == 0 ? 1e-8 : factor_.damping * 10) {
    check(factor_.damping < 1e6,
          "the Hessian of {} columns has no Cholesky factor even with damping {} of its mean diagonal", in_,
          factor_.damping);
    fill_reversed(stream_, matrix(), order(), in_, factor_.damping * mean, triangle_.as<double>());
    if (cholesky_and_inverse()) break;
  }
  reverse_into(stream_, triangle_.as<double>(), order(), diagonal_.as<float>(), in_, upper_.as<float>(),
               weight_.as<float>());
  factor_.weight.resize(static_cast<size_t>(in_));
  from_device(stream_, factor_.weight.data(), weight_.data(), factor_.weight.size() * sizeof(float));
  return factor_;
}

// Computes in place the lower triangle L of a row-major matrix with L L^T equal to it, and then L^-1. The lower
// triangle by rows is the upper one by columns, as cuSOLVER reads it, where the same numbers are U = L^T with U^T U
// equal to the matrix. Returns false if the matrix is not positive definite.
bool SecondOrder::cholesky_and_inverse() {
  const cublasFillMode_t upper = CUBLAS_FILL_MODE_UPPER;
  size_t device_bytes = 0, host_bytes = 0, more_device = 0, more_host = 0;
  solver_check(cusolverDnXpotrf_bufferSize(solver_, parameters_, upper, in_, CUDA_R_64F, triangle_.data(), in_,
                                           CUDA_R_64F, &device_bytes, &host_bytes),
               "asking for workspace");
  solver_check(cusolverDnXtrtri_bufferSize(solver_, upper, CUBLAS_DIAG_NON_UNIT, in_, CUDA_R_64F, triangle_.data(), in_,
                                           &more_device, &more_host),
               "asking for workspace");
  reserve(stream_, workspace_, static_cast<int64_t>(std::max(device_bytes, more_device)));
  std::vector<std::byte> host(std::max(host_bytes, more_host));
  const auto status = [&] {
    int value = 0;
    from_device(stream_, &value, status_.data(), sizeof value);
    return value;
  };
  solver_check(cusolverDnXpotrf(solver_, parameters_, upper, in_, CUDA_R_64F, triangle_.data(), in_, CUDA_R_64F,
                                workspace_.data(), workspace_.size(), host.data(), host.size(), status_.as<int>()),
               "factorising");
  if (status() != 0) return false;
  solver_check(cusolverDnXtrtri(solver_, upper, CUBLAS_DIAG_NON_UNIT, in_, CUDA_R_64F, triangle_.data(), in_,
                                workspace_.data(), workspace_.size(), host.data(), host.size(), status_.as<int>()),
               "inverting");
  return status() == 0;
}

}  // namespace fidelio::cuda
