// This file stores the sums of lowbit_panel.cuh.
#pragma once
#include "kernels/cuda/linear/batch/lowbit_panel_ring.cuh"

namespace fidelio::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// PanelSlots says where a lane's sums go in y: rows 2 t and 2 t + 1 of each eight, and outputs g and g + 8 of a tile.
// Like OwnOutputs of lowbit_kernel.cuh, it is computed while the lane waits for its first block.
struct PanelSlots {
  float* y = nullptr;  // address of row 2 t and output g
  int stride = 0;      // distance from one row of y to the next
  // This packs three numbers: 8 x the rows that exist from 2 t on, plus 4 if there is a bias, plus 3, 1 or 0 if both
  // outputs, only g, or none exist.
  int there = 0;
  float factor = 1, row_factor[2] = {1, 1}, bias[2] = {};

  // Makes the slots for tile `tile` of the thread block, from its eight rows `first` on.
  template <typename Traits, int kTiles>
  static __device__ __forceinline__ PanelSlots of(const LowbitArguments& p, const PanelPlan<kTiles>& plan, int tile,
                                                  int first, int lane) {
    PanelSlots slots;
    const TileAt block = panel_block<Traits>(p, plan, tile / kTiles);
    const LowbitTarget& target = *block.target;
    const int row = first * 8 + lane % 4 * 2,
              output = block.row_block * kBlockRows + (first_panel_tile<kTiles>() + tile % kTiles) * 16 + lane / 4;
    const bool is_there = kTiles == 4 || static_cast<int>(blockIdx.x) * plan.wide + tile / 8 < plan.row_blocks;
    slots.y = target.y + int64_t{row} * target.out + output;
    slots.stride = target.out;
    slots.factor = target.factor;
    slots.there = (p.rows - row) * 8 + (target.bias ? 4 : 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!is_there || output + i * 8 >= target.out) continue;
      const OutputScale scale = scale_of(target, output + i * 8);
      slots.row_factor[i] = scale.row_factor, slots.bias[i] = scale.bias;
      slots.there |= 1 << i;
    }
    // The compiler would compute them again otherwise.
    asm("" : "+l"(slots.y), "+r"(slots.stride), "+r"(slots.there), "+f"(slots.factor));
    return slots;
  }
  // Sum `i` of four is for row 2 t + i % 2 and output g + i / 2 * 8. `n` counts groups of eight rows.
  __device__ __forceinline__ bool has(int n, int i) const {
    return n * 8 + i % 2 < there >> 3 && (there >> i / 2 & 1) != 0;
  }
  __device__ __forceinline__ float* at(int n, int i) const { return y + (n * 8 + i % 2) * int64_t{stride} + i / 2 * 8; }
  // Returns the values already in y, if the sums are added to them.
  __device__ __forceinline__ float4 before(const LowbitArguments& p, int n) const {
    float value[4] = {};
    if (p.add)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (has(n, i)) value[i] = *at(n, i);
    return {value[0], value[1], value[2], value[3]};
  }
  __device__ __forceinline__ void store(const LowbitArguments& p, int n, float4 sum, float4 before) const {
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w}, befores[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = OutputScale{factor, row_factor[i / 2], bias[i / 2], (there & 4) != 0}(sums[i]);
      if (has(n, i)) *at(n, i) = p.add ? befores[i] + value : value;
    }
  }
};
#endif

}  // namespace fidelio::cuda
