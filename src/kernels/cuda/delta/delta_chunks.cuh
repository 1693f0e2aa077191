// This file has what the kernels for chunks of a gated delta net share (delta_products.cu and delta_chunks.cu).
//
// The 64 rows of a chunk are computed together (Yang et al., arXiv 2412.06464). Let q and k be the unit vectors, s the
// shares that are written, c_i the sum of the decays' logarithms up to row i, and d_il = e^(c_i - c_l) for l <= i,
// which is never above 1. With a head's state S before the chunk:
//
//   A_il = s_i (k_i k_l) d_il for l < i    T = (I + A)^-1       scores P_il = (q_i k_l) d_il for l <= i
//   W = T diag(s e^c) K                    U = T diag(s) V
//   N = U - W S                            O = diag(e^c) Q S + P N
//   S = e^(c_63) S + (diag(e^(c_63 - c)) K)^T N
//
// chunk_products computes W, U and P for all chunks at once, and walk_chunks takes S through the chunks of a segment.
// U lies where O will be. Scratch, for each chunk and head in this order:
//
//   products  W [64][key columns, rounded up to 32]
//   scores    P [64][64], zeros above the diagonal
//   factors   kRead: the factors of q in Q S;  kWrite: those of k in the new state;  kUnit: those of k to unit length;
//             kTotal: e^(c_63);  kLogs: c, in double
//
// q and k themselves are read from where they are, without their factors.
//
// Products are made by the matrix units from numbers of 11 bits. A float is the sum of two of these and a rest of about
// 2^-22 of it, and of the four products of two floats the smallest is left out. The larger products and the others are
// summed by themselves, so that the units' truncations are of their size. The order of all sums is fixed.
#pragma once
#include "kernels/cuda/delta/delta_rows.cuh"

namespace fidelio::cuda {

constexpr int kTileColumns = 32;
constexpr int kRead = 0, kWrite = 64, kUnit = 128, kTotal = 192, kLogs = 256, kFactors = 384;
// The floats from row to row of a tile. Where the rows of a fragment are rows of the tile, 4 more than a multiple of 32
// keep lanes on different banks; where they are columns, 8 more.
constexpr int kAlong = 36, kAcross = 40;

__host__ __device__ constexpr int padded_keys(int key_dim) {
  return (key_dim + kTileColumns - 1) / kTileColumns * kTileColumns;
}
__device__ __forceinline__ int64_t chunk_of(const DeltaRule& d, int chunk, int head) {
  return int64_t{chunk} * d.heads + head;
}

// A Halved is a float as two numbers of 11 bits. A NaN stays one in the second.
struct Halved {
  uint32_t high, low;
  __device__ __forceinline__ explicit Halved(float x) {
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high)) & 0xffffe000u;
  }
};
// Rows is 16 x 8 of the left matrix of a product: at(row, column) returns an element. Columns is 8 x 8 of the right
// one.
struct RowsFragment {
  uint32_t high[4], low[4];
  template <typename At>
  __device__ __forceinline__ explicit RowsFragment(const At& at) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Halved x(at(g + i % 2 * 8, t + i / 2 * 4));
      high[i] = x.high, low[i] = x.low;
    }
  }
};
struct ColumnsFragment {
  uint32_t high[2], low[2];
  template <typename At>
  __device__ __forceinline__ explicit ColumnsFragment(const At& at) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Halved x(at(t + i * 4, g));
      high[i] = x.high, low[i] = x.low;
    }
  }
};
// A ProductTile is 16 x 8 of a product. Element i of lane 4 g + t is in row(i), column(i).
struct ProductTile {
  float large[4] = {}, small[4] = {};
  static __device__ __forceinline__ int row(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
  static __device__ __forceinline__ int column(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }
  __device__ __forceinline__ void add(const RowsFragment& a, const ColumnsFragment& b) {
    ptx::mma_tf32(small, a.low, b.high[0], b.high[1]);
    ptx::mma_tf32(small, a.high, b.low[0], b.low[1]);
    ptx::mma_tf32(large, a.high, b.high[0], b.high[1]);
  }
  __device__ __forceinline__ float value(int i) const { return __fadd_rn(large[i], small[i]); }
};

// Returns four columns of a row, with zeros from column `end` on. `aligned` says that rows begin at 16 bytes and that 4
// divides `end`.
__device__ __forceinline__ float4 four_of(const float* row, int column, int end, bool aligned) {
  if (aligned) return column < end ? *reinterpret_cast<const float4*>(row + column) : float4{0, 0, 0, 0};
  const auto at = [&](int i) { return column + i < end ? row[column + i] : 0.0f; };
  return {at(0), at(1), at(2), at(3)};
}
// A TileRows is a thread's share of a tile of 64 rows by 32 columns, on its way to shared memory.
struct TileRows {
  float4 v[2];
  static __device__ __forceinline__ int row(int i) { return static_cast<int>(threadIdx.x) / 8 + i * 32; }
  static __device__ __forceinline__ int column() { return static_cast<int>(threadIdx.x) % 8 * 4; }
  // Reads columns [first, first + 32) of 64 rows that are `apart` floats apart.
  __device__ __forceinline__ void read(const float* rows, int64_t apart, int first, int end, bool aligned) {
#pragma unroll
    for (int i = 0; i < 2; ++i) v[i] = four_of(rows + row(i) * apart, first + column(), end, aligned);
  }
  // Multiplies rows by factors.
  __device__ __forceinline__ void scale(const float* factors) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float f = factors[row(i)];
      v[i] = {__fmul_rn(v[i].x, f), __fmul_rn(v[i].y, f), __fmul_rn(v[i].z, f), __fmul_rn(v[i].w, f)};
    }
  }
  __device__ __forceinline__ void store(float* tile, int apart) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) *reinterpret_cast<float4*>(tile + row(i) * apart + column()) = v[i];
  }
};
__device__ __forceinline__ bool rows_are_aligned(const DeltaRule& d) {
  return d.key_dim % 4 == 0 && d.value_dim % 4 == 0;
}

// Launches the kernel of delta_products.cu.
void chunk_products(Stream stream, const DeltaRows& rows, const DeltaRule& d);

}  // namespace fidelio::cuda
