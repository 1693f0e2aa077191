// Attention and its backward in tiles of 32 rows by 32 keys, in FP32: nothing of size n^2 is held. A thread block of 128
// has a tile; thread t has row t / 4 of it and every fourth column from t % 4 on.
#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"

namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kThreads = 128, kEach = 4;  // threads of a row
constexpr int kMostColumns = 64;          // columns a thread holds: head dims up to 256

// One head of one sequence.
struct Place {
  int64_t first;
  int n, head, shared;
  Heads a;
  __device__ int64_t q_at(int i) const { return ((first + i) * a.h + head) * a.e; }
  __device__ int64_t kv_at(int j) const { return ((first + j) * a.hk + shared) * a.e; }
  __device__ int64_t row_at(int i) const { return (first + i) * a.h + head; }
  __device__ int first_key(int i) const { return a.window > 0 && i - a.window + 1 > 0 ? i - a.window + 1 : 0; }
  __device__ bool sees(int i, int j) const { return i < n && j <= i && j >= first_key(i); }
};

// Rows [start, start + 32) of a matrix whose rows lie `stride` apart into shared memory, zeros behind `n`; rows there
// are e + 1 apart, so that a column's 32 values lie in 32 banks.
__device__ void load_tile(const float* from, int64_t stride, int start, int n, int e, float* to) {
  for (int i = threadIdx.x; i < kTile * e; i += kThreads) {
    const int row = i / e, c = i % e;
    to[row * (e + 1) + c] = start + row < n ? from[row * stride + c] : 0.0f;
  }
}
__device__ float dot_rows(const float* a, const float* b, int e) {
  float sum = 0;
  for (int c = 0; c < e; ++c) sum += a[c] * b[c];
  return sum;
}
// Of the four threads of a row.
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__global__ void attend_tiles(const Tile* tiles, Heads a, const float* q, const float* k, const float* v, float* out,
                             float* lse) {
  extern __shared__ float memory[];
  const int e = a.e, line = e + 1, r = threadIdx.x / kEach, part = threadIdx.x % kEach;
  float *tq = memory, *tk = tq + kTile * line, *tv = tk + kTile * line, *p = tv + kTile * line;  // p (32, 33)
  const Tile tile = tiles[blockIdx.x];
  const Place at{tile.first, tile.n, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.y) / (a.h / a.hk), a};
  const int i = tile.start + r, end = min(tile.n, tile.start + kTile);
  load_tile(q + at.q_at(tile.start), int64_t{a.h} * e, tile.start, tile.n, e, tq);
  float top = -INFINITY, sum = 0, result[kMostColumns];
  for (int c = 0; c < e / kEach; ++c) result[c] = 0;
  for (int j = at.first_key(tile.start) / kTile * kTile; j < end; j += kTile) {
    __syncthreads();
    load_tile(k + at.kv_at(j), int64_t{a.hk} * e, j, tile.n, e, tk);
    load_tile(v + at.kv_at(j), int64_t{a.hk} * e, j, tile.n, e, tv);
    __syncthreads();
    float score[kTile / kEach], high = -INFINITY;
    for (int c = 0; c < kTile / kEach; ++c) {
      const int key = c * kEach + part;
      score[c] = at.sees(i, j + key) ? a.scale * dot_rows(tq + r * line, tk + key * line, e) : -INFINITY;
      high = fmaxf(high, score[c]);
    }
    const float now = fmaxf(top, row_max(high)), keep = now == -INFINITY ? 1.0f : expf(top - now);
    float added = 0;
    for (int c = 0; c < kTile / kEach; ++c) {
      const float x = now == -INFINITY ? 0.0f : expf(score[c] - now);
      p[r * (kTile + 1) + c * kEach + part] = x;
      added += x;
    }
    sum = sum * keep + row_sum(added), top = now;
    __syncwarp();
    for (int c = 0; c < e / kEach; ++c) {
      float x = 0;
      for (int key = 0; key < kTile; ++key) x += p[r * (kTile + 1) + key] * tv[key * line + c * kEach + part];
      result[c] = result[c] * keep + x;
    }
  }
  if (i >= tile.n) return;
  for (int c = 0; c < e / kEach; ++c) out[at.q_at(i) + c * kEach + part] = result[c] / sum;
  if (part == 0) lse[at.row_at(i)] = top + logf(sum);
}

// along (n, h) = sum over e of dout out.
__global__ void along_rows(const float* dout, const float* out, int64_t rows, int e, float* along) {
  const int64_t row = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int c = 0; c < e; ++c) sum += dout[row * e + c] * out[row * e + c];
  along[row] = sum;
}

// p and ds of this thread's keys of a tile pair, into shared memory (32 queries, 33).
__device__ void score_gradients(const Place& at, int i0, int j0, const float* tq, const float* tdo, const float* tk,
                                const float* tv, const float* lse, const float* along, float* p, float* ds) {
  const int e = at.a.e, line = e + 1, r = threadIdx.x / kEach, part = threadIdx.x % kEach, i = i0 + r;
  for (int c = 0; c < kTile / kEach; ++c) {
    const int key = c * kEach + part;
    float probability = 0, gradient = 0;
    if (at.sees(i, j0 + key)) {
      probability = expf(at.a.scale * dot_rows(tq + r * line, tk + key * line, e) - lse[at.row_at(i)]);
      gradient = probability * (dot_rows(tdo + r * line, tv + key * line, e) - along[at.row_at(i)]) * at.a.scale;
    }
    p[r * (kTile + 1) + key] = probability;
    ds[r * (kTile + 1) + key] = gradient;
  }
}

// dq of a tile of queries.
__global__ void query_gradients(const Tile* tiles, Heads a, const float* q, const float* k, const float* v,
                                const float* lse, const float* along, const float* dout, float* dq) {
  extern __shared__ float memory[];
  const int e = a.e, line = e + 1, r = threadIdx.x / kEach, part = threadIdx.x % kEach;
  float *tq = memory, *tdo = tq + kTile * line, *tk = tdo + kTile * line, *tv = tk + kTile * line;
  float *p = tv + kTile * line, *ds = p + kTile * (kTile + 1);
  const Tile tile = tiles[blockIdx.x];
  const Place at{tile.first, tile.n, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.y) / (a.h / a.hk), a};
  load_tile(q + at.q_at(tile.start), int64_t{a.h} * e, tile.start, tile.n, e, tq);
  load_tile(dout + at.q_at(tile.start), int64_t{a.h} * e, tile.start, tile.n, e, tdo);
  float result[kMostColumns];
  for (int c = 0; c < e / kEach; ++c) result[c] = 0;
  for (int j = at.first_key(tile.start) / kTile * kTile; j < min(tile.n, tile.start + kTile); j += kTile) {
    __syncthreads();
    load_tile(k + at.kv_at(j), int64_t{a.hk} * e, j, tile.n, e, tk);
    load_tile(v + at.kv_at(j), int64_t{a.hk} * e, j, tile.n, e, tv);
    __syncthreads();
    score_gradients(at, tile.start, j, tq, tdo, tk, tv, lse, along, p, ds);
    __syncwarp();
    for (int c = 0; c < e / kEach; ++c)
      for (int key = 0; key < kTile; ++key) result[c] += ds[r * (kTile + 1) + key] * tk[key * line + c * kEach + part];
  }
  if (tile.start + r >= tile.n) return;
  for (int c = 0; c < e / kEach; ++c) dq[at.q_at(tile.start + r) + c * kEach + part] = result[c];
}

// dk and dv of a tile of keys, from all query heads that share them.
__global__ void key_gradients(const Tile* tiles, Heads a, const float* q, const float* k, const float* v,
                              const float* lse, const float* along, const float* dout, float* dk, float* dv) {
  extern __shared__ float memory[];
  const int e = a.e, line = e + 1, r = threadIdx.x / kEach, part = threadIdx.x % kEach, each = a.h / a.hk;
  float *tq = memory, *tdo = tq + kTile * line, *tk = tdo + kTile * line, *tv = tk + kTile * line;
  float *p = tv + kTile * line, *ds = p + kTile * (kTile + 1);
  const Tile tile = tiles[blockIdx.x];
  Place at{tile.first, tile.n, 0, static_cast<int>(blockIdx.y), a};
  load_tile(k + at.kv_at(tile.start), int64_t{a.hk} * e, tile.start, tile.n, e, tk);
  load_tile(v + at.kv_at(tile.start), int64_t{a.hk} * e, tile.start, tile.n, e, tv);
  float of_k[kMostColumns], of_v[kMostColumns];
  for (int c = 0; c < e / kEach; ++c) of_k[c] = of_v[c] = 0;
  const int last = a.window > 0 ? min(tile.n, tile.start + kTile - 1 + a.window) : tile.n;  // no query behind sees them
  for (int head = 0; head < each; ++head) {
    at.head = at.shared * each + head;
    for (int i = tile.start; i < last; i += kTile) {
      __syncthreads();
      load_tile(q + at.q_at(i), int64_t{a.h} * e, i, tile.n, e, tq);
      load_tile(dout + at.q_at(i), int64_t{a.h} * e, i, tile.n, e, tdo);
      __syncthreads();
      score_gradients(at, i, tile.start, tq, tdo, tk, tv, lse, along, p, ds);
      __syncthreads();
      for (int c = 0; c < e / kEach; ++c)
        for (int query = 0; query < kTile; ++query) {
          of_k[c] += ds[query * (kTile + 1) + r] * tq[query * line + c * kEach + part];
          of_v[c] += p[query * (kTile + 1) + r] * tdo[query * line + c * kEach + part];
        }
    }
  }
  if (tile.start + r >= tile.n) return;
  for (int c = 0; c < e / kEach; ++c) {
    dk[at.kv_at(tile.start + r) + c * kEach + part] = of_k[c];
    dv[at.kv_at(tile.start + r) + c * kEach + part] = of_v[c];
  }
}

size_t shared_bytes(const Heads& a, int tiles, int scores) {
  return sizeof(float) * static_cast<size_t>(tiles * kTile * (a.e + 1) + scores * kTile * (kTile + 1));
}
template <typename Kernel>
void allow(Kernel* kernel, size_t bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "asking for shared memory");
}

}  // namespace

void attend(Stream s, const Tile* tiles, int64_t count, const Heads& a, const float* q, const float* k, const float* v,
            float* out, float* lse) {
  const size_t bytes = shared_bytes(a, 3, 1);
  allow(attend_tiles, bytes);
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(a.h));
  attend_tiles<<<grid, kThreads, bytes, s>>>(tiles, a, q, k, v, out, lse);
  cuda_check(cudaGetLastError(), "attention");
}

void attend_backward(Stream s, const Tile* tiles, int64_t count, int64_t rows, const Heads& a, const float* q,
                     const float* k, const float* v, const float* out, const float* lse, const float* dout,
                     float* along, float* dq, float* dk, float* dv) {
  const size_t bytes = shared_bytes(a, 4, 2);
  allow(query_gradients, bytes), allow(key_gradients, bytes);
  const int64_t heads = rows * a.h;
  along_rows<<<static_cast<unsigned>((heads + 255) / 256), 256, 0, s>>>(dout, out, heads, a.e, along);
  const dim3 queries(static_cast<unsigned>(count), static_cast<unsigned>(a.h)),
      keys(static_cast<unsigned>(count), static_cast<unsigned>(a.hk));
  query_gradients<<<queries, kThreads, bytes, s>>>(tiles, a, q, k, v, lse, along, dout, dq);
  key_gradients<<<keys, kThreads, bytes, s>>>(tiles, a, q, k, v, lse, along, dout, dk, dv);
  cuda_check(cudaGetLastError(), "attention's backward");
}

}  // namespace fidelio::train::gpu
