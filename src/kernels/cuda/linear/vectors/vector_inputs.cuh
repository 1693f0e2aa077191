// Activations for products of vector codes: times the column scales, as whole numbers in planes of bytes.
#pragma once
#include "kernels/cuda/linear/layout/prepare.cuh"
#include "kernels/cuda/linear/vectors/vector_codes.cuh"

namespace fidelio::cuda {

// In shared memory, of each row of x; a lane reads its 8 columns of two planes at once:
//
//     planes  [group][which][lane] {8 bytes high, 8 bytes low}
//     third   [group][which][lane] {8 bytes lowest}, if there are three planes
//     scale   [group]: what one of the whole numbers stands for
template <int kPlanes>
constexpr int vector_input_bytes(int groups) {  // of a row
  return groups * (kVectorGroup * (kPlanes == 2 ? 16 : 24) + 16);
}
template <int kPlanes>
struct VectorInputs {
  std::byte* base;
  int groups;

  __device__ std::byte* row(int m) const { return base + m * vector_input_bytes<kPlanes>(groups); }
  __device__ uint4* planes(int m) const { return reinterpret_cast<uint4*>(row(m)); }
  __device__ uint2* third(int m) const { return reinterpret_cast<uint2*>(row(m) + groups * kVectorGroup * 16); }
  __device__ float* scale(int m) const {
    return reinterpret_cast<float*>(row(m) + groups * kVectorGroup * (kPlanes == 2 ? 16 : 24));
  }
};

template <int kPlanes>
constexpr float kLargestWhole = kPlanes == 2 ? 127 << 8 : 127 << 16;  // what rounding makes of it fits as well

// v = 256 (the others) + its lowest byte, from -128 to 127.
__device__ __forceinline__ int take_byte(int& v) {
  const int byte = (v + 128 & 255) - 128;
  v = (v - byte) >> 8;
  return byte & 255;
}

// A vector's 8 columns: its part of the planes.
template <int kPlanes>
__device__ __forceinline__ void write_planes(const float (&x)[8], float factor, const VectorInputs<kPlanes>& to, int m,
                                             int at) {
  uint32_t bytes[3][2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int whole = __float2int_rn(x[j] * factor);
#pragma unroll
    for (int p = kPlanes - 1; p >= 0; --p) bytes[p][j / 4] |= static_cast<uint32_t>(take_byte(whole)) << (8 * (j % 4));
  }
  to.planes(m)[at] = {bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1]};
  if constexpr (kPlanes == 3) to.third(m)[at] = {bytes[2][0], bytes[2][1]};
}

// A vector's 8 columns of what a row is made of, and their scales; zeros behind the last.
struct RowColumns {
  uint4 scale = {0, 0, 0, 0};  // halves
  float4 x[2] = {}, with[2] = {};
};

// A row as a thread block makes it.
struct MadeRow {
  const VectorWeight& w;
  const VectorInput& from;
  int row;
  float factor = 1;  // of a norm

  __device__ int in() const { return static_cast<int>(w.in); }
  __device__ void load(const float* from, int v, float4 (&to)[2]) const {
    if (w.in % 8 == 0) {
      const auto* four = reinterpret_cast<const float4*>(from) + 2 * v;
      if (v * 8 < in()) to[0] = four[0], to[1] = four[1];
    } else {
      const auto at = [&](int j) { return v * 8 + j < in() ? from[v * 8 + j] : 0.0f; };
      to[0] = {at(0), at(1), at(2), at(3)}, to[1] = {at(4), at(5), at(6), at(7)};
    }
  }
  // What no kernel writes, and the rest.
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
  // As norm_row of ops.cu has it. squares: a float for every 128 columns, 128 floats for kWidestNorm; `first`: the
  // thread's first vector.
  __device__ void find_factor(const RowColumns& first, int end, float* squares) {
#pragma unroll 1
    for (int v = threadIdx.x; v < end; v += blockDim.x) {
      const bool is_first = v == static_cast<int>(threadIdx.x);
      RowColumns c = is_first ? first : RowColumns();  // of columns behind the last nothing is loaded
      if (!is_first) load_made(v, c);
      const float sum = squares_of_half(c.x[0], c.x[1]);
      if (v % 16 == 0) squares[v / 16] = sum;
    }
    __syncthreads();
    factor =
        norm_factor(sum_of_warp(share_of_squares(squares, (in() + kBlockColumns - 1) / kBlockColumns)), in(), from.eps);
  }
};

// Row m of the inputs, by a whole thread block; 128 threads have a group. `coming`: of the thread's first vector; kept:
// where the row itself is to be, with zeros behind the last column, or null; largest: two floats a warp. Ends without a
// barrier of the whole block.
template <int kPlanes>
__device__ void make_inputs(const MadeRow& row, RowColumns coming, const VectorInputs<kPlanes>& to, int m, float* kept,
                            float* largest) {
  const int quad = threadIdx.x / kVectorGroup, lane = threadIdx.x % 32, end = to.groups * kVectorGroup;
  int parity = m % 2;  // a warp that is ahead writes beside what the others still read
#pragma unroll 1
  for (int v = threadIdx.x; v < end; v += blockDim.x, parity ^= 1) {
    const float4 x[2] = {row.value(coming, 0), row.value(coming, 1)};
    const auto* halves = reinterpret_cast<const __half2*>(&coming.scale);
    const float2 s[4] = {__half22float2(halves[0]), __half22float2(halves[1]), __half22float2(halves[2]),
                         __half22float2(halves[3])};
    const float scaled[8] = {x[0].x * s[0].x, x[0].y * s[0].y, x[0].z * s[1].x, x[0].w * s[1].y,
                             x[1].x * s[2].x, x[1].y * s[2].y, x[1].z * s[3].x, x[1].w * s[3].y};
    if (kept) reinterpret_cast<float4*>(kept)[2 * v] = x[0], reinterpret_cast<float4*>(kept)[2 * v + 1] = x[1];
    coming = {};
    if (v + blockDim.x < end) row.load_fixed(v + blockDim.x, coming), row.load_made(v + blockDim.x, coming);
    uint32_t most = 0;  // magnitudes order like their bits, and NaN is the largest
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, __float_as_uint(scaled[j]) & 0x7FFFFFFFu);
    most = __reduce_max_sync(~0u, most);
    float* four = largest + parity * (blockDim.x / 32) + quad * 4;
    if (lane == 0) four[threadIdx.x / 32 % 4] = __uint_as_float(most);
    asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
    uint32_t of_group = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_group = max(of_group, __float_as_uint(four[i]));
    const float range = __uint_as_float(of_group);
    const bool usual = range > 1e-30f && range < 3e38f;  // what is less would overflow the factor
    // __fdividef has no quotients by 2^126 and more.
    const float factor = usual ? __fdividef(kLargestWhole<kPlanes> * 0.25f, range * 0.25f) : 0.0f;
    // Of what is not finite the scale is NaN, by which every sum of the group is multiplied.
    if (v % kVectorGroup == 0)
      to.scale(m)[v / kVectorGroup] = usual ? range * (1 / kLargestWhole<kPlanes>) : (range - range) * range;
    write_planes<kPlanes>(scaled, factor, to, m, v);
  }
  asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
}

}  // namespace fidelio::cuda
