// This kernel computes the losses of rows of logits and their gradients. It is the twin of host_losses.cc.
#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"

namespace fidelio::train::gpu {
namespace {

constexpr int kThreads = 256;

template <typename Combine>
__device__ float over_block(float x, const Combine& combine) {
  __shared__ float part[kThreads];
  __syncthreads();  // the shared memory may still be read for the sum before
  part[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] = combine(part[threadIdx.x], part[threadIdx.x + half]);
  }
  __syncthreads();
  return part[0];
}
__device__ float sum_of(float x) {
  return over_block(x, [](float a, float b) { return a + b; });
}

// A Normaliser is ln sum exp of a row, as the row's largest value and the logarithm of the rest.
struct Normaliser {
  float top, log_sum;
};
__device__ Normaliser normaliser(const float* logits, int64_t v) {
  float top = -INFINITY;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) top = fmaxf(top, logits[k]);
  top = over_block(top, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) sum += expf(logits[k] - top);
  return {top, logf(sum_of(sum))};
}

// Each thread block has one row. Let d = ln p - ln q. Then forward = sum p d, gradient q - p; reverse = -sum q d,
// gradient q (-d - reverse); label = -ln q(label), gradient q - [label].
__global__ void divergence_rows(const float* teacher, float* student, const int32_t* labels, int64_t v, Mix mix,
                                float gradient_scale, float* losses) {
  const int64_t row = blockIdx.x;
  float* z = student + row * v;
  const float* t = teacher == nullptr ? nullptr : teacher + row * v;
  const int32_t label = labels == nullptr ? -1 : labels[row];
  const Normaliser q = normaliser(z, v);
  const Normaliser p = t == nullptr ? Normaliser{0, 0} : normaliser(t, v);
  const float shift = (p.top - q.top) + (p.log_sum - q.log_sum);
  float forward = 0, reverse = 0;
  for (int64_t k = threadIdx.x; t != nullptr && k < v; k += kThreads) {
    const float d = t[k] - z[k] - shift;
    forward += expf(t[k] - p.top - p.log_sum) * d;
    reverse -= expf(z[k] - q.top - q.log_sum) * d;
  }
  forward = sum_of(forward), reverse = sum_of(reverse);
  if (threadIdx.x == 0) {
    losses[row * 3] = forward;
    losses[row * 3 + 1] = reverse;
    losses[row * 3 + 2] = label < 0 ? 0.0f : (q.top - z[label]) + q.log_sum;
  }
  if (gradient_scale == 0) return;
  __syncthreads();  // all threads have read z[label]
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    const float own = expf(z[k] - q.top - q.log_sum);
    float gradient = 0;
    if (t != nullptr) {
      const float theirs = expf(t[k] - p.top - p.log_sum), d = t[k] - z[k] - shift;
      gradient = mix.forward * (own - theirs) + mix.reverse * own * (-d - reverse);
    }
    if (label >= 0) gradient += mix.label * (own - (k == label ? 1.0f : 0.0f));
    z[k] = gradient_scale * gradient;
  }
}

}  // namespace

void divergence(Stream s, const float* teacher, float* student, const int32_t* labels, int64_t rows, int64_t v,
                const Mix& mix, float gradient_scale, float* losses) {
  divergence_rows<<<static_cast<unsigned>(rows), kThreads, 0, s>>>(teacher, student, labels, v, mix, gradient_scale,
                                                                   losses);
  cuda::cuda_check(cudaGetLastError(), "comparing distributions");
}

}  // namespace fidelio::train::gpu
