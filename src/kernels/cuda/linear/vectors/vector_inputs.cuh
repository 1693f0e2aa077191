// Activations for products of vector codes: times the column scales, as whole numbers in planes of bytes.
#pragma once
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

// Eight columns of x times their scales; zeros behind the last.
__device__ __forceinline__ void scaled_columns(const VectorWeight& w, const float* x, int v, float (&scaled)[8]) {
  const int in = static_cast<int>(w.in), first = v * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) scaled[j] = 0;
  if (first >= in) return;
  const uint4 column = __ldg(reinterpret_cast<const uint4*>(w.column) + v);
  if (in % 4 == 0 && first + 8 <= in) {
    const float4 low = *reinterpret_cast<const float4*>(x + first),
                 high = *reinterpret_cast<const float4*>(x + first + 4);
    scaled[0] = low.x, scaled[1] = low.y, scaled[2] = low.z, scaled[3] = low.w;
    scaled[4] = high.x, scaled[5] = high.y, scaled[6] = high.z, scaled[7] = high.w;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (first + j < in) scaled[j] = x[first + j];
  }
  const auto* halves = reinterpret_cast<const __half2*>(&column);
#pragma unroll
  for (int j = 0; j < 8; ++j) scaled[j] *= j % 2 == 0 ? __low2float(halves[j / 2]) : __high2float(halves[j / 2]);
}

// Row m of the inputs from x (in), by a whole thread block; 128 threads have a group. largest: two floats a warp. Ends
// without a barrier of the whole block.
template <int kPlanes>
__device__ void make_inputs(const VectorWeight& w, const float* x, const VectorInputs<kPlanes>& to, int m,
                            float* largest) {
  const int quad = threadIdx.x / kVectorGroup, lane = threadIdx.x % 32, end = to.groups * kVectorGroup;
  float coming[8];
  scaled_columns(w, x, threadIdx.x, coming);
  int parity = m % 2;  // a warp that is ahead writes beside what the others still read
  for (int v = threadIdx.x; v < end; v += blockDim.x, parity ^= 1) {
    float scaled[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) scaled[j] = coming[j];
    if (v + blockDim.x < end) scaled_columns(w, x, v + blockDim.x, coming);
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
    const float factor = usual ? kLargestWhole<kPlanes> / range : 0.0f;
    // Of what is not finite the scale is NaN, by which every sum of the group is multiplied.
    if (v % kVectorGroup == 0)
      to.scale(m)[v / kVectorGroup] = usual ? range / kLargestWhole<kPlanes> : (range - range) * range;
    write_planes<kPlanes>(scaled, factor, to, m, v);
  }
  asm volatile("bar.sync %0, 128;" ::"r"(quad + 1) : "memory");
}

}  // namespace fidelio::cuda
