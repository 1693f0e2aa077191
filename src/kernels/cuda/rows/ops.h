// The launchers of everything but the low-bit products (lowbit.h) and the dense ones (gemm.h): pointers into device
// memory, row-major FP32 unless said. n rows of a batch, d columns. All are row-invariant: the order of a row's sums
// does not depend on the batch.
#pragma once
#include <cstdint>

#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

// Where a weight's values come from, for what must read them one by one (embedding, FP32 products).
struct WeightValues {
  LowbitWeight lowbit;             // used if lowbit.blocks
  VectorWeight vectors;            // used if vectors.codes
  const uint16_t* half = nullptr;  // (out, in) FP16 times `factor`
  const float* single = nullptr;   // (out, in)
  float factor = 1;
  int64_t out = 0, in = 0;
};

// x (n, in) = rows ids of the table.
void embed(Stream stream, const WeightValues& table, const int32_t* ids, int64_t n, float* x);
// Largest |value| of a weight, into `amax` (device).
void largest_value(Stream stream, const WeightValues& w, float* amax);
void bf16_to_half(Stream stream, const uint16_t* bf16, int64_t n, float factor,
                  uint16_t* halves);  // halves = value / factor
void bf16_largest(Stream stream, const uint16_t* bf16, int64_t n, float* amax);
// y (n, out) = or += x (n, in) w^T + bias in FP32 FMAs, in the order of the inputs.
void linear_f32(Stream stream, const WeightValues& w, const float* bias, const float* x, int64_t n, float* y, bool add);

// halves (n, columns) = x / factor of the row; the factor is a power of two, 1 unless the row leaves FP16's comfortable
// range.
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor);
// y (n, d) /= factor of the row; y = factor of the row * y + bias. Rows with a factor of 1 are not touched but by a
// bias.
void divide_rows(Stream stream, const float* factor, int64_t n, int64_t d, float* y);
void finish_rows(Stream stream, const float* factor, const float* bias, int64_t n, int64_t d, float* y);

// y (n, columns) = what a coarse mode makes of x.
void round_to_integers(Stream stream, const float* x, int64_t n, int64_t columns, const Rounding& how, float* y);

// y = x / sqrt(mean(x^2) + eps) * weight; `rows` picks rows of x, null: all in order. Where `prepared` has
// blocks, y is also prepared for lowbit.h.
constexpr int64_t kWidestNorm = 16384;
void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d,
              float* y, const PreparedRows& prepared);
// y = silu(gate) * up, or with `gelu` that of GELU by tanh; also prepared as rms_norm()'s.
void gated(Stream stream, bool gelu, const float* gate, const float* up, int64_t n, int64_t d, float* y,
           const PreparedRows& prepared);
// Rows of x (n, columns) turned in place by Hadamard matrices, blocks of core * part columns (cpu/kernel_set.h, TurnArgs).
// A block is in shared memory, of which sm_80 and sm_90 have as much for a thread block.
constexpr int64_t kWidestTurn = 40960;
struct RowTurn {
  int64_t columns, stride, part, core;
  float scale;
};
void turn_rows(Stream stream, const RowTurn& how, const float* signs, int64_t n, float* x);
// y (n, columns) = columns order[i] of x (n, from_columns), of which the last 2 `kept` are as they are; others, in groups
// of `kept`, are at most `clip` times their group's largest magnitude where that is below 1. x is not y.
struct ColumnOrder {
  const int32_t* order;
  int64_t columns, kept;  // a multiple of kept; 32, 64 or 128
};
void gather_columns(Stream stream, const float* x, int64_t n, int64_t from_columns, const ColumnOrder& order,
                    float clip, float* y);
// y (n, v) = x (n, columns) of the tokens that have a place in it, -infinity of those with -1.
void spread_logits(Stream stream, const float* x, int64_t columns, const int32_t* places, int64_t n, int64_t v,
                   float* y);
// Of `count` values: x *= factor, x += y.
void scale_values(Stream stream, float factor, int64_t count, float* x);
void add_values(Stream stream, const float* y, int64_t count, float* x);

// ---- Attention. One layer's cache: keys then values, (pages, hk, kPageTokens, e), for i4x2 (pages, hk, plane,
// kPageTokens, e / 2), then for i8 and i4x2 two (pages, hk, kPageTokens) arrays of {scale, lowest} FP32 pairs.
enum class KvKind : uint8_t { f32, f16, bf16, i8, i4x2 };  // = KvFormat
// Rows of a sequence that follow each other may attend together, so that its keys and values are read once for all.
struct AttentionUnits {
  // (count) {first row, rows, of which a unit may have none, rows of its sequence before it}; null: each row alone
  const int32_t* table = nullptr;
  int count = 0;
  int rows = 1, of_sequence = 1;  // at least the most of a unit, of a sequence
};
struct AttentionArguments {
  int n = 0, h = 0, hk = 0, e = 0, window = 0;
  const int32_t* positions = nullptr;  // (n)
  const int32_t* page_of = nullptr;    // (sequences, pages_per_sequence)
  const int32_t* sequence = nullptr;   // (n)
  int pages_per_sequence = 0;
  KvKind kind = KvKind::f16;
  void* keys = nullptr;
  void* values = nullptr;
  float* key_scales = nullptr;  // i8, i4x2
  float* value_scales = nullptr;
  AttentionUnits units;
};
// q (n, h, e) and k (n, hk, e) are to be normalised per head (weights or null) and turned; k and v go into the cache.
struct FreshHeads {
  float* q = nullptr;
  const float *k = nullptr, *v = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  float eps = 0;
  const float* turns = nullptr;  // (n, e / 2) {cos, sin}
};
void rope_turns(Stream stream, const int32_t* positions, int64_t n, const float* inverse_frequencies, int64_t e,
                float rope_scale, float* turns);
void rope_append(Stream stream, const AttentionArguments& a, const FreshHeads& fresh);
// What heads need before: q times query_scale (1 + growth log(1 + floor(position / growth_positions))), and the turn of
// a part of a head, pairs (i, i + pairs) of q (n, h, e) and k (n, hk, e); both in place.
struct HeadPreparation {
  const float* frequencies = nullptr;  // (pairs)
  int pairs = 0;
  float scale = 1;  // on cos and sin
  float query_scale = 1, growth = 0;
  int growth_positions = 1;
};
void prepare_heads(Stream stream, const int32_t* positions, int64_t n, const HeadPreparation& how, int h, int hk, int e,
                   float* q, float* k);

constexpr int kCut = 128;  // positions that a thread block attends to at a time
constexpr int kDealt = 8;  // shares that a row's cuts are dealt into
struct AttentionScratch {
  int cuts = 0;                 // at least those of the longest context
  int64_t rows = 0;             // that there is room for below
  float* parts = nullptr;       // rows * attention_parts(...)
  uint32_t* arrived = nullptr;  // rows * h, zeros; left so
};
int64_t attention_parts(int h, int e);
// The most rows of a unit, of sequences of at most so many rows whose last position is below `positions`; where the cache
// is not FP16 its rows attend alone, with the same bits.
int rows_together(int h, int hk, int e, int sequences, int rows, int64_t positions);
// The most rows that fit into as many tiles of eight queries as so many of a unit take.
int rows_of_tiles(int h, int hk, int rows);
// out (n, h, e). With fresh.k, rows are turned and appended here instead of by rope_append; that asks for
// attention_appends() of the most rows that a sequence has, and for units where that is not one. Where `prepared`
// has blocks, which asks for attention_prepares(), out is also prepared for lowbit.h.
bool attention_appends(KvKind kind, int h, int hk, int e, int rows);
bool attention_prepares(KvKind kind, int h, int hk, int e);
void attend(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
            const AttentionScratch& scratch, float* out, const PreparedRows& prepared);
// The same for many rows of a sequence, where attends_rows(): q, weights and values as FP16, by the matrix units. Its
// bits are not attend()'s.
bool attends_rows(const AttentionArguments& a);
void attend_rows(Stream stream, const AttentionArguments& a, const float* q, float* out);

}  // namespace fidelio::cuda
