// This file declares the operations on rows, which are everything but the low-bit products (lowbit.h) and the dense
// ones (gemm.h). Pointers are into device memory; values are row-major and FP32 unless said otherwise. There are n
// rows of a batch and d columns. All operations are row-invariant: the order of a row's sums does not depend on the
// batch.
#pragma once
#include <cstdint>

#include "kernels/cuda/linear/vectors/vectors.h"
#include "step/gate.h"

namespace fidelio::cuda {

// WeightValues says where a weight's values come from, for operations that read them one by one (embedding, FP32
// products).
struct WeightValues {
  LowbitWeight lowbit;             // used if lowbit.blocks is not null
  VectorWeight vectors;            // used if vectors.codes is not null
  const uint16_t* half = nullptr;  // (out, in): FP16 times `factor`
  const float* single = nullptr;   // (out, in)
  float factor = 1;
  int64_t out = 0, in = 0;
};

// Computes x (n, in), the rows `ids` of the table.
void embed(Stream stream, const WeightValues& table, const int32_t* ids, int64_t n, float* x);
// Writes the largest |value| of a weight to `amax`, on the device.
void largest_value(Stream stream, const WeightValues& w, float* amax);
// Computes halves = value / factor.
void bf16_to_half(Stream stream, const uint16_t* bf16, int64_t n, float factor, uint16_t* halves);
void bf16_largest(Stream stream, const uint16_t* bf16, int64_t n, float* amax);
// Computes y (n, out) = or += x (n, in) w^T + bias with FP32 FMAs, in the order of the inputs.
void linear_f32(Stream stream, const WeightValues& w, const float* bias, const float* x, int64_t n, float* y, bool add);

// Computes halves (n, columns) = x / factor of the row. The factor is a power of two, and 1 unless the row leaves
// FP16's comfortable range.
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor);
// divide_rows computes y (n, d) /= factor of the row, and finish_rows y = factor of the row * y + bias. Rows with a
// factor of 1 are left alone, except for a bias.
void divide_rows(Stream stream, const float* factor, int64_t n, int64_t d, float* y);
void finish_rows(Stream stream, const float* factor, const float* bias, int64_t n, int64_t d, float* y);

// Computes y (n, columns), which is x as a coarse mode rounds it.
void round_to_integers(Stream stream, const float* x, int64_t n, int64_t columns, const Rounding& how, float* y);

// Computes y = x / sqrt(mean(x^2) + eps) * weight. `rows` picks rows of x; null takes all in order. If `prepared` has
// blocks, y is also prepared for lowbit.h.
constexpr int64_t kWidestNorm = 16384;
void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d,
              float* y, const PreparedRows& prepared);
// Computes y = function(gate) * up, where y may be `up`. It is also prepared as in rms_norm().
void gated(Stream stream, const Gating& how, const float* gate, const float* up, int64_t n, int64_t d, float* y,
           const PreparedRows& prepared);
// Computes y (n, heads, e) = or += x / sqrt(mean(x^2) + eps) * weight (e), head by head; x and y may be the same.
void norm_heads(Stream stream, const float* x, const float* weight, float eps, int64_t n, int heads, int e, float* y,
                bool adds);
// Copies the columns [first, first + count) of x (n, from_columns) to y (n, count).
void columns(Stream stream, const float* x, int64_t n, int64_t from_columns, int64_t first, int64_t count, float* y);
// These change values in place: x * the one number at `factor`, cap * tanh(x / cap), and 0.
void scale(Stream stream, const float* factor, int64_t values, float* x);
void softcap(Stream stream, float cap, int64_t values, float* x);
void clear(Stream stream, int64_t values, float* x);
// Multiplies rows of x (n, columns), in place, by Hadamard matrices in blocks of core * part columns
// (cpu/kernel_set.h, TurnArgs). A block must fit shared memory; sm_80 and sm_90 have enough for this width.
constexpr int64_t kWidestTurn = 40960;
struct RowTurn {
  int64_t columns, stride, part, core;
  float scale;
};
void turn_rows(Stream stream, const RowTurn& how, const float* signs, int64_t n, float* x);
// Computes y (n, columns), whose columns are order[i] of x (n, from_columns). The last 2 `kept` are copied as they
// are. The others, in groups of `kept`, are limited to `clip` times their group's largest magnitude, if `clip` is
// below 1. x must not be y.
struct ColumnOrder {
  const int32_t* order;
  int64_t columns, kept;  // a multiple of kept; kept is 32, 64 or 128
};
void gather_columns(Stream stream, const float* x, int64_t n, int64_t from_columns, const ColumnOrder& order,
                    float clip, float* y);
// Computes y (n, v): the values of x (n, columns) for tokens that have a place in it, and -infinity for those with
// place -1.
void spread_logits(Stream stream, const float* x, int64_t columns, const int32_t* places, int64_t n, int64_t v,
                   float* y);
// These work on `count` values: x *= factor, and x += y.
void scale_values(Stream stream, float factor, int64_t count, float* x);
void add_values(Stream stream, const float* y, int64_t count, float* x);

// ---- Attention. One layer's cache holds keys and then values, (pages, hk, kPageTokens, e), for i4x2 (pages, hk,
// plane, kPageTokens, e / 2). For i8 and i4x2 two (pages, hk, kPageTokens) arrays of {scale, lowest} FP32 pairs
// follow.
enum class KvKind : uint8_t { f32, f16, bf16, i8, i4x2 };  // the same values as KvFormat
// Consecutive rows of a sequence may attend together, as a unit, so that its keys and values are read once for all of
// them.
struct AttentionUnits {
  // (count) {first row, number of rows, which may be 0, rows of its sequence before it}. If it is null, each row
  // attends alone.
  const int32_t* table = nullptr;
  int count = 0;
  int rows = 1, of_sequence = 1;  // upper bounds for the rows of a unit and of a sequence
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
  float* key_scales = nullptr;  // for i8 and i4x2
  float* value_scales = nullptr;
  AttentionUnits units;
  const float* sinks = nullptr;  // (h) or null: a head's own score of a position whose value is zero
};
// FreshHeads are heads that attention still has to prepare: q (n, h, e) and k (n, hk, e) are normalised per head
// (unless the weights are null) and rotated, and k and v are written into the cache.
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
// HeadPreparation describes what some heads need before: q is multiplied by query_scale (1 + growth log(1 +
// floor(position / growth_positions))), heads are normalised unless the weights are null, and a part of each head, the
// pairs (i, i + pairs), is rotated. All change q (n, h, e) and k (n, hk, e) in place.
struct HeadPreparation {
  const float* frequencies = nullptr;  // (pairs)
  int pairs = 0;
  float scale = 1;  // factor of cos and sin
  float query_scale = 1, growth = 0;
  int growth_positions = 1;
  const float *q_norm = nullptr, *k_norm = nullptr;  // (e)
  float eps = 0;
};
void prepare_heads(Stream stream, const int32_t* positions, int64_t n, const HeadPreparation& how, int h, int hk, int e,
                   float* q, float* k);

constexpr int kCut = 128;  // positions that a thread block attends to at a time
constexpr int kDealt = 8;  // number of shares that a row's cuts are divided into
struct AttentionScratch {
  int cuts = 0;                 // at least those of the longest context
  int64_t rows = 0;             // rows that there is room for
  float* parts = nullptr;       // rows * attention_parts(...)
  uint32_t* arrived = nullptr;  // rows * h zeros; they are zeros again afterwards
};
// Returns the floats of AttentionScratch::parts for each row.
int64_t attention_parts(int h, int e);
// Returns the most rows of a unit, for sequences of at most `rows` rows whose last position is below `positions`. If
// the cache is not FP16, the rows of a unit attend alone, with the same bits.
int rows_together(int h, int hk, int e, int sequences, int rows, int64_t positions);
// Returns the most rows that fit into as many tiles of eight queries as `rows` rows of a unit need.
int rows_of_tiles(int h, int hk, int rows);
// Computes out (n, h, e). If fresh.k is not null, rows are rotated and appended here instead of by rope_append().
// That requires attention_appends() for the most rows of a sequence, and units if that is more than one. If
// `prepared` has blocks, which requires attention_prepares(), out is also prepared for lowbit.h.
bool attention_appends(KvKind kind, int h, int hk, int e, int rows);
bool attention_prepares(KvKind kind, int h, int hk, int e);
void attend(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
            const AttentionScratch& scratch, float* out, const PreparedRows& prepared);
// Does the same for many rows of a sequence, if attends_rows(), with q, weights and values as FP16, on the matrix
// units. Its bits are not those of attend().
bool attends_rows(const AttentionArguments& a);
void attend_rows(Stream stream, const AttentionArguments& a, const float* q, float* out);

}  // namespace fidelio::cuda
