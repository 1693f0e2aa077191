// This file declares what the files compiled for one instruction set export: plain functions over plain data. It
// includes nothing from the standard library or the other rooms, so that the linker cannot pick an inline function
// compiled for AVX-512 on a machine without it. The files x_body.h are written once over simd.h and included by
// kernels_{portable,avx2,avx512}.cc.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/delta/delta_args.h"

namespace fidelio::cpu {

// --- dense linears -------------------------------------------------------------------------------------------------
// Sixteen outputs are interleaved. Block b holds outputs 16 b .. 16 b + 15, and within a block k runs outermost.
//     f32   k: 16 floats                              64 bytes per k
//     f16   k: 16 halves                              32 bytes per k
//     bf16  k / 2: 16 pairs (w[o][k], w[o][k + 1])    64 bytes per pair, K padded to even
//     fp8   k: 16 bytes of E4M3                       16 bytes per k; before block 0, the row scales:
//                                                     FP32, padded to 16
// Lanes of a vector are outputs, so a sum runs over k, one term after the other in one accumulator, whatever the
// tile. A row's result is therefore the same in every batch.
constexpr int kBlock = 16;

struct DenseArgs {
  const std::byte* packed;
  int64_t block_stride;  // in bytes, from block to block
  const float* bias;     // (out) or null
  int64_t out, in;
  const std::byte* x;  // (rows, in) f32 or bf16, bf16 padded to an even count with a zero
  int64_t x_stride;    // in bytes
  int64_t rows;
  float* y;                          // (rows, out)
  int64_t y_stride;                  // in floats
  bool add;                          // y += instead of y =
  const float* row_scale = nullptr;  // (out, padded to 16): y = row_scale * sum + bias; null means 1
};
using DenseMultiply = void (*)(const DenseArgs& a, int64_t first_block, int64_t last_block);

// --- the paged cache -----------------------------------------------------------------------------------------------
// There is one record for each (layer, page, kv head), with kTokens = 32 positions; e is the head dim. Keys lie
// transposed, so that the scores of 32 positions are the lanes of one accumulator and no sum runs across lanes.
//     f32, f16, bf16   keys [e][32]           values [32][e]
//     i8               keys u8 [e][32]        values u8 [32][e]                    x = zero + scale * code
//     i4x2             keys high [e][16] low [e][16]; byte j of a row: position j in its low nibble,
//                                                      j + 16 in its high one
//                      values high [32][e/2] low [32][e/2]; byte j: feature j, j + e/2
//                                                                                    x = zero + scale (16 high + low)
//     then, integers only: key scale, key zero, value scale, value zero: f32 [32] each
constexpr int kTokens = 32;
enum class KvKind : uint8_t { f32, f16, bf16, i8, i4x2 };  // the values of KvFormat, in its order

struct KvRecord {
  KvKind kind;
  int64_t e;
  int64_t part_bytes() const {  // the bytes of the keys, and of the values
    const int64_t elements = kTokens * e;
    return kind == KvKind::f32 ? 4 * elements : kind == KvKind::i8 || kind == KvKind::i4x2 ? elements : 2 * elements;
  }
  bool has_scales() const { return kind == KvKind::i8 || kind == KvKind::i4x2; }
  int64_t bytes() const { return (2 * part_bytes() + (has_scales() ? 4 * kTokens * 4 : 0) + 63) / 64 * 64; }
};

// --- attention -----------------------------------------------------------------------------------------------------
// Attention is an online softmax over pages of 32 positions inside chunks of kChunkPages pages. The chunks of a row
// are merged in order. The grid of pages and chunks is that of absolute positions, so a row's result depends on
// nothing but the row and its past.
constexpr int kChunkPages = 16;
struct AttendArgs {
  KvRecord record;
  const std::byte* layer;  // records (pages, hk) of this layer
  const int32_t* pages;    // the pages of this sequence
  int kv_heads, heads, window;
  float scale;         // 1 / sqrt(e)
  const float* sinks;  // (h), or null: the head's own score of a position whose value is zero
  const float* q;      // (rows, h, e): the first query row of the tile
  float* out;          // (rows, h, e)
  int rows;            // they stand at consecutive positions from first_position
  int64_t first_position;
  int kv_head;
  int64_t first_chunk, last_chunk;  // the chunks of the tile's history
  // If null, the chunks are merged into `out`. Otherwise attend leaves, for each (chunk, row, head of the group), the
  // sums (padded to 16), the maximum and the total, and merge() reads them later.
  float* partial;
  float* scratch;  // attend_scratch_floats(...)
};
constexpr int64_t padded_head(int64_t e) { return (e + 15) / 16 * 16; }
// Returns the floats of scratch for query_rows = rows * heads of a kv head.
constexpr int64_t attend_scratch_floats(int64_t query_rows, int64_t e) {
  return 2 * kTokens * padded_head(e) + query_rows * (kTokens + 2 * padded_head(e) + 8);
}

// TurnArgs describes the Hadamard transform of a row (core/hadamard.h), in blocks of core * part columns, where part
// = stride 2^m.
struct TurnArgs {
  int64_t columns, stride, part, core;
  const float* signs;  // (core, core), entries +1 and -1
  float scale;         // 1 / sqrt(order)
};

struct KernelSet {
  DenseMultiply bf16_f32, f16_f32, f32_f32, e4m3_f32;       // named weights_activations; the sums are FP32 FMA
  DenseMultiply bf16_bf16;                                  // pairs of BF16; null where there is no such instruction
  void (*to_bf16)(const float* x, uint16_t* y, int64_t n);  // rounds to nearest even
  void (*norm)(const float* x, const float* weight, float eps, float* y, int64_t n);  // y may be x
  void (*swiglu)(const float* gate, const float* up, float* y, int64_t n);            // silu(gate) up
  void (*geglu)(const float* gate, const float* up, float* y, int64_t n);             // gelu(gate) up, by tanh
  // These are clamped gates (step/gate.h).
  void (*clamped)(const float* gate, const float* up, float alpha, float limit, float* y, int64_t n);
  void (*sigmoid_gated)(const float* gate, const float* up, float* y, int64_t n);  // sigmoid(gate) up
  void (*add_gated)(float gate, const float* y, float* x, int64_t n);              // x += sigmoid(gate) y
  void (*softcap)(float* x, float cap, int64_t n);                                 // x = cap tanh(x / cap)
  void (*turn)(const TurnArgs& how, float* row, float* scratch);                   // in place; scratch holds a block
  // Rotates pairs (i, i + columns / 2).
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t columns);
  // Writes the key and value (e) of position t (0..31) of a page into its record.
  void (*append)(const KvRecord& record, std::byte* page, int t, const float* key, const float* value);
  void (*attend)(const AttendArgs& a);
  // Merges partial results of chunks [first, last) into a.out.
  void (*merge)(const AttendArgs& a, const float* partial);
  void (*convolve)(const ConvolveArgs& a);
  void (*delta_rows)(const DeltaArgs& a);   // row by row
  void (*delta_chunk)(const DeltaArgs& a);  // kDeltaRows rows together
};

extern const KernelSet kPortable;
#if defined(__x86_64__)
extern const KernelSet kAvx2, kAvx512;
#endif

}  // namespace fidelio::cpu
