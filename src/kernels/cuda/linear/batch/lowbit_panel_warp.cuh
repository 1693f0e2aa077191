// This file has what the multiplying warps of lowbit_panel.cuh do.
#pragma once
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/linear/batch/lowbit_panel_ring.cuh"

namespace fidelio::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// PanelRecords holds what a lane knows about its rows of a block, 2 t and 2 t + 1 of each eight: their scales, and
// the sums of a group.
template <int kRows>
struct PanelRecords {
  float2 scale[kRows / 8];
  int2 sum[kRows / 8];

  __device__ __forceinline__ void load_scales(const uint8_t* records) {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) scale[n] = *reinterpret_cast<const float2*>(records + n * 32);
  }
  __device__ __forceinline__ void load_sums(const uint8_t* records, int which) {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
      sum[n] = *reinterpret_cast<const int2*>(records + ((7 - which) * kRows + n * 8) * 4);
  }
};

// Multiplies a warp's share of a block in shared memory, which holds half a row block from tile `first_tile` on. `b`
// names its activations, and `records` are the lane's. The end does what finish_integers() of lowbit_multiply.cuh
// does; a lane has outputs g and g + 8. `meanwhile` runs during the last products.
template <typename Traits, int kRows, int kTiles, typename Meanwhile>
__device__ __forceinline__ void multiply_panel(const uint8_t* weights, uint32_t b, const uint8_t* records, int tile,
                                               int first_tile, int lane, const typename Traits::Table& table,
                                               int twice_middle, float (&total)[kRows / 8][4],
                                               const Meanwhile& meanwhile) {
  LaneBlock<Traits> w;
  w.template load<kTiles, kBlockRows / 16>(weights, tile, lane, Plain(), first_tile);
  PanelRecords<kRows> rows;
  constexpr int kFirstSum = Traits::kGroupChunks == 1 ? 0 : Traits::kGroupChunks == 2 ? 4 : 6;
#pragma unroll
  for (int group = 0; group < Traits::kGroups; ++group) {
    uint32_t a[Traits::kGroupChunks][4];
    int acc[kRows];
#pragma unroll
    for (int i = 0; i < Traits::kGroupChunks; ++i) w.bytes(group * Traits::kGroupChunks + i, table, a[i]);
    ptx::fence_products(a);
#pragma unroll
    for (int i = 0; i < Traits::kGroupChunks; ++i)
      ptx::multiply(acc, a[i], b + (group * Traits::kGroupChunks + i) * (256 >> 4), i == 0);
    ptx::commit_products();
    if (group == 0) rows.load_scales(records);
    rows.load_sums(records, kFirstSum + group);
    const float2 s = w.scales(group);
    const auto below_zero = [&](int zero) { return Traits::kHigh ? twice_middle - 2 * zero : -zero; };
    const int2 above = w.above(group);
    const int below[2] = {below_zero(above.x), below_zero(above.y)};
    constexpr int kUnits =
        Traits::kHigh ? 2 : 1;  // for high bits (a view) in halves of a unit, as centred() of lowbit_multiply.cuh
    if (group == Traits::kGroups - 1) meanwhile();
    ptx::wait_for_products<0>();
    ptx::settle(acc);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sum = acc[n * 8 + i] * (256 * kUnits) + acc[n * 8 + 4 + i] * kUnits +
                        below[i / 2] * (i % 2 ? rows.sum[n].y : rows.sum[n].x);
        total[n][i] = fmaf((i / 2 ? s.y : s.x) * (i % 2 ? rows.scale[n].y : rows.scale[n].x), static_cast<float>(sum),
                           total[n][i]);
      }
  }
}
#endif

}  // namespace fidelio::cuda
