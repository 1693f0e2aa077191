// This file is the entry to attention over the paged cache. It says which forms of attention are possible and chooses
// one (attention_cuts.cuh explains how it works).
#include <algorithm>

#include "kernels/cuda/attention/attention_halves.cuh"
#include "kernels/cuda/attention/attention_launch.cuh"
#include "kernels/cuda/attention/attention_walk.cuh"

namespace fidelio::cuda {
namespace {

// Returns how many heads a thread block serves at a time.
int heads_at_once(KvKind kind, int e) {
  return has_halves(kind, e) ? HalvesWalk<SpansOfSome, 64, 2>::kHeads
                             : MultiplyingWalk<SpansOfOne, KvKind::f32, 8>::kHeads;
}

// Rows that attend together do so in tiles of this many queries.
constexpr int kTile = 8;
int heads_of_unit(int h, int hk) { return std::min(h / hk, kTile); }

}  // namespace

int64_t attention_parts(int h, int e) { return int64_t{h} * slot_floats(kDealt, e); }

// Returns as many rows as fill three tiles of eight queries; with wide heads, one tile (attention_together.cu). If
// few thread blocks have little to read, it is one tile each, because more thread blocks are then done sooner: up to
// 2,048 positions and eight such units, by measurement (NOTES.md).
int rows_together(int h, int hk, int e, int sequences, int rows, int64_t positions) {
  if (!is_hopper()) return 1;
  const int heads = heads_of_unit(h, hk), one = kTile / heads, units = sequences * ((rows + one - 1) / one);
  return e > 128 || (one > 1 && positions <= 2048 && units <= 8) ? one : 3 * kTile / heads;
}

int rows_of_tiles(int h, int hk, int rows) {
  const int heads = heads_of_unit(h, hk), tiles = (rows * heads + kTile - 1) / kTile;
  return tiles * kTile / heads;
}

bool attention_appends(KvKind kind, int h, int hk, int e, int rows) {
  constexpr int kMostFresh = 16;  // the number that shared memory has room for
  return h / hk <= heads_at_once(kind, e) && (rows == 1 || (is_hopper() && has_halves(kind, e) && rows <= kMostFresh));
}

bool attention_prepares(KvKind kind, int h, int hk, int e) {
  const int group = h / hk, heads = std::min(group, heads_at_once(kind, e));
  return group % heads == 0 && heads * e % kBlockColumns == 0;
}

void attend(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
            const AttentionScratch& scratch, float* out, const PreparedRows& prepared) {
  if (a.units.table && has_halves(a.kind, a.e)) return attend_together({stream, a, fresh, q, scratch, out, prepared});
  AttentionArguments rows = a;
  rows.units = {};
  const AttentionCall call{stream, rows, fresh, q, scratch, out, prepared};
  switch (a.kind) {
    case KvKind::f32:
      return attend_multiplying<KvKind::f32>(call);
    case KvKind::f16:
      return attend_halves(call);
    case KvKind::bf16:
      return attend_multiplying<KvKind::bf16>(call);
    case KvKind::i8:
    case KvKind::i4x2:
      return attend_integers(call);
  }
}

}  // namespace fidelio::cuda
