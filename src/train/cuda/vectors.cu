// These kernels decode vector codes on a GPU. They are the twin of host_vectors.cc, with sums in another order.
#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"
#include "train/host/vector_rounding.h"

namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kThreads = 128;

__device__ __forceinline__ int64_t thread_index() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }

struct Term {
  float level, scale;
  bool negated;
  int64_t entry;  // index among the values of all codebooks
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

// Each thread has one column and each block one row, and adds up in order what belongs to it.
__global__ void sum_columns(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  const int64_t c = thread_index();
  if (c >= s.in) return;
  float sum = 0;
  for (int64_t r = 0; r < s.out; ++r)
    sum += to.latent[r * s.in + c] * stored_f16(view.row[r]) * term_of(s, view, r, c).level;
  to.column[c] = sum;
}

// The next kernel computes gradients of codebook entries. Each thread block has kEntries entries of a codebook. From
// every tile of the codes of that codebook's rows, it lists those that stand for one of its entries, and adds up
// their terms in the order of the list; each thread has one value of an entry. A block for a single entry would have
// to read all codes as often as there are entries.
constexpr int kEntries = 32, kSumThreads = 1024, kCodes = 8;  // codes of a tile that each thread reads
constexpr int kTile = kSumThreads * kCodes, kBatch = kSumThreads / kVector;

// Returns the first row of a codebook. The rows of one codebook lie together, in the order of the codebooks.
__device__ int64_t first_row(const VectorSizes& s, const VectorView<float>& view, int64_t book) {
  int64_t low = 0, high = s.out;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (static_cast<int64_t>(view.book[middle]) < book)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// A Place holds what all threads of the block before this one have counted, and what all have.
struct Place {
  int before, all;
};
__device__ Place place_of(int count, int* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int upto = count;
  for (int by = 1; by < 32; by *= 2) {
    const int others = __shfl_up_sync(~0u, upto, by);
    if (lane >= by) upto += others;
  }
  if (lane == 31) of_warps[warp] = upto;
  __syncthreads();
  Place place{0, 0};
  for (int w = 0; w < kSumThreads / 32; ++w) {
    if (w == warp) place.before = place.all + upto - count;
    place.all += of_warps[w];
  }
  return place;
}

// Returns value j of the term that the code at index `at`, among all codes, adds to its entry.
__device__ float entry_term(const VectorSizes& s, const VectorView<float>& view, const VectorGradient<float>& to,
                            int64_t at, int j) {
  const int64_t r = at / s.vectors, c = at % s.vectors * kVector + j;
  if (c >= s.in) return 0;
  const float by = to.latent[r * s.in + c] * stored_f16(view.row[r]) * stored_f16(view.column[c]);
  const auto code = static_cast<int64_t>(view.code[at]);
  return is_negated(s.signs, static_cast<int>(code / s.entries), j) ? -by : by;
}

__global__ void __launch_bounds__(kSumThreads)
    sum_entries(VectorSizes s, VectorView<float> view, VectorGradient<float> to) {
  __shared__ uint16_t list[kTile];
  __shared__ float terms[kBatch][kVector];
  __shared__ int entries[kBatch], of_warps[kSumThreads / 32];
  const int64_t book = int64_t{blockIdx.x} * kEntries / s.entries;
  const auto first = static_cast<int>(int64_t{blockIdx.x} * kEntries % s.entries), many = static_cast<int>(s.entries);
  const int thread = static_cast<int>(threadIdx.x), k = thread / kVector, j = thread % kVector;
  const int64_t end = first_row(s, view, book + 1) * s.vectors;
  float sum = 0;
  for (int64_t tile = first_row(s, view, book) * s.vectors; tile < end; tile += kTile) {
    unsigned found = 0;
    for (int i = 0; i < kCodes; ++i) {
      const int64_t at = tile + i * kSumThreads + thread;
      if (at < end && static_cast<int>(view.code[at]) % many / kEntries == first / kEntries) found |= 1u << i;
    }
    Place place = place_of(__popc(found), of_warps);
    for (int i = 0; i < kCodes; ++i)
      if ((found >> i & 1) != 0) list[place.before++] = static_cast<uint16_t>(i * kSumThreads + thread);
    __syncthreads();
    for (int batch = 0; batch < place.all; batch += kBatch) {
      if (batch + k < place.all) {
        const int64_t at = tile + list[batch + k];
        terms[k][j] = entry_term(s, view, to, at, j);
        if (j == 0) entries[k] = static_cast<int>(view.code[at]) % many - first;
      }
      __syncthreads();
      const int listed = min(kBatch, place.all - batch);
      for (int i = 0; k < kEntries && i < listed; ++i)
        if (entries[i] == k) sum += terms[i][j];
      __syncthreads();
    }
  }
  if (k < kEntries) to.codebook[(int64_t{blockIdx.x} * kEntries + k) * kVector + j] += sum;
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
    sum_entries<<<static_cast<unsigned>(sizes.books * sizes.entries / kEntries), kSumThreads, 0, s>>>(sizes, view, to);
  rows_backward<<<static_cast<unsigned>(sizes.out), kThreads, 0, s>>>(sizes, view, to);
  cuda_check(cudaGetLastError(), "gradients of vector codes");
}

}  // namespace fidelio::train::gpu
