// A Pack is a few values that are read and written together. There are four if all arrays of a kernel begin at
// multiples of 16 bytes and their lengths allow it, otherwise one.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace fidelio::train::gpu {

template <int kWide>
struct alignas(4 * kWide) Pack {
  float x[kWide];
};

template <int kWide>
__device__ __forceinline__ Pack<kWide> read(const float* from) {
  return *reinterpret_cast<const Pack<kWide>*>(from);
}
template <int kWide>
__device__ __forceinline__ void write(const Pack<kWide>& values, float* to) {
  *reinterpret_cast<Pack<kWide>*>(to) = values;
}
template <int kWide>
__device__ __forceinline__ void write(const Pack<kWide>& values, __nv_bfloat16* to) {
  if constexpr (kWide == 4) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values.x[0], values.x[1]),
                         high = __floats2bfloat162_rn(values.x[2], values.x[3]);
    *reinterpret_cast<uint2*>(to) = {*reinterpret_cast<const unsigned*>(&low),
                                     *reinterpret_cast<const unsigned*>(&high)};
  } else {
    *to = __float2bfloat16_rn(values.x[0]);
  }
}

template <int kWide>
using Wide = std::integral_constant<int, kWide>;

// Calls launch(Wide<4>) or launch(Wide<1>). Each of these arrays holds rows of n values, one after the other, and may
// be null.
template <typename Launch, typename... Array>
void in_packs(int64_t n, const Launch& launch, const Array*... arrays) {
  const bool even = n % 4 == 0 && ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
  if (even)
    launch(Wide<4>{});
  else
    launch(Wide<1>{});
}

}  // namespace fidelio::train::gpu
