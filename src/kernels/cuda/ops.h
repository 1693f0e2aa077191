// The launchers of everything but the low-bit products (lowbit.h) and the dense ones (gemm.h): pointers into device
// memory, row-major FP32 unless said. n rows of a batch, d columns. All are row-invariant: a row is one thread block's
// work, its sums in a fixed order.
#pragma once
#include <cstdint>

#include "kernels/cuda/lowbit.h"

namespace fidelio::cuda {

// Where a weight's values come from, for what must read them one by one (embedding, dequantising, FP32 products).
struct WeightValues {
  LowbitWeight lowbit;             // used if lowbit.blocks
  const uint16_t* half = nullptr;  // (out, in) FP16 times `factor`
  const float* single = nullptr;   // (out, in)
  float factor = 1;
  int64_t out = 0, in = 0;
};

// x (n, in) = rows ids of the table.
void embed(Stream stream, const WeightValues& table, const int32_t* ids, int64_t n, float* x);
// Largest |value| of a weight, into `amax` (device).
void largest_value(Stream stream, const WeightValues& w, float* amax);
// halves (out, in) = values / factor.
void dequantise(Stream stream, const WeightValues& w, float factor, uint16_t* halves);
void bf16_to_half(Stream stream, const uint16_t* bf16, int64_t n, float factor,
                  uint16_t* halves);  // halves = value / factor
void bf16_largest(Stream stream, const uint16_t* bf16, int64_t n, float* amax);
// y (n, out) = or += x (n, in) w^T + bias in FP32 FMAs, in the order of the inputs.
void linear_f32(Stream stream, const WeightValues& w, const float* bias, const float* x, int64_t n, float* y, bool add);

// halves (n, columns) = x / factor of the row; the factor is a power of two, 1 unless the row leaves FP16's comfortable
// range.
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor);
// y (n, d) = or += factor of the row * z + bias; z may be y.
void finish_rows(Stream stream, const float* z, const float* factor, const float* bias, int64_t n, int64_t d, float* y,
                 bool add);

// y = x / sqrt(mean(x^2) + eps) * weight; `rows` picks rows of x, null: all in order. With `blocks`, y is also prepared
// for lowbit.h.
constexpr int64_t kWidestNorm = 16384;
void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d,
              float* y, uint8_t* blocks, float* row_scale);
// y = silu(gate) * up, and the largest magnitude of each part of a row into maxima (n, swiglu_parts(d)).
constexpr int kSwigluColumns = 1024;
constexpr int64_t swiglu_parts(int64_t d) { return (d + kSwigluColumns - 1) / kSwigluColumns; }
void swiglu(Stream stream, const float* gate, const float* up, int64_t n, int64_t d, float* y, float* maxima);

// ---- Attention. One layer's cache: keys then values, (pages, hk, kPageTokens, e), then for i8 two (pages, hk,
// kPageTokens) arrays of {scale, lowest} FP32 pairs.
enum class KvKind : uint8_t { f32, f16, bf16, i8 };
struct AttentionArguments {
  int n = 0, h = 0, hk = 0, e = 0, window = 0;
  const int32_t* positions = nullptr;  // (n)
  const int32_t* page_of = nullptr;    // (sequences, pages_per_sequence)
  const int32_t* sequence = nullptr;   // (n)
  int pages_per_sequence = 0;
  KvKind kind = KvKind::f16;
  void* keys = nullptr;
  void* values = nullptr;
  float* key_scales = nullptr;  // i8
  float* value_scales = nullptr;
};
// q (n, h, e) and k (n, hk, e) normalised per head (weights or null) and turned; k and v into the cache.
void rope_append(Stream stream, const AttentionArguments& a, float* q, const float* k, const float* v,
                 const float* q_norm, const float* k_norm, float eps, const float* inverse_frequencies,
                 float rope_scale);
// out (n, h, e), and the largest magnitude of each head into maxima (n, h). `longest` is the largest position + 1. The
// context is cut at multiples of kSplit positions, each cut one thread block a row and kv head, joined in order.
// scratch: attention_scratch floats a row.
constexpr int kSplit = 128;
constexpr int64_t attention_scratch(int64_t h, int64_t e, int64_t longest) {
  return h * ((longest + kSplit - 1) / kSplit) * (e + 2);
}
void attend(Stream stream, const AttentionArguments& a, const float* q, int64_t longest, float* scratch,
            int64_t scratch_rows, float* out, float* maxima);

}  // namespace fidelio::cuda
