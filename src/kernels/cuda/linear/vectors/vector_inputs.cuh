// This file prepares activations for products of vector codes: they are multiplied by the column scales and become
// whole numbers in planes of bytes.
#pragma once
#include "kernels/cuda/linear/layout/prepare.cuh"
#include "kernels/cuda/linear/vectors/vector_codes.cuh"

namespace fidelio::cuda {

// VectorInputs lies in shared memory and holds kRows rows of x. Column n = kPlanes m + p is plane p of row m, with
// the highest plane first. Lane 4 n + t reads its bytes of two chunks at once:
//
//     planes  [pair of chunks][n][t] {8 bytes of the first one's vector t, 8 bytes of the second one's}
//     scale   [m][group]: the value of one unit of the whole numbers
constexpr int vector_input_bytes(int columns, int rows, int groups) {
  return groups * columns * kVectorGroup * 8 + (rows * groups * 4 + 15) / 16 * 16;
}
template <int kRowsOf, int kPlanes>
struct VectorInputs {
  static constexpr int kRows = kRowsOf, kColumns = kRows * kPlanes;
  std::byte* base;
  int groups;

  __device__ const uint4* pair(int i) const { return reinterpret_cast<const uint4*>(base) + i * kColumns * 4; }
  __device__ uint2* plane(int v, int n) const {  // for vector v of a row
    return reinterpret_cast<uint2*>(base) + ((v / 8 * kColumns + n) * 4 + v % 4) * 2 + v / 4 % 2;
  }
  __device__ float* scale(int m) const {
    return reinterpret_cast<float*>(base + groups * kColumns * kVectorGroup * 8) + m * groups;
  }
  __device__ std::byte* end() const { return base + vector_input_bytes(kColumns, kRows, groups); }
};

template <int kPlanes>
constexpr float kLargestWhole = kPlanes == 2 ? 127 << 8 : 127 << 16;  // what rounding makes of it must fit as well

// Returns byte i of four whole numbers.
template <int i>
__device__ __forceinline__ uint32_t bytes_of(const int (&whole)[4]) {
  constexpr uint32_t kTwo = (4 + i) << 4 | i;
  const auto at = [&](int j) { return static_cast<uint32_t>(whole[j]); };
  return ptx::permute(ptx::permute(at(0), at(1), kTwo), ptx::permute(at(2), at(3), kTwo), 0x5410);
}

// Splits four columns into bytes in every plane, with the highest plane first. A whole number is the sum of bytes
// from -128 to 127 times powers of 256, so it is split from the lowest byte on.
template <int kPlanes>
__device__ __forceinline__ void split(const float (&x)[4], float factor, uint32_t (&bytes)[kPlanes]) {
  int whole[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)  // below 2^22, the float 1.5 2^23 + whole has the number in its lowest bits
    whole[j] = kPlanes == 2 ? __float_as_int(fmaf(x[j], factor, 0x1.8p23f)) : __float2int_rn(x[j] * factor);
  bytes[kPlanes - 1] = bytes_of<0>(whole);
#pragma unroll
  for (int j = 0; j < 4; ++j) whole[j] += 128;
  bytes[kPlanes - 2] = bytes_of<1>(whole);
  if constexpr (kPlanes == 3) {
#pragma unroll
    for (int j = 0; j < 4; ++j) whole[j] += 128 << 8;
    bytes[0] = bytes_of<2>(whole);
  }
}

// Writes a vector's 8 columns to its part of the planes.
template <int kRows, int kPlanes>
__device__ __forceinline__ void write_planes(const float (&x)[2][4], float factor,
                                             const VectorInputs<kRows, kPlanes>& to, int m, int v) {
  uint32_t bytes[2][kPlanes];
#pragma unroll
  for (int h = 0; h < 2; ++h) split<kPlanes>(x[h], factor, bytes[h]);
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) *to.plane(v, m * kPlanes + p) = {bytes[0][p], bytes[1][p]};
}

// RowColumns is a vector's 8 columns of what a row is made of, and their scales. Behind the last column they are
// zeros.
struct RowColumns {
  uint4 scale = {0, 0, 0, 0};  // halves
  float4 x[2] = {}, with[2] = {};
};

// A MadeRow is a row as a thread block makes it, 512 vectors at a time. kEights says that row lengths are multiples
// of eight.
template <bool kEights>
struct MadeRow {
  const VectorWeight& w;
  const VectorInput& from;
  int row;
  float factor = 1;  // the factor of a norm

  __device__ int in() const { return static_cast<int>(w.in); }
  __device__ void load(const float* from, int v, float4 (&to)[2]) const {
    if constexpr (kEights) {
      const auto* four = reinterpret_cast<const float4*>(from) + 2 * v;
      if (v * 8 < in()) to[0] = four[0], to[1] = four[1];
    } else {
      const auto at = [&](int j) { return v * 8 + j < in() ? from[v * 8 + j] : 0.0f; };
      to[0] = {at(0), at(1), at(2), at(3)}, to[1] = {at(4), at(5), at(6), at(7)};
    }
  }
  // load_fixed() loads what no kernel writes, and load_made() the rest.
  __device__ void load_fixed(int v, RowColumns& c) const {
    if (v * 8 < in()) c.scale = __ldg(reinterpret_cast<const uint4*>(w.column) + v);
    if (from.kind == VectorInput::Kind::norm) load(from.with, v, c.with);
  }
  __device__ void load_made(int v, RowColumns& c) const {
    load(from.x + int64_t{row} * in(), v, c.x);
    if (from.kind == VectorInput::Kind::gate) load(from.with, v, c.with);
  }
  __device__ float4 value(const RowColumns& c, int i) const {
    if (from.kind == VectorInput::Kind::norm) return c.x[i] * c.with[i] * factor;
    if (from.kind == VectorInput::Kind::gate) return gated(c.x[i], c.with[i]);
    return c.x[i];
  }
  // Computes the factor as norm_row of ops.cu does. `squares` has room for a float for every 128 columns, and 128
  // floats for kWidestNorm. `first` is the thread's first vector.
  __device__ void find_factor(const RowColumns& first, int end, float* squares) {
#pragma unroll 1
    for (int v = threadIdx.x; v < end; v += blockDim.x) {
      RowColumns c;
      if (v == static_cast<int>(threadIdx.x))
        c = first;
      else
        load(from.x + int64_t{row} * in(), v, c.x);
      const float sum = squares_of_half(c.x[0], c.x[1]);
      if (v % 16 == 0) squares[v / 16] = sum;
    }
    __syncthreads();
    factor =
        norm_factor(sum_of_warp(share_of_squares(squares, (in() + kBlockColumns - 1) / kBlockColumns)), in(), from.eps);
  }
};

// Makes the inputs, with the whole thread block; 128 threads share a group. Data are asked for a round ahead;
// `columns` are the thread's first ones of row 0. `kept` is where the row itself goes, with zeros behind the last
// column, or null. `squares` is for find_factor(), and `largest` has two floats for each warp. It ends without a
// barrier of the whole block.
template <int kRows, int kPlanes, typename Row>
__device__ void make_inputs(Row row, RowColumns columns, const VectorInputs<kRows, kPlanes>& to, float* kept,
                            float* squares, float* largest) {
  const int quad = threadIdx.x / kVectorGroup, lane = threadIdx.x % 32, end = to.groups * kVectorGroup;
  const int step = blockDim.x, last = static_cast<int>(row.from.rows) - 1;
  struct Place {
    int m, v;
  };
  const auto after = [&](Place at) -> Place {
    return at.v + step < end ? Place{at.m, at.v + step} : Place{at.m + 1, static_cast<int>(threadIdx.x)};
  };
  const auto load = [&](Place at) {
    RowColumns c;
    row.row = min(at.m, last);
    if (at.m < kRows && at.v < end) row.load_fixed(at.v, c), row.load_made(at.v, c);
    return c;
  };
  Place at = {0, static_cast<int>(threadIdx.x)};
  if (row.from.kind == VectorInput::Kind::norm) row.find_factor(columns, end, squares);
  int parity = 0;  // a warp that is ahead writes beside what the others still read
#pragma unroll 1
  for (; at.m < kRows && at.v < end; parity ^= 1) {
    const Place next = after(at);
    const float4 x[2] = {row.value(columns, 0), row.value(columns, 1)};
    const auto* halves = reinterpret_cast<const __half2*>(&columns.scale);
    const float2 s[4] = {__half22float2(halves[0]), __half22float2(halves[1]), __half22float2(halves[2]),
                         __half22float2(halves[3])};
    const float scaled[2][4] = {{x[0].x * s[0].x, x[0].y * s[0].y, x[0].z * s[1].x, x[0].w * s[1].y},
                                {x[1].x * s[2].x, x[1].y * s[2].y, x[1].z * s[3].x, x[1].w * s[3].y}};
    const int v = at.v;
    if (kept) reinterpret_cast<float4*>(kept)[2 * v] = x[0], reinterpret_cast<float4*>(kept)[2 * v + 1] = x[1];
    columns = load(next);
    uint32_t most = 0;  // magnitudes have the same order as their bits, and NaN is the largest
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, __float_as_uint(scaled[j / 4][j % 4]) & 0x7FFFFFFFu);
    most = __reduce_max_sync(~0u, most);
    float* four = largest + parity * (blockDim.x / 32) + quad * 4;
    if (lane == 0) four[threadIdx.x / 32 % 4] = __uint_as_float(most);
    asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
    uint32_t of_group = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_group = max(of_group, __float_as_uint(four[i]));
    const float range = __uint_as_float(of_group);
    const bool usual = range > 1e-30f && range < 3e38f;  // a smaller range would overflow the factor
    // __fdividef cannot divide by 2^126 and more.
    const float factor = usual ? __fdividef(kLargestWhole<kPlanes> * 0.25f, range * 0.25f) : 0.0f;
    // If a value is not finite, the scale is NaN, and every sum of the group is multiplied by it.
    if (v % kVectorGroup == 0)
      to.scale(at.m)[v / kVectorGroup] = usual ? range * (1 / kLargestWhole<kPlanes>) : (range - range) * range;
    write_planes(scaled, factor, to, at.m, v);
    at = next;
  }
}

}  // namespace fidelio::cuda
