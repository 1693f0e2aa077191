// The table of half pairs that grids look codes up in, in shared memory, copied once per lane (lowbit_codes.cuh).
#pragma once
#include "kernels/cuda/linear/layout/lowbit_codes.cuh"

namespace fidelio::cuda {

template <int bits>
__device__ __forceinline__ void fill_pair_table(uint8_t* table, const int8_t* grid) {
  for (int i = threadIdx.x; i < pair_table_bytes(bits) / 4; i += blockDim.x) {
    const int2 codes = pair_codes(bits, i / 32);
    reinterpret_cast<__half2*>(table)[i] = __halves2half2(__int2half_rn(grid[codes.x]), __int2half_rn(grid[codes.y]));
  }
}

}  // namespace fidelio::cuda
