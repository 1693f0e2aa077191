#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"
#include "train/host/vector_rounding.h"

// Vector codes on a GPU: the twin of host_vectors.cc, with sums in another order.
namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kThreads = 128;

__device__ __forceinline__ int64_t thread_index() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }

struct Term {
  float level, scale;
  bool negated;
  int64_t entry;  // of all codebooks' values
};
__device__ __forceinline__ Term term_of(const VectorSizes& s, const VectorView<float>& view, int64_t r, int64_t c) {
  const auto code = static_cast<int64_t>(view.code[r * s.vectors + c / kVector]);
  Term t;
  t.entry = (static_cast<int64_t>(view.book[r]) * s.entries + code % s.entries) * kVector + c % kVector;
  t.negated = is_negated(s.signs, static_cast<int>(code / s.entries), c % kVector);
  t.level = t.negated ? -view.codebook[t.entry] : view.codebook[t.entry];
  t.scale = stored_f16(view.column[c]);
  return t;
}

__global__ void decode_vectors(VectorSizes s, VectorView<float> view, float* values) {
  const int64_t at = thread_index();
  if (at < s.out * s.vectors) decode_vector(s, view, at / s.vectors, at % s.vectors, values);
}
__global__ void add_corrections(VectorSizes s, VectorView<float> view, float* values) {
  const int64_t at = thread_index();
  if (at < s.corrections) add_correction(s, view, at, values);
}
__global__ void gather_corrections(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  const int64_t at = thread_index(), i = at / kVector;
  if (i >= s.corrections) return;
  const auto row = static_cast<int64_t>(view.place[2 * i]);
  const int64_t c = static_cast<int64_t>(view.place[2 * i + 1]) * kVector + at % kVector;
  to.correction[at] = c < s.in ? to.latent[row * s.in + c] : 0.0f;
}

// A thread has a column, a block a row: each adds up in order what is its own.
__global__ void sum_columns(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  const int64_t c = thread_index();
  if (c >= s.in) return;
  float sum = 0;
  for (int64_t r = 0; r < s.out; ++r)
    sum += to.latent[r * s.in + c] * stored_f16(view.row[r]) * term_of(s, view, r, c).level;
  to.column[c] = sum;
}
// A thread block has an entry, a thread one of its values in every kSlices-th row; slices are added up in order.
constexpr int kSlices = 32;
__global__ void sum_entries(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  __shared__ float sums[kSlices][kVector];
  const int64_t book = blockIdx.x / s.entries, entry = blockIdx.x % s.entries;
  const int j = threadIdx.x % kVector, slice = threadIdx.x / kVector;
  float sum = 0;
  for (int64_t r = slice; r < s.out; r += kSlices) {
    if (static_cast<int64_t>(view.book[r]) != book) continue;
    const float row = stored_f16(view.row[r]);
    for (int64_t v = 0; v < s.vectors; ++v) {
      const auto code = static_cast<int64_t>(view.code[r * s.vectors + v]);
      const int64_t c = v * kVector + j;
      if (code % s.entries != entry || c >= s.in) continue;
      const float by = to.latent[r * s.in + c] * row * stored_f16(view.column[c]);
      sum += is_negated(s.signs, static_cast<int>(code / s.entries), j) ? -by : by;
    }
  }
  sums[slice][j] = sum;
  __syncthreads();
  if (slice != 0) return;
  for (int i = 1; i < kSlices; ++i) sum += sums[i][j];
  to.codebook[int64_t{blockIdx.x} * kVector + j] += sum;
}
__global__ void rows_backward(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  __shared__ float sums[kThreads];
  const int64_t r = blockIdx.x;
  const float row = stored_f16(view.row[r]);
  float along = 0;
  for (int64_t c = threadIdx.x; c < s.in; c += kThreads) {
    const Term t = term_of(s, view, r, c);
    const float by = to.latent[r * s.in + c];
    along += by * t.scale * t.level;
    to.latent[r * s.in + c] = by * row * t.scale;
  }
  sums[threadIdx.x] = along;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int t = 0; t < kThreads; ++t) sum += sums[t];
  to.row[r] = sum;
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void decode(Stream s, const VectorSizes& sizes, const VectorView<float>& view, float* values) {
  decode_vectors<<<blocks_for(sizes.out * sizes.vectors), kThreads, 0, s>>>(sizes, view, values);
  if (sizes.corrections > 0) add_corrections<<<blocks_for(sizes.corrections), kThreads, 0, s>>>(sizes, view, values);
  cuda_check(cudaGetLastError(), "decoding vector codes");
}

void decode_backward(Stream s, const VectorSizes& sizes, const VectorView<float>& view,
                     const VectorGradient<float>& to) {
  if (sizes.corrections > 0)
    gather_corrections<<<blocks_for(sizes.corrections * kVector), kThreads, 0, s>>>(sizes, view, to);
  sum_columns<<<blocks_for(sizes.in), kThreads, 0, s>>>(sizes, view, to);
  if (to.codebook != nullptr)
    sum_entries<<<static_cast<unsigned>(sizes.books * sizes.entries), kSlices * kVector, 0, s>>>(sizes, view, to);
  rows_backward<<<static_cast<unsigned>(sizes.out), kThreads, 0, s>>>(sizes, view, to);
  cuda_check(cudaGetLastError(), "gradients of vector codes");
}

}  // namespace fidelio::train::gpu
