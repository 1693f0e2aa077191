// This file turns whole weights from codes into FP16, for products of many rows. A warp reads a tile of 16 outputs by
// 128 inputs as the product kernels do. In the order of the fragments a lane holds eight consecutive values of row g
// and of row g + 8, so it writes 16 bytes at a time. One kernel serves groups of all sizes, because it is limited by
// what it writes.
#include "kernels/cuda/linear/decode/lowbit_kernel.cuh"

namespace fidelio::cuda {
namespace {

template <typename Traits>  // these traits have one chunk a group
__global__ void __launch_bounds__(256) dequantise_blocks(LowbitWeight w, float inverse, __half* halves) {
  const int tile = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const typename Traits::Table table(w.grid);
  const int64_t blocks = w.shape.row_blocks() * w.shape.column_blocks();
  // If only the four high bits are read, they end at bit 8 for all widths, and the middle of the other bits is added.
  const uint32_t kept = w.shape.below > 0 ? 0x00f000f0u : ~0u;
  const float middle = w.shape.below > 0 ? 0.5f * static_cast<float>(w.shape.twice_middle()) : 0.0f;
  const int group_chunks = static_cast<int>(w.shape.group / 32);
  const int64_t block_bytes = w.shape.block_bytes();
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    LaneBlock<Traits> lane_block;
    lane_block.load_chunks(w.blocks + block * block_bytes, tile, lane, group_chunks);
    const int64_t row0 = block / w.shape.column_blocks() * kBlockRows + tile * 16 + g,
                  column0 = block % w.shape.column_blocks() * kBlockColumns + t * 8;
    float factor[2];
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      const int64_t row = row0 + up * 8;
      factor[up] = inverse * (w.row_factor && row < w.shape.out ? w.row_factor[row] : 1.0f) * 16777216.0f *
                   code_unit(Traits::kind, Traits::bits, up != 0);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 scale = lane_block.scales(c);
      float2 zero{0, 0};
      if constexpr (Traits::kCentred) zero = lane_block.zeros(c);
      uint32_t words[2][4];  // [row g, g + 8][pair]
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        if constexpr (Traits::kGrid)
          lane_block.codes.grid(c, h, table, a);
        else
          lane_block.codes.integer(c, h, a);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int up = r % 2;
          // Codes are multiples of 2^-24, and the zeros that belong to them are multiples of 1.
          constexpr float kUnit = Traits::kCentred ? 16777216.0f : 1.0f;
          const uint32_t code = a[r] & kept;
          const float2 q = __half22float2(*reinterpret_cast<const __half2*>(&code));
          const float s = (up ? scale.y : scale.x) * factor[up] / kUnit, z = (up ? zero.y : zero.x) - middle;
          const __half2 value = __floats2half2_rn((q.x * kUnit - z) * s, (q.y * kUnit - z) * s);
          words[up][2 * h + r / 2] = *reinterpret_cast<const uint32_t*>(&value);
        }
      }
      const int64_t column = column0 + c * 32;
#pragma unroll
      for (int up = 0; up < 2; ++up)
        if (row0 + up * 8 < w.shape.out && column < w.shape.in)
          *reinterpret_cast<uint4*>(halves + (row0 + up * 8) * w.shape.in + column) = {words[up][0], words[up][1],
                                                                                       words[up][2], words[up][3]};
    }
  }
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_dequantise(Stream stream, const LowbitWeight& w, float inverse, __half* halves) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(w.shape.row_blocks() * w.shape.column_blocks(), multiprocessors() * 8));
  dequantise_blocks<CodeTraits<kind, bits, byte_scale, 1>><<<blocks, 256, 0, stream>>>(w, inverse, halves);
  cuda_check(cudaGetLastError(), "dequantising");
}

template <CodeKind kind, int bits, bool byte_scale>
struct Launching {
  static constexpr auto launchers = launch_dequantise<kind, bits, byte_scale>;
};

}  // namespace

void dequantise(Stream stream, const LowbitWeight& w, float factor, uint16_t* halves) {
  launchers_of<Launching>(w.shape)(stream, w, 1 / factor, reinterpret_cast<__half*>(halves));
}

}  // namespace fidelio::cuda
