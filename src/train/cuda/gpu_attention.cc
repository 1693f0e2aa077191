// This file computes attention as batched products. The scores of some heads at a time are FP32 matrices (length,
// length); softmax and its backward pass work on their rows. Queries are taken in four blocks, each against the keys
// up to the block's last query. Therefore only a quarter of what lies above the diagonal, which a kernel with tiles
// would leave out, is multiplied.
//
//   S = scale Q K^T    P = softmax(S)    O = P V
//   dP = dO V^T        dS = P (dP - sum_e dO O) scale        dQ = dS K    dK = dS^T Q    dV = P^T dO
#include <algorithm>
#include <cmath>

#include "train/cuda/gpu.h"

namespace fidelio::train {
namespace {

constexpr int64_t kScores = int64_t{1} << 27;  // values of all score matrices at a time
constexpr int64_t kBlocks = 4,
                  kLeast = 128;  // blocks of queries, and the least number of rows of one, which rows are rounded up to

using gpu::Pointed;
using Kind = Pointed::Kind;

int64_t block_of(int64_t length) {
  const int64_t rows = (length + kBlocks - 1) / kBlocks;
  return (rows + kLeast - 1) / kLeast * kLeast;
}
// Calls f(first, last) for every block.
template <typename F>
void for_blocks(int64_t length, const F& f) {
  for (int64_t first = 0; first < length; first += block_of(length))
    f(first, std::min(length, first + block_of(length)));
}

}  // namespace

gpu::Heads Gpu::heads(const AttentionSizes& s) const {
  return {static_cast<int32_t>(s.h), static_cast<int32_t>(s.hk), static_cast<int32_t>(s.e),
          static_cast<int32_t>(s.window), 1.0f / std::sqrt(static_cast<float>(s.e))};
}

int64_t Gpu::scratch_bytes(const ModelConfig& c, int64_t rows, int64_t context, cuda::Arithmetic arithmetic) {
  const int64_t each = c.h / c.hk, matrices = context * context * each, all = (rows + context - 1) / context * c.hk,
                units = std::clamp<int64_t>(kScores / matrices, 1, all), scores = units * matrices,
                of_heads = each > 1 ? 8 * units * each * context * c.e : 0;
  if (arithmetic != cuda::Arithmetic::bf16) return 8 * scores + of_heads;
  // The factors that are not held are attention's q, k, v and dout, o's input, and a matrix. Those that are held are
  // normed rows, rows of d, and two of gated, gate and up.
  const int64_t wide = int64_t{c.h} * c.e, narrow = int64_t{c.hk} * c.e,
                matrix = int64_t{c.d} * std::max({int64_t{c.f}, int64_t{c.d}, wide});
  return 12 * scores + of_heads +
         2 * (rows * (2 * wide + narrow) + std::max(rows * wide, matrix) + 2 * rows * (int64_t{c.d} + c.f));
}

// `buffers` is the number of FP32 matrices that each pair needs.
template <typename F>
void Gpu::for_pairs(const Rows& rows, const gpu::Heads& a, int buffers, const F& f) {
  const int64_t each = a.h / a.hk;
  for (const Rows::Alike& alike : rows.alike_) {
    const int64_t matrices = alike.length * alike.length * each, all = alike.count * a.hk,
                  most = std::clamp<int64_t>(kScores / matrices, 1, all);
    cuda::reserve(stream_, scores_, buffers * most * matrices * static_cast<int64_t>(sizeof(float)));
    if (is_bf16())
      cuda::reserve(stream_, probabilities_, buffers * most * matrices * static_cast<int64_t>(sizeof(uint16_t)));
    for (int64_t start = 0; start < all; start += most)
      f(gpu::Pairs{rows.sequences_->as<int32_t>() + alike.first, alike.length, start, a.hk, each, a.e},
        std::min(most, all - start), most * matrices);
  }
}

// An OfHeads is one product for every query head of every unit. It reads a window of each of three matrices, whose
// rows are `stride` values apart.
struct Gpu::OfHeads {
  struct Factor {
    Pointed::One at;
    int64_t stride;
    bool transposed;
  };
  int64_t m, n, k;
  float alpha;
  Factor a, b, c;
};

void Gpu::multiply(const gpu::Pairs& pairs, int64_t units, const std::vector<OfHeads>& products) {
  Pointed what;
  for (const OfHeads& p : products)
    for (const OfHeads::Factor* f : {&p.a, &p.b, &p.c}) what.of[what.count++] = f->at;
  const int64_t count = units * pairs.each;
  cuda::reserve(stream_, pointers_, what.count * count * static_cast<int64_t>(sizeof(void*)));
  void** to = pointers_.as<void*>();
  gpu::point_at(stream_, pairs, what, units, to);
  for (const OfHeads& p : products) {
    blas_->products(p.m, p.n, p.k, p.alpha, {to, p.a.stride, p.a.transposed}, {to + count, p.b.stride, p.b.transposed},
                    0, to + 2 * count, p.c.stride, count);
    to += 3 * count;
  }
}

void Gpu::attend(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v,
                 float* out, float* lse) {
  const gpu::Heads a = heads(sizes);
  const int64_t n = rows.n_, wide = int64_t{a.h} * a.e, narrow = int64_t{a.hk} * a.e, size = is_bf16() ? 2 : 4;
  void *tq = factor(q, n * wide, 0), *tk = factor(k, n * narrow, 1), *tv = factor(v, n * narrow, 2);
  for_pairs(rows, a, 1, [&](const gpu::Pairs& pairs, int64_t units, int64_t) {
    const int64_t length = pairs.length;
    float* scores = scores_.as<float>();
    void* p = is_bf16() ? probabilities_.data() : scores;
    std::vector<OfHeads> before, after;
    for_blocks(length, [&](int64_t first, int64_t last) {
      before.push_back({last - first,
                        last,
                        a.e,
                        a.scale,
                        {{tq, Kind::queries, size, first * wide}, wide, false},
                        {{tk, Kind::keys, size, 0}, narrow, true},
                        {{scores, Kind::scores, 4, first * length}, length, false}});
      after.push_back({last - first,
                       a.e,
                       last,
                       1,
                       {{p, Kind::scores, size, first * length}, length, false},
                       {{tv, Kind::keys, size, 0}, narrow, false},
                       {{out, Kind::queries, 4, first * wide}, wide, false}});
    });
    multiply(pairs, units, before);
    gpu::softmax(stream_, pairs, units, a, block_of(length), scores, p, is_bf16(), lse);
    multiply(pairs, units, after);
  });
}

void Gpu::attend_backward(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v,
                          const float* out, const float* lse, const float* dout, float* dq, float* dk, float* dv) {
  const gpu::Heads a = heads(sizes);
  const int64_t n = rows.n_, wide = int64_t{a.h} * a.e, narrow = int64_t{a.hk} * a.e, size = is_bf16() ? 2 : 4;
  const bool shared = a.h > a.hk;  // the gradients of a key are sums over the query heads that share it
  void *tq = factor(q, n * wide, 0), *tk = factor(k, n * narrow, 1), *tv = factor(v, n * narrow, 2),
       *tdo = factor(dout, n * wide, 3);
  float* along = scratch(n * a.h);
  gpu::sum_along(stream_, dout, out, n * a.h, a.e, along);
  for_pairs(rows, a, 2, [&](const gpu::Pairs& pairs, int64_t units, int64_t matrices) {
    const int64_t length = pairs.length, of_heads = units * pairs.each * length * a.e;
    float *scores = scores_.as<float>(), *dp = scores + matrices;
    void *p = is_bf16() ? probabilities_.data() : scores,
         *ds = is_bf16() ? static_cast<void*>(probabilities_.as<uint16_t>() + matrices) : dp;
    if (shared) cuda::reserve(stream_, of_heads_, 2 * of_heads * static_cast<int64_t>(sizeof(float)));
    float *dk_heads = shared ? of_heads_.as<float>() : dk, *dv_heads = shared ? dk_heads + of_heads : dv;
    const Kind keys = shared ? Kind::own : Kind::keys;
    const int64_t apart = shared ? a.e : narrow;
    std::vector<OfHeads> before, after;
    for_blocks(length, [&](int64_t first, int64_t last) {
      const OfHeads::Factor of_q{{tq, Kind::queries, size, first * wide}, wide, false},
          of_dout{{tdo, Kind::queries, size, first * wide}, wide, false}, of_k{{tk, Kind::keys, size, 0}, narrow, true};
      before.push_back(
          {last - first, last, a.e, a.scale, of_q, of_k, {{scores, Kind::scores, 4, first * length}, length, false}});
      before.push_back({last - first,
                        last,
                        a.e,
                        1,
                        of_dout,
                        {{tv, Kind::keys, size, 0}, narrow, true},
                        {{dp, Kind::scores, 4, first * length}, length, false}});
      after.push_back({last - first,
                       a.e,
                       last,
                       1,
                       {{ds, Kind::scores, size, first * length}, length, false},
                       {{tk, Kind::keys, size, 0}, narrow, false},
                       {{dq, Kind::queries, 4, first * wide}, wide, false}});
      // The gradients of these keys come from the queries of this block and of later ones.
      const int64_t corner = first * length + first;
      after.push_back({last - first,
                       a.e,
                       length - first,
                       1,
                       {{ds, Kind::scores, size, corner}, length, true},
                       of_q,
                       {{dk_heads, keys, 4, first * apart}, apart, false}});
      after.push_back({last - first,
                       a.e,
                       length - first,
                       1,
                       {{p, Kind::scores, size, corner}, length, true},
                       of_dout,
                       {{dv_heads, keys, 4, first * apart}, apart, false}});
    });
    multiply(pairs, units, before);
    gpu::softmax_backward(stream_, pairs, units, a, block_of(length), scores, dp, lse, along, p, ds, is_bf16());
    multiply(pairs, units, after);
    if (!shared) return;
    gpu::sum_of_heads(stream_, pairs, units, dk_heads, dk);
    gpu::sum_of_heads(stream_, pairs, units, dv_heads, dv);
  });
}

}  // namespace fidelio::train
