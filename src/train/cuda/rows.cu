// These kernels do what a layer does with rows beside products and attention: sums, embeddings, norms, rotation and
// SwiGLU, forwards and backwards.
#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"
#include "train/cuda/packs.cuh"

namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kThreads = 256, kBlocks = 1056, kWarp = 32;
constexpr int64_t kPartRows = 256;  // rows that one thread adds up

unsigned blocks_for(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

__device__ __forceinline__ int64_t thread_index() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ __forceinline__ int64_t thread_count() { return int64_t{gridDim.x} * blockDim.x; }

__device__ __forceinline__ float warp_sum(float x) {
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}

template <int kWide>
__global__ void add_all(const float* from, float* to, int64_t n, bool absolute) {
  for (int64_t i = thread_index() * kWide; i < n; i += thread_count() * kWide) {
    const Pack<kWide> x = read<kWide>(from + i);
    Pack<kWide> sum = read<kWide>(to + i);
    for (int k = 0; k < kWide; ++k) sum.x[k] += absolute ? fabsf(x.x[k]) : x.x[k];
    write(sum, to + i);
  }
}

__global__ void add_bias_all(const float* bias, int64_t n, int64_t columns, float* y) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) y[i] += bias[i % columns];
}

__global__ void sum_parts_of_rows(const float* x, const float* dy, const float* inverse, int64_t rows, int64_t columns,
                                  float* parts) {
  const int64_t c = thread_index();
  if (c >= columns) return;
  const int64_t first = blockIdx.y * kPartRows, last = first + kPartRows < rows ? first + kPartRows : rows;
  float sum = 0;
  for (int64_t r = first; r < last; ++r)
    sum += dy == nullptr ? x[r * columns + c] : dy[r * columns + c] * x[r * columns + c] * inverse[r];
  parts[blockIdx.y * columns + c] = sum;
}
__global__ void add_parts(const float* parts, int64_t count, int64_t columns, float* sums) {
  const int64_t c = thread_index();
  if (c >= columns) return;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += parts[i * columns + c];
  sums[c] += sum;
}

__global__ void gather_rows(const int32_t* ids, int64_t n, const float* table, int64_t d, float* x) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) x[i] = table[ids[i / d] * d + i % d];
}

// Each thread block has one id, and its threads have the columns.
__global__ void scatter_rows(const int32_t* order, const int32_t* begin, const int32_t* ids, const float* x, int64_t d,
                             float* table) {
  float* to = table + int64_t{ids[blockIdx.x]} * d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    float sum = to[c];
    for (int32_t i = begin[blockIdx.x]; i < begin[blockIdx.x + 1]; ++i) sum += x[int64_t{order[i]} * d + c];
    to[c] = sum;
  }
}

// Each warp has one row.
template <int kWide>
__device__ float inverse_of(const float* row, int64_t columns, float eps, int lane) {
  float square = 0;
  for (int64_t c = lane * kWide; c < columns; c += kWarp * kWide) {
    const Pack<kWide> x = read<kWide>(row + c);
    for (int k = 0; k < kWide; ++k) square += x.x[k] * x.x[k];
  }
  return 1.0f / sqrtf(warp_sum(square) / static_cast<float>(columns) + eps);
}
template <int kWide, typename T>
__global__ void norm_rows(const float* x, const float* weight, float eps, int64_t rows, int64_t columns, T* y) {
  const int64_t r = thread_index() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (r >= rows) return;
  const float* row = x + r * columns;
  const float inverse = inverse_of<kWide>(row, columns, eps, lane);
  for (int64_t c = lane * kWide; c < columns; c += kWarp * kWide) {
    Pack<kWide> out = read<kWide>(row + c);
    const Pack<kWide> w = read<kWide>(weight + c);
    for (int k = 0; k < kWide; ++k) out.x[k] = out.x[k] * inverse * w.x[k];
    write(out, y + r * columns + c);
  }
}
template <int kWide>
__global__ void norm_rows_backward(const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                                   const float* dy, float* dx, bool add, float* inverses) {
  const int64_t r = thread_index() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (r >= rows) return;
  const float *row = x + r * columns, *g = dy + r * columns;
  float square = 0, along = 0;
  for (int64_t c = lane * kWide; c < columns; c += kWarp * kWide) {
    const Pack<kWide> value = read<kWide>(row + c), w = read<kWide>(weight + c), by = read<kWide>(g + c);
    for (int k = 0; k < kWide; ++k) {
      square += value.x[k] * value.x[k];
      along += w.x[k] * by.x[k] * value.x[k];
    }
  }
  const float inverse = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(columns) + eps);
  if (lane == 0) inverses[r] = inverse;
  const float back = inverse * inverse * inverse / static_cast<float>(columns) * warp_sum(along);
  float* out = dx + r * columns;
  for (int64_t c = lane * kWide; c < columns; c += kWarp * kWide) {
    const Pack<kWide> value = read<kWide>(row + c), w = read<kWide>(weight + c), by = read<kWide>(g + c);
    Pack<kWide> to{};
    if (add) to = read<kWide>(out + c);
    for (int k = 0; k < kWide; ++k) to.x[k] += inverse * w.x[k] * by.x[k] - back * value.x[k];
    write(to, out + c);
  }
}

// Each thread block has one row.
__global__ void rope_rows(const int32_t* positions, const float* cosine, const float* sine, int heads, int half,
                          float sign, float* x) {
  const int64_t row = blockIdx.x, angles = int64_t{positions[row]} * half;
  for (int i = static_cast<int>(threadIdx.x); i < heads * half; i += static_cast<int>(blockDim.x)) {
    const int head = i / half, pair = i - head * half;
    float *a = x + (row * heads + head) * 2 * half + pair, *b = a + half;
    const float c = cosine[angles + pair], s = sign * sine[angles + pair], turned = *a * c - *b * s;
    *b = *b * c + *a * s;
    *a = turned;
  }
}

template <int kWide, typename T>
__global__ void swiglu_all(const float* gate, const float* up, int64_t n, T* y) {
  for (int64_t i = thread_index() * kWide; i < n; i += thread_count() * kWide) {
    const Pack<kWide> g = read<kWide>(gate + i), u = read<kWide>(up + i);
    Pack<kWide> out;
    for (int k = 0; k < kWide; ++k) out.x[k] = g.x[k] / (1.0f + expf(-g.x[k])) * u.x[k];
    write(out, y + i);
  }
}
// dgate and dup may overwrite gate and up.
template <int kWide, typename T>
__global__ void swiglu_all_backward(const float* gate, const float* up, int64_t n, const float* dy, T* dgate, T* dup) {
  for (int64_t i = thread_index() * kWide; i < n; i += thread_count() * kWide) {
    Pack<kWide> g = read<kWide>(gate + i), u = read<kWide>(up + i);
    const Pack<kWide> by = read<kWide>(dy + i);
    for (int k = 0; k < kWide; ++k) {
      const float x = g.x[k], s = 1.0f / (1.0f + expf(-x));
      g.x[k] = u.x[k] * by.x[k] * s * (1.0f + x * (1.0f - s));
      u.x[k] = x * s * by.x[k];
    }
    write(g, dgate + i), write(u, dup + i);
  }
}

// Returns the sum over a block's threads, added up as a tree. Only thread 0 has it.
__device__ double block_sum(double x) {
  __shared__ double part[kThreads];
  part[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  return part[0];
}
__global__ void difference_all(const float* target, float scale, int64_t n, float* x, double* parts) {
  double sum = 0;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    const float by = x[i] - target[i];
    sum += static_cast<double>(by) * by;
    x[i] = scale * by;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
__global__ void square_all(const float* x, const float* unit, int64_t n, double* parts) {
  double sum = 0;
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    const float value = unit == nullptr ? x[i] : x[i] * unit[i];
    sum += static_cast<double>(value) * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
__global__ void add_parts_in_order(const double* parts, double factor, double* to) {
  double sum = 0;
  for (int i = 0; i < kSumParts / kThreads; ++i) sum += parts[threadIdx.x * (kSumParts / kThreads) + i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *to += factor * sum;
}

}  // namespace

void add(Stream s, const float* from, float* to, int64_t n, bool absolute) {
  in_packs(
      n, [&](auto wide) { add_all<decltype(wide)::value><<<kBlocks, kThreads, 0, s>>>(from, to, n, absolute); }, from,
      to);
  cuda_check(cudaGetLastError(), "adding");
}

void add_bias(Stream s, const float* bias, int64_t rows, int64_t columns, float* y) {
  add_bias_all<<<kBlocks, kThreads, 0, s>>>(bias, rows * columns, columns, y);
  cuda_check(cudaGetLastError(), "adding a bias");
}

int64_t row_parts(int64_t rows) { return (rows + kPartRows - 1) / kPartRows; }

void sum_rows(Stream s, const float* x, const float* dy, const float* inverse, int64_t rows, int64_t columns,
              float* parts, float* sums) {
  const dim3 grid(blocks_for(columns, kThreads), static_cast<unsigned>(row_parts(rows)));
  sum_parts_of_rows<<<grid, kThreads, 0, s>>>(x, dy, inverse, rows, columns, parts);
  add_parts<<<blocks_for(columns, kThreads), kThreads, 0, s>>>(parts, row_parts(rows), columns, sums);
  cuda_check(cudaGetLastError(), "summing rows");
}

void gather(Stream s, const int32_t* ids, int64_t rows, const float* table, int64_t d, float* x) {
  gather_rows<<<kBlocks, kThreads, 0, s>>>(ids, rows * d, table, d, x);
  cuda_check(cudaGetLastError(), "looking up rows of the embedding");
}

void scatter(Stream s, const int32_t* order, const int32_t* begin, const int32_t* distinct_ids, int64_t distinct,
             const float* x, int64_t d, float* table) {
  scatter_rows<<<static_cast<unsigned>(distinct), kThreads, 0, s>>>(order, begin, distinct_ids, x, d, table);
  cuda_check(cudaGetLastError(), "adding to rows of the embedding");
}

namespace {

__nv_bfloat16* bf16(uint16_t* x) { return reinterpret_cast<__nv_bfloat16*>(x); }

template <typename T>
void norm_to(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns, T* y) {
  in_packs(
      columns,
      [&](auto wide) {
        norm_rows<decltype(wide)::value>
            <<<blocks_for(rows * kWarp, kThreads), kThreads, 0, s>>>(x, weight, eps, rows, columns, y);
      },
      x, weight, y);
  cuda_check(cudaGetLastError(), "a norm");
}
template <typename T>
void swiglu_to(Stream s, const float* gate, const float* up, int64_t n, T* y) {
  in_packs(
      n, [&](auto wide) { swiglu_all<decltype(wide)::value><<<kBlocks, kThreads, 0, s>>>(gate, up, n, y); }, gate, up,
      y);
  cuda_check(cudaGetLastError(), "swiglu");
}
template <typename T>
void swiglu_backward_to(Stream s, const float* gate, const float* up, int64_t n, const float* dy, T* dgate, T* dup) {
  in_packs(
      n,
      [&](auto wide) {
        swiglu_all_backward<decltype(wide)::value><<<kBlocks, kThreads, 0, s>>>(gate, up, n, dy, dgate, dup);
      },
      gate, up, dy, dgate, dup);
  cuda_check(cudaGetLastError(), "swiglu's backward");
}

}  // namespace

void norm(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns, float* y) {
  norm_to(s, x, weight, eps, rows, columns, y);
}
void norm_bf16(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns, uint16_t* y) {
  norm_to(s, x, weight, eps, rows, columns, bf16(y));
}
void swiglu(Stream s, const float* gate, const float* up, int64_t n, float* y) { swiglu_to(s, gate, up, n, y); }
void swiglu_bf16(Stream s, const float* gate, const float* up, int64_t n, uint16_t* y) {
  swiglu_to(s, gate, up, n, bf16(y));
}
void swiglu_backward(Stream s, float* gate, float* up, int64_t n, const float* dy) {
  swiglu_backward_to(s, gate, up, n, dy, gate, up);
}
void swiglu_backward_bf16(Stream s, const float* gate, const float* up, int64_t n, const float* dy, uint16_t* dgate,
                          uint16_t* dup) {
  swiglu_backward_to(s, gate, up, n, dy, bf16(dgate), bf16(dup));
}

void norm_backward(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                   const float* dy, float* dx, bool add, float* inverse) {
  in_packs(
      columns,
      [&](auto wide) {
        norm_rows_backward<decltype(wide)::value><<<blocks_for(rows * kWarp, kThreads), kThreads, 0, s>>>(
            x, weight, eps, rows, columns, dy, dx, add, inverse);
      },
      x, weight, dy, dx);
  cuda_check(cudaGetLastError(), "a norm's backward");
}

void rope(Stream s, const int32_t* positions, const float* cosine, const float* sine, int64_t rows, int64_t heads,
          int64_t e, bool back, float* x) {
  rope_rows<<<static_cast<unsigned>(rows), kThreads, 0, s>>>(positions, cosine, sine, static_cast<int>(heads),
                                                             static_cast<int>(e / 2), back ? -1.0f : 1.0f, x);
  cuda_check(cudaGetLastError(), "rotating");
}

void difference(Stream s, const float* target, float scale, int64_t n, float* x, double* parts) {
  difference_all<<<kSumParts, kThreads, 0, s>>>(target, scale, n, x, parts);
  cuda_check(cudaGetLastError(), "a difference");
}

void sum_of_squares(Stream s, const float* x, const float* unit, int64_t n, double* parts) {
  square_all<<<kSumParts, kThreads, 0, s>>>(x, unit, n, parts);
  cuda_check(cudaGetLastError(), "a sum of squares");
}

void add_sum(Stream s, const double* parts, double factor, double* to) {
  add_parts_in_order<<<1, kThreads, 0, s>>>(parts, factor, to);
  cuda_check(cudaGetLastError(), "adding up");
}

}  // namespace fidelio::train::gpu
