#include <cuda_runtime.h>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/second_order.h"

namespace fidelio::cuda {
namespace {

constexpr int kTile = 32;

__host__ __device__ constexpr int64_t tiles(int64_t n) { return (n + kTile - 1) / kTile; }
dim3 tile_grid(int64_t n) { return {static_cast<unsigned>(tiles(n)), static_cast<unsigned>(tiles(n))}; }
const dim3 kTileThreads(kTile, 8);

// Copies tile (row, column) of the lower triangle, transposed, to (column, row).
__global__ void mirror_tiles(float* h, int64_t in) {
  if (blockIdx.x > blockIdx.y) return;
  __shared__ float tile[kTile][kTile + 1];
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile;
  for (int r = threadIdx.y; r < kTile; r += 8)
    if (row0 + r < in && column0 + threadIdx.x < in) tile[r][threadIdx.x] = h[(row0 + r) * in + column0 + threadIdx.x];
  __syncthreads();
  for (int r = threadIdx.y; r < kTile; r += 8) {
    const int64_t row = column0 + r, column = row0 + threadIdx.x;
    if (row < in && column < in && column > row) h[row * in + column] = tile[threadIdx.x][r];
  }
}

__global__ void gather_rows(const float* h, const int32_t* order, int64_t in, int64_t n, float* to) {
  const int64_t row = order[blockIdx.y], j = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (j >= n) return;
  const int64_t column = order[j];
  to[blockIdx.y * n + j] = row < 0 || column < 0 ? 0.0f : h[row * in + column];
}

__global__ void find_not_finite(const float* values, int64_t n, unsigned long long* first) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    if (!isfinite(values[i])) atomicMin(first, static_cast<unsigned long long>(i));
}

__global__ void copy_diagonal(const float* h, int64_t in, float* diagonal) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < in) diagonal[i] = h[i * in + i];
}

__global__ void fill_rows(const float* h, const int32_t* order, int64_t in, double damping, double* lower) {
  const int64_t i = blockIdx.y, row = order[in - 1 - i];
  const int64_t j = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (j > i) return;
  const int64_t column = order[in - 1 - j];
  const float x = h[row * in + column];
  lower[i * in + j] = i != j ? double{x} : x == 0 ? 1.0 : x + damping;
}

__global__ void reverse_rows(const double* inverse, const int32_t* order, const float* diagonal, int64_t in,
                             float* upper, float* weight) {
  const int64_t i = blockIdx.y, j = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (j >= in) return;
  const float u = j < i ? 0.0f : static_cast<float>(inverse[(in - 1 - i) * in + (in - 1 - j)]);
  upper[i * in + j] = u;
  if (i == j) weight[order[i]] = diagonal[order[i]] == 0 ? 0.0f : __fdiv_rn(1.0f, __fmul_rn(u, u));
}

dim3 row_grid(int64_t in) { return {static_cast<unsigned>((in + 255) / 256), static_cast<unsigned>(in)}; }

}  // namespace

void mirror(Stream stream, float* h, int64_t in) {
  mirror_tiles<<<tile_grid(in), kTileThreads, 0, stream>>>(h, in);
  cuda_check(cudaGetLastError(), "mirroring a Hessian");
}

void gather_square(Stream stream, const float* h, const int32_t* order, int64_t in, int64_t n, float* to) {
  gather_rows<<<row_grid(n), 256, 0, stream>>>(h, order, in, n, to);
  cuda_check(cudaGetLastError(), "ordering a Hessian");
}

int64_t first_not_finite(Stream stream, const float* values, int64_t n) {
  const DeviceBuffer first(sizeof(unsigned long long));
  cuda_check(cudaMemsetAsync(first.data(), 0xff, first.size(), stream), "looking for values that are not finite");
  find_not_finite<<<1056, 256, 0, stream>>>(values, n, first.as<unsigned long long>());
  cuda_check(cudaGetLastError(), "looking for values that are not finite");
  int64_t found = 0;
  from_device(stream, &found, first.data(), sizeof found);
  return found;  // the largest unsigned number, all ones, is -1
}

void read_diagonal(Stream stream, const float* h, int64_t in, float* diagonal) {
  copy_diagonal<<<static_cast<unsigned>((in + 255) / 256), 256, 0, stream>>>(h, in, diagonal);
  cuda_check(cudaGetLastError(), "reading a Hessian's diagonal");
}

void fill_reversed(Stream stream, const float* h, const int32_t* order, int64_t in, double damping, double* lower) {
  fill_rows<<<row_grid(in), 256, 0, stream>>>(h, order, in, damping, lower);
  cuda_check(cudaGetLastError(), "ordering a Hessian");
}

void reverse_into(Stream stream, const double* inverse, const int32_t* order, const float* diagonal, int64_t in,
                  float* upper, float* weight) {
  reverse_rows<<<row_grid(in), 256, 0, stream>>>(inverse, order, diagonal, in, upper, weight);
  cuda_check(cudaGetLastError(), "ordering a factor");
}

}  // namespace fidelio::cuda
