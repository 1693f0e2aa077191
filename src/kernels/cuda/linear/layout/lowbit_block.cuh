// This file defines what one lane holds of a tile of 16 outputs in a block of inputs: codes, scales and zeros as
// stored, or FP16 values.
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/decode/lowbit_launch.cuh"
#include "kernels/cuda/linear/layout/lowbit_codes.cuh"

namespace fidelio::cuda {

template <CodeKind kind_, int bits_, bool byte_scale, int group_chunks>
struct CodeTraits {
  static constexpr CodeKind kind = kind_;
  static constexpr int bits = bits_, kGroupChunks = group_chunks,
                       kGroups = 4 / group_chunks;  // chunks of 32 inputs in a group; groups in a block
  static constexpr bool kGrid = has_entries(kind), kHalf = kind == CodeKind::half, kHigh = kind == CodeKind::high,
                        kCentred = kind == CodeKind::integer || kHigh;
  static constexpr int kScaleBytes = (kGrid || byte_scale) ? 1 : 2;
  using Table = std::conditional_t<
      kind == CodeKind::curve, CurveTable<kind == CodeKind::curve ? bits : 5>,
      std::conditional_t<kind == CodeKind::grid, GridTable<kind == CodeKind::grid ? bits : 2>, NoTable>>;
  // These are the bytes of a tile: its codes, and the scales and zeros of one group.
  static constexpr int kTileCodes = 16 * kBlockColumns / 8 * bits;
  static constexpr int kTileGroup = 16 * (kScaleBytes + (kCentred ? 1 : 0));
  static constexpr int kTileBytes = kTileCodes + kGroups * kTileGroup;
  static constexpr int kBlockBytes = kBlockRows / 16 * kTileBytes;
};

// Calls launch(std::type_identity<CodeTraits>) for a weight whose groups have so many chunks of 32 inputs: 1, 2 or 4.
template <CodeKind kind, int bits, bool byte_scale, typename Launch>
void with_group(int chunks, const Launch& launch) {
  if (chunks == 1) return launch(std::type_identity<CodeTraits<kind, bits, byte_scale, 1>>());
  if (chunks == 2) return launch(std::type_identity<CodeTraits<kind, bits, byte_scale, 2>>());
  launch(std::type_identity<CodeTraits<kind, bits, byte_scale, 4>>());
}

// These return the distance from block to block of a weight, and the offset of a block's scales. For high bits only,
// both are those of the whole weight.
template <typename Traits>
__device__ __forceinline__ int block_stride(const LowbitArguments& p) {
  return Traits::kHigh ? p.block_bytes : Traits::kBlockBytes;
}
template <typename Traits>
__device__ __forceinline__ int scales_at(const LowbitArguments& p) {
  return Traits::kHigh ? p.scales_at : kBlockRows / 16 * Traits::kTileCodes;
}

struct Streamed {
  template <typename T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return ptx::load_streamed(p);
  }
};
struct Plain {
  template <typename T>
  __device__ __forceinline__ T operator()(const T* p) const {
    return *p;
  }
};

// A LaneBlock is what one lane needs of a tile of a block: its codes, and the scales and zeros of rows g and g + 8 as
// stored.
template <typename Traits>
struct LaneBlock {
  LaneCodes<Traits::bits> codes;
  uint32_t scale[Traits::kGroups];
  uint16_t zero[Traits::kGroups];

  // Loads from a block, or from some of its tiles in the same order. There may be scales and zeros for more tiles;
  // `first` is then the first of those that has codes there.
  template <int tiles = kBlockRows / 16, int scaled_tiles = tiles, typename From = Streamed>
  __device__ __forceinline__ void load(const uint8_t* block, int tile, int lane, From from = {}, int first = 0) {
    codes.template load<tiles>(block, tile, lane, from);
#pragma unroll
    for (int group = 0; group < Traits::kGroups; ++group)
      load_group<scaled_tiles>(group, block + tiles * Traits::kTileCodes, group, first + tile, lane, from);
  }
  // Loads from a block whose group size is known at run time: `group_chunks` chunks each, while those of Traits have
  // one.
  __device__ __forceinline__ void load_chunks(const uint8_t* block, int tile, int lane, int group_chunks) {
    static_assert(Traits::kGroupChunks == 1);
    constexpr int kTiles = kBlockRows / 16;
    codes.template load<kTiles>(block, tile, lane, Streamed());
#pragma unroll
    for (int c = 0; c < 4; ++c)
      load_group<kTiles>(c, block + kTiles * Traits::kTileCodes, c / group_chunks, tile, lane, Streamed());
  }
  // Loads scales and zeros into index `to`, from those of a group in a block's records.
  template <int tiles, typename From>
  __device__ __forceinline__ void load_group(int to, const uint8_t* records, int group, int tile, int lane, From from) {
    const uint8_t* record = records + tiles * group * Traits::kTileGroup;
    const int pair = tile * 8 + lane / 4;
    if constexpr (Traits::kScaleBytes == 2)
      scale[to] = from(reinterpret_cast<const uint32_t*>(record) + pair);
    else
      scale[to] = from(reinterpret_cast<const uint16_t*>(record) + pair);
    if constexpr (Traits::kCentred)
      zero[to] = from(reinterpret_cast<const uint16_t*>(record + tiles * 16 * Traits::kScaleBytes) + pair);
  }
  // Returns the bytes of chunk c as products of integers take them.
  __device__ __forceinline__ void bytes(int c, const typename Traits::Table& table, uint32_t (&a)[4]) const {
    if constexpr (Traits::kHigh) {
      codes.high_bytes(c, a);
    } else if constexpr (Traits::kGrid) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t two[2];
        codes.entries(c, h, table, two);
        a[2 * h] = two[0], a[2 * h + 1] = two[1];
      }
    } else {
      codes.bytes(c, a);
    }
  }
  // Returns by how much such bytes exceed the values that they stand for, for rows g and g + 8.
  __device__ __forceinline__ int2 above(int group) const {
    if constexpr (Traits::kGrid) return {128, 128};
    return {zero[group] & 255, zero[group] >> 8};
  }
  __device__ __forceinline__ float2 scales(int group) const {
    const uint32_t s = scale[group];
    if constexpr (Traits::kScaleBytes == 2) return __half22float2(*reinterpret_cast<const __half2*>(&s));
    if constexpr (Traits::kGrid)
      return {static_cast<float>(static_cast<int8_t>(s & 255)), static_cast<float>(static_cast<int8_t>(s >> 8))};
    return {static_cast<float>(s & 255), static_cast<float>(s >> 8)};
  }
  __device__ __forceinline__ float2 zeros(int group) const {
    return {static_cast<float>(zero[group] & 255), static_cast<float>(zero[group] >> 8)};
  }
};

// For FP16 values, a lane's share of a chunk is 16 bytes of row g and of row g + 8, in the order in which products
// take them.
template <int group_chunks>
struct LaneBlock<CodeTraits<CodeKind::half, 16, false, group_chunks>> {
  uint4 rows[4][2];

  __device__ __forceinline__ void load(const __half* w, int row, int last_row, int column, int columns) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
      for (int up = 0; up < 2; ++up)
        rows[c][up] = column + c * 32 < columns
                          ? ptx::load_streamed(reinterpret_cast<const uint4*>(
                                w + int64_t{min(row + up * 8, last_row)} * columns + column + c * 32))
                          : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void fragment(int c, int h, uint32_t (&a)[4]) const {
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      a[up] = h ? rows[c][up].z : rows[c][up].x;
      a[2 + up] = h ? rows[c][up].w : rows[c][up].y;
    }
  }
};

}  // namespace fidelio::cuda
