// Attention as batched products: the scores of some heads at a time are whole matrices (length, length), FP32, softmax and
// its backward go over their rows. What lies above the diagonal is multiplied, too: twice the products that a kernel of
// tiles would need, at a tensor core's speed.
//
//   S = scale Q K^T    P = softmax(S)    O = P V
//   dP = dO V^T        dS = P (dP - sum_e dO O) scale        dQ = dS K    dK = dS^T Q    dV = P^T dO
#include <algorithm>
#include <cmath>

#include "train/cuda/gpu.h"

namespace fidelio::train {
namespace {

constexpr int64_t kScores = int64_t{1} << 26;  // values of score matrices at once

using gpu::Pointed;
using Kind = Pointed::Kind;

}  // namespace

gpu::Heads Gpu::heads(const AttentionSizes& s) const {
  return {static_cast<int32_t>(s.h), static_cast<int32_t>(s.hk), static_cast<int32_t>(s.e),
          static_cast<int32_t>(s.window), 1.0f / std::sqrt(static_cast<float>(s.e))};
}

int64_t Gpu::scratch_bytes(const ModelConfig& c, int64_t rows, int64_t context, cuda::Arithmetic arithmetic) {
  const int64_t each = c.h / c.hk, matrices = context * context * each, all = (rows + context - 1) / context * c.hk,
                scores = std::clamp<int64_t>(kScores / matrices, 1, all) * matrices;
  if (arithmetic != cuda::Arithmetic::bf16) return 8 * scores;
  // Factors: the widest rows and the largest matrix of a layer, q k v and dout of attention.
  const int64_t wide = std::max({int64_t{c.f}, int64_t{c.d}, int64_t{c.h} * c.e}), narrow = int64_t{c.hk} * c.e,
                first = rows * wide, second = std::max(rows * wide, wide * c.d);
  return 12 * scores + 2 * (first + second + rows * (narrow + int64_t{c.h} * c.e));
}

// `buffers`: FP32 matrices that each pair needs.
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

void** Gpu::point(const gpu::Pairs& pairs, const Pointed& what, int member, int members, int64_t count) {
  cuda::reserve(stream_, pointers_, what.count * count * static_cast<int64_t>(sizeof(void*)));
  gpu::point_at(stream_, pairs, what, member, members, count, count, pointers_.as<void*>());
  return pointers_.as<void*>();
}

void Gpu::attend(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v,
                 float* out, float* lse) {
  const gpu::Heads a = heads(sizes);
  const int64_t n = rows.n_, wide = int64_t{a.h} * a.e, narrow = int64_t{a.hk} * a.e, size = is_bf16() ? 2 : 4;
  void *tq = factor(q, n * wide, 0), *tk = factor(k, n * narrow, 1), *tv = factor(v, n * narrow, 2);
  for_pairs(rows, a, 1, [&](const gpu::Pairs& pairs, int64_t units, int64_t) {
    const int64_t count = units * pairs.each, length = pairs.length;
    float* scores = scores_.as<float>();
    void* p = is_bf16() ? probabilities_.data() : scores;
    const Pointed what{6,
                       {{tq, Kind::queries, size},
                        {tk, Kind::keys, size},
                        {scores, Kind::scores, 4},
                        {p, Kind::scores, size},
                        {tv, Kind::keys, size},
                        {out, Kind::queries, 4}}};
    void** to = point(pairs, what, 0, static_cast<int>(pairs.each), count);
    blas_->products(length, length, a.e, a.scale, {to, wide, false}, {to + count, narrow, true}, 0, to + 2 * count,
                    length, count);
    gpu::softmax(stream_, pairs, units, a, scores, p, is_bf16(), lse);
    blas_->products(length, a.e, length, 1, {to + 3 * count, length, false}, {to + 4 * count, narrow, false}, 0,
                    to + 5 * count, wide, count);
  });
}

void Gpu::attend_backward(const Rows& rows, const AttentionSizes& sizes, const float* q, const float* k, const float* v,
                          const float* out, const float* lse, const float* dout, float* dq, float* dk, float* dv) {
  const gpu::Heads a = heads(sizes);
  const int64_t n = rows.n_, wide = int64_t{a.h} * a.e, narrow = int64_t{a.hk} * a.e, size = is_bf16() ? 2 : 4;
  void *tq = factor(q, n * wide, 0), *tk = factor(k, n * narrow, 1), *tv = factor(v, n * narrow, 2),
       *tdo = factor(dout, n * wide, 3);
  float* along = scratch(n * a.h);
  gpu::sum_along(stream_, dout, out, n * a.h, a.e, along);
  for_pairs(rows, a, 2, [&](const gpu::Pairs& pairs, int64_t units, int64_t matrices) {
    const int64_t count = units * pairs.each, length = pairs.length;
    float *scores = scores_.as<float>(), *dp = scores + matrices;
    void *p = is_bf16() ? probabilities_.data() : scores,
         *ds = is_bf16() ? static_cast<void*>(probabilities_.as<uint16_t>() + matrices) : dp;
    const Pointed what{8,
                       {{tq, Kind::queries, size},
                        {tk, Kind::keys, size},
                        {scores, Kind::scores, 4},
                        {tdo, Kind::queries, size},
                        {tv, Kind::keys, size},
                        {dp, Kind::scores, 4},
                        {ds, Kind::scores, size},
                        {dq, Kind::queries, 4}}};
    void** to = point(pairs, what, 0, static_cast<int>(pairs.each), count);
    blas_->products(length, length, a.e, a.scale, {to, wide, false}, {to + count, narrow, true}, 0, to + 2 * count,
                    length, count);
    blas_->products(length, length, a.e, 1, {to + 3 * count, wide, false}, {to + 4 * count, narrow, true}, 0,
                    to + 5 * count, length, count);
    gpu::softmax_backward(stream_, pairs, units, a, scores, dp, lse, along, p, ds, is_bf16());
    blas_->products(length, a.e, length, 1, {to + 6 * count, length, false}, {to + count, narrow, false}, 0,
                    to + 7 * count, wide, count);
    // A key's gradients come from every query head that shares it, one after the other.
    for (int member = 0; member < pairs.each; ++member) {
      const Pointed of_keys{6,
                            {{ds, Kind::scores, size},
                             {tq, Kind::queries, size},
                             {dk, Kind::keys, 4},
                             {p, Kind::scores, size},
                             {tdo, Kind::queries, size},
                             {dv, Kind::keys, 4}}};
      void** at = point(pairs, of_keys, member, 1, units);
      const float beta = member == 0 ? 0.0f : 1.0f;
      blas_->products(length, a.e, length, 1, {at, length, true}, {at + units, wide, false}, beta, at + 2 * units,
                      narrow, units);
      blas_->products(length, a.e, length, 1, {at + 3 * units, length, true}, {at + 4 * units, wide, false}, beta,
                      at + 5 * units, narrow, units);
    }
  });
}

}  // namespace fidelio::train
