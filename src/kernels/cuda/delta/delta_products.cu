// This file computes what the chunks of a gated delta net need before the state is known (delta_chunks.cuh). A thread
// block has a chunk and a head.
#include "kernels/cuda/delta/delta_chunks.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kSquare = 68;  // the floats from row to row of a 64 x 64 matrix in shared memory

struct ProductScratch {
  alignas(16) float tile[2][kDeltaChunk * kAcross];
  float matrix[kDeltaChunk * kSquare], inverse[kDeltaChunk * kSquare];
  double logs[kDeltaChunk];
  float written[kDeltaChunk], q_factor[kDeltaChunk], k_factor[kDeltaChunk], k_share[kDeltaChunk];
};

// Computes the shares that are written, and the sums of the decays' logarithms.
__device__ void sum_decays(const DeltaRule& d, int row, int head, ProductScratch& m) {
  const int lane = threadIdx.x;
  if (lane >= 32) return;
  double sum[2];
  for (int i = 0; i < 2; ++i) {
    const int at = lane + 32 * i;
    m.written[at] = sigmoid(d.b[int64_t{row + at} * d.heads + head]);
    sum[i] = log_decay(d, row + at, head);
  }
  for (int apart = 1; apart < 32; apart *= 2)
    for (int i = 0; i < 2; ++i) {
      const double before = __shfl_up_sync(~0u, sum[i], apart);
      if (lane >= apart) sum[i] += before;
    }
  sum[1] += __shfl_sync(~0u, sum[0], 31);
  for (int i = 0; i < 2; ++i) m.logs[lane + 32 * i] = sum[i];
}

// Computes the factors of the rows' q and k. Each warp has eight rows.
__device__ void measure_rows(const DeltaRule& d, int row, int head, ProductScratch& m) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = d.heads / d.group * d.key_dim;
  const float* first = d.x + int64_t{row} * d.channels + head / d.group * d.key_dim;
#pragma unroll
  for (int i = 0; i < kDeltaChunk / kDeltaWarps; ++i) {
    const int at = warp * (kDeltaChunk / kDeltaWarps) + i;
    const float* q = first + int64_t{at} * d.channels;
    float q_squares = 0, k_squares = 0;
    for (int key = lane; key < d.key_dim; key += 32) {
      q_squares = fmaf(q[key], q[key], q_squares);
      k_squares = fmaf(q[keys + key], q[keys + key], k_squares);
    }
    q_squares = sum_of_lanes(q_squares), k_squares = sum_of_lanes(k_squares);
    if (lane > 0) continue;
    m.q_factor[at] = __fmul_rn(unit_factor(q_squares), __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d.key_dim))));
    m.k_factor[at] = unit_factor(k_squares);
  }
}

// Computes A into m.matrix, and P into the scratch. A warp has 16 rows by 32 columns of both.
__device__ void compare_rows(const DeltaRule& d, int row, int head, float* scores, ProductScratch& m) {
  const int warp = threadIdx.x / 32, top = warp % 4 * 16, left = warp / 4 * 32, keys = d.heads / d.group * d.key_dim,
            key_head = head / d.group * d.key_dim;
  const bool aligned = rows_are_aligned(d);
  const float* x = d.x + int64_t{row} * d.channels + key_head;
  ProductTile of_keys[4], of_queries[4];
  for (int first = 0; first < d.key_dim; first += kTileColumns) {
    TileRows k, q;
    k.read(x + keys, d.channels, first, d.key_dim, aligned);
    q.read(x, d.channels, first, d.key_dim, aligned);
    __syncthreads();
    k.store(m.tile[0], kAlong), q.store(m.tile[1], kAlong);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kTileColumns; step += 8) {
      const RowsFragment a([&](int r, int c) { return m.tile[0][(top + r) * kAlong + step + c]; }),
          b([&](int r, int c) { return m.tile[1][(top + r) * kAlong + step + c]; });
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (left + 8 * n > top + 15) continue;  // above the diagonal
        const ColumnsFragment c([&](int r, int c) { return m.tile[0][(left + 8 * n + c) * kAlong + step + r]; });
        of_keys[n].add(a, c), of_queries[n].add(b, c);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = top + ProductTile::row(i), c = left + 8 * n + ProductTile::column(i);
      const float share = r >= c ? __fmul_rn(expf(static_cast<float>(m.logs[r] - m.logs[c])), m.k_factor[c]) : 0;
      const float factor = __fmul_rn(__fmul_rn(m.written[r], m.k_factor[r]), share);
      m.matrix[r * kSquare + c] = r > c ? __fmul_rn(factor, of_keys[n].value(i)) : 0;
      scores[r * kDeltaChunk + c] = r >= c ? __fmul_rn(__fmul_rn(m.q_factor[r], share), of_queries[n].value(i)) : 0;
    }
}

// Computes the lower left block of an inverse, `size` rows from row and column `at` on, as -T2 A T1, where T1 and T2
// are the inverses of the blocks on the diagonal. Thread i of `threads` takes every threads-th element.
__device__ void join_inverses(int at, int size, int i, int threads, ProductScratch& m) {
  const auto dot = [&](const float* row, const float* column) {
    float sum = 0;
    for (int j = 0; j < size; ++j) sum = fmaf(row[j], column[j * kSquare], sum);
    return sum;
  };
  float* half = m.tile[0] + at * kTileColumns;  // A T1
  const float *a = m.matrix + (at + size) * kSquare + at, *t1 = m.inverse + at * kSquare + at,
              *t2 = m.inverse + (at + size) * kSquare + at + size;
  for (int e = i; e < size * size; e += threads) half[e] = dot(a + e / size * kSquare, t1 + e % size);
  __syncthreads();
  for (int e = i; e < size * size; e += threads) {
    float sum = 0;
    for (int j = 0; j < size; ++j) sum = fmaf(t2[e / size * kSquare + j], half[j * size + e % size], sum);
    m.inverse[(at + size + e / size) * kSquare + at + e % size] = -sum;
  }
  __syncthreads();
}

// Computes T = (I + A)^-1: four blocks on the diagonal by substitution, then two of 32 rows, then all.
__device__ void invert(ProductScratch& m) {
  for (int i = threadIdx.x; i < kDeltaChunk * kSquare; i += kDeltaThreads) m.inverse[i] = 0;
  __syncthreads();
  if (threadIdx.x < kDeltaChunk) {
    const int first = threadIdx.x / 16 * 16, column = threadIdx.x % 16;
    const float* a = m.matrix + first * kSquare + first;
    float t[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      t[r] = r == column ? 1 : 0;
#pragma unroll
      for (int c = 0; c < r; ++c) t[r] = fmaf(-a[r * kSquare + c], t[c], t[r]);
      m.inverse[(first + r) * kSquare + first + column] = t[r];
    }
  }
  __syncthreads();
  constexpr int kHalf = kDeltaThreads / 2;
  join_inverses(static_cast<int>(threadIdx.x) / kHalf * 32, 16, threadIdx.x % kHalf, kHalf, m);
  join_inverses(0, 32, threadIdx.x, kDeltaThreads, m);
}

// Multiplies T by 32 columns of 64 rows, which are in `tile`. A warp has 16 rows by 16 columns.
template <typename Store>
__device__ __forceinline__ void multiply_inverse(const ProductScratch& m, const Store& store) {
  const int warp = threadIdx.x / 32, top = warp % 4 * 16, left = warp / 4 * 16;
  ProductTile y[2];
  for (int step = 0; step < top + 16; step += 8) {
    const RowsFragment a([&](int r, int c) { return m.inverse[(top + r) * kSquare + step + c]; });
#pragma unroll
    for (int n = 0; n < 2; ++n)
      y[n].add(a, ColumnsFragment([&](int r, int c) { return m.tile[0][(step + r) * kAcross + left + 8 * n + c]; }));
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) store(top + ProductTile::row(i), left + 8 * n + ProductTile::column(i), y[n].value(i));
}

__device__ void write_factors(const ProductScratch& m, float* factors) {
  const int i = threadIdx.x;
  const double total = m.logs[kDeltaChunk - 1];
  if (i < kDeltaChunk) {
    factors[kRead + i] = __fmul_rn(m.q_factor[i], expf(static_cast<float>(m.logs[i])));
    factors[kWrite + i] = __fmul_rn(m.k_factor[i], expf(static_cast<float>(total - m.logs[i])));
    factors[kUnit + i] = m.k_factor[i];
    reinterpret_cast<double*>(factors + kLogs)[i] = m.logs[i];
  }
  if (i == 0) factors[kTotal] = expf(static_cast<float>(total));
}

__global__ void __launch_bounds__(kDeltaThreads, 2)
    prepare_chunks(const __grid_constant__ DeltaRows rows, const __grid_constant__ DeltaRule d) {
  extern __shared__ __align__(16) unsigned char chunk_memory[];
  ProductScratch& m = *reinterpret_cast<ProductScratch*>(chunk_memory);
  begin_kernel();
  const int head = blockIdx.x, row = rows.chunk_rows[blockIdx.y], padded = padded_keys(d.key_dim);
  const int64_t chunk = chunk_of(d, blockIdx.y, head);
  sum_decays(d, row, head, m);
  measure_rows(d, row, head, m);
  compare_rows(d, row, head, d.scores + chunk * kDeltaChunk * kDeltaChunk, m);
  write_factors(m, d.factors + chunk * kFactors);
  if (threadIdx.x < kDeltaChunk)
    m.k_share[threadIdx.x] = __fmul_rn(__fmul_rn(m.written[threadIdx.x], m.k_factor[threadIdx.x]),
                                       expf(static_cast<float>(m.logs[threadIdx.x])));
  __syncthreads();
  invert(m);
  const int keys = d.heads / d.group * d.key_dim;
  const float *k = d.x + int64_t{row} * d.channels + keys + head / d.group * d.key_dim,
              *v = d.x + int64_t{row} * d.channels + 2 * keys + head * d.value_dim;
  const bool aligned = rows_are_aligned(d);
  const auto multiply = [&](const float* from, int first, int end, const float* factors, const auto& store) {
    TileRows tile;
    tile.read(from, d.channels, first, end, aligned);
    tile.scale(factors);
    __syncthreads();
    tile.store(m.tile[0], kAcross);
    __syncthreads();
    multiply_inverse(m, store);
  };
  float* w = d.products + chunk * kDeltaChunk * padded;
  for (int first = 0; first < padded; first += kTileColumns)
    multiply(k, first, d.key_dim, m.k_share,
             [&](int r, int c, float value) { w[int64_t{r} * padded + first + c] = value; });
  float* u = d.y + (int64_t{row} * d.heads + head) * d.value_dim;
  for (int first = 0; first < d.value_dim; first += kTileColumns)
    multiply(v, first, d.value_dim, m.written, [&](int r, int c, float value) {
      if (first + c < d.value_dim) u[int64_t{r} * d.heads * d.value_dim + first + c] = value;
    });
}

}  // namespace

void chunk_products(Stream stream, const DeltaRows& rows, const DeltaRule& d) {
  constexpr size_t kBytes = sizeof(ProductScratch);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(prepare_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  cuda_check(allowed, "allowing chunks of a delta rule their shared memory");
  launch("chunks of a delta rule", stream, dim3(static_cast<unsigned>(d.heads), static_cast<unsigned>(rows.chunks)),
         kDeltaThreads, kBytes, prepare_chunks, rows, d);
}

}  // namespace fidelio::cuda
