// Which kernel multiplies how many rows. All give a row the same bits.
#pragma once
#include "kernels/cuda/lowbit_panel.cuh"

namespace fidelio::cuda {

// Measured on an H200 (docs/results-gpu.md): what fills the multiprocessors in one go, with enough in flight.
template <typename Traits>
void launch_lowbit_tiles(Stream stream, const LowbitArguments& p, int row_blocks) {
  const int tiles = row_blocks * 8, sms = multiprocessors();
  if constexpr (Traits::kHalf) {
    if (p.rows > 16) return launch_lowbit<Traits, 2, 4, 1, 1, 0>(stream, p, row_blocks);
    if (p.rows > 8) return launch_lowbit<Traits, 1, 2, 1, 3, 0>(stream, p, row_blocks);
    if (tiles <= 2 * sms) return launch_lowbit<Traits, 1, 1, 2, 2, 0>(stream, p, row_blocks);
    return launch_lowbit<Traits, 1, 1, 1, 3, 0>(stream, p, row_blocks);
  } else {
    constexpr bool kNarrow = Traits::bits <= 4;
    if constexpr (Traits::kCentred)
      if (p.rows > 16 && p.scratch && is_hopper())
        if (const PanelPlan plan = panel_plan<Traits>(row_blocks); plan.warps > 0)
          return launch_panels<Traits>(stream, p, plan);
    if (p.rows > 16) return launch_lowbit<Traits, 4, 4, 1, 1, 0>(stream, p, row_blocks);
    if (p.rows > 8) return launch_lowbit < Traits, 2, 2, kNarrow ? 2 : 1, 2, 0 > (stream, p, row_blocks);
    if (tiles <= 2 * sms) return launch_lowbit < Traits, 1, 1, kNarrow ? 3 : 2, 2, 2 > (stream, p, row_blocks);
    if (tiles > 4 * sms) return launch_lowbit < Traits, 4, 1, Traits::bits <= 3 ? 2 : 1, 1, 0 > (stream, p, row_blocks);
    if constexpr (kNarrow)
      if (Traits::bits < 4 || tiles <= 3 * sms) return launch_lowbit<Traits, 2, 1, 2, 2, 0>(stream, p, row_blocks);
    launch_lowbit<Traits, 2, 1, 1, 2, 0>(stream, p, row_blocks);
  }
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks) {
  if (p.group_chunks == 1) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 1>>(stream, p, row_blocks);
  if (p.group_chunks == 2) return launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 2>>(stream, p, row_blocks);
  launch_lowbit_tiles<CodeTraits<kind, bits, byte_scale, 4>>(stream, p, row_blocks);
}

}  // namespace fidelio::cuda
