// This file computes attention and its backward pass in tiles of 64 queries by all keys that they see. No array has a
// size of n^2.
#include "train/host/host.h"
#include "train/host/host_math.h"

namespace fidelio::train {
namespace {

constexpr int64_t kTile = 64;

// A Head says where the rows of one head of one sequence lie.
template <typename T>
struct Head {
  int64_t first, n;  // rows of the sequence
  int64_t h, hk, e, window, head, shared;
  T scale;
  // These return the index of this head's row i in (n, h e) and in (n, hk e).
  int64_t q_at(int64_t i) const { return ((first + i) * h + head) * e; }
  int64_t kv_at(int64_t j) const { return ((first + j) * hk + shared) * e; }
  int64_t first_key(int64_t i) const { return window > 0 ? std::max<int64_t>(0, i - window + 1) : 0; }
};

template <typename T>
Head<T> head_of(const AttentionSizes& s, const Sequences& sequences, int64_t sequence, int64_t head) {
  const int64_t first = sequences.begin[static_cast<size_t>(sequence)];
  return {first,
          sequences.begin[static_cast<size_t>(sequence) + 1] - first,
          s.h,
          s.hk,
          s.e,
          s.window,
          head,
          head / (s.h / s.hk),
          T{1} / std::sqrt(static_cast<T>(s.e))};
}

// Computes the scaled scores (end - i, end - j) of queries [i, end) over keys [j, end).
template <typename T>
void scores(const Head<T>& a, const T* q, const T* k, int64_t i, int64_t j, int64_t end, T* tile) {
  gemm(false, true, end - i, end - j, a.e, a.scale, q + a.q_at(i), a.h * a.e, k + a.kv_at(j), a.hk * a.e, T{0}, tile,
       end - j);
}

// Turns rows of scores into probabilities. In the backward pass the logarithms of the rows' sums are `known`; in the
// forward pass `known` is null and they are computed.
template <typename T>
void normalise(const Head<T>& a, int64_t i, int64_t j, int64_t end, const T* known, T* lse, T* tile) {
  const int64_t keys = end - j;
  for (int64_t row = i; row < end; ++row) {
    T* p = tile + (row - i) * keys;
    const int64_t low = a.first_key(row) - j, high = row + 1 - j;  // the range of the tile's keys that this row sees
    const int64_t at = (a.first + row) * a.h + a.head;
    if (known != nullptr) {
      exp_row(p + low, known[at], high - low, p + low);
    } else {
      const T top = *std::max_element(p + low, p + high);
      exp_row(p + low, top, high - low, p + low);
      const T sum = sum_lanes<T>(high - low, [=](int64_t c) { return p[low + c]; });
      lse[at] = top + std::log(sum);
      for (int64_t c = low; c < high; ++c) p[c] /= sum;
    }
    std::fill(p, p + low, T{0});
    std::fill(p + high, p + keys, T{0});
  }
}

}  // namespace

template <typename T>
void Host<T>::attend(const Rows& rows, const AttentionSizes& sizes, const T* q, const T* k, const T* v, T* out,
                     T* lse) {
  pool_->run(rows.sequences.count() * sizes.h, [&](int64_t job, int) {
    const Head<T> a = head_of<T>(sizes, rows.sequences, job / sizes.h, job % sizes.h);
    std::vector<T> tile(static_cast<size_t>(kTile * a.n));
    for (int64_t i = 0; i < a.n; i += kTile) {
      const int64_t end = std::min(a.n, i + kTile), j = a.first_key(i);
      scores(a, q, k, i, j, end, tile.data());
      normalise<T>(a, i, j, end, nullptr, lse, tile.data());
      gemm(false, false, end - i, a.e, end - j, T{1}, tile.data(), end - j, v + a.kv_at(j), a.hk * a.e, T{0},
           out + a.q_at(i), a.h * a.e);
    }
  });
}

// P = exp(S - lse), dP = dO V^T, dS = P (dP - sum_e dO O) / sqrt e, dQ = dS K, dK += dS^T Q, dV += P^T dO (Dao et al.
// 2022, appendix B.4). A job has all query heads of one key head, and it alone adds to that head's sums.
template <typename T>
void Host<T>::attend_backward(const Rows& rows, const AttentionSizes& sizes, const T* q, const T* k, const T* v,
                              const T* out, const T* lse, const T* dout, T* dq, T* dk, T* dv) {
  const int64_t each = sizes.h / sizes.hk;
  zero(dk, rows.rows() * sizes.hk * sizes.e);
  zero(dv, rows.rows() * sizes.hk * sizes.e);
  pool_->run(rows.sequences.count() * sizes.hk, [&](int64_t job, int) {
    std::vector<T> p, dp;
    for (int64_t head = job % sizes.hk * each; head < (job % sizes.hk + 1) * each; ++head) {
      const Head<T> a = head_of<T>(sizes, rows.sequences, job / sizes.hk, head);
      const int64_t q_stride = a.h * a.e, kv_stride = a.hk * a.e;
      p.resize(static_cast<size_t>(kTile * a.n)), dp.resize(p.size());
      for (int64_t i = 0; i < a.n; i += kTile) {
        const int64_t end = std::min(a.n, i + kTile), j = a.first_key(i), keys = end - j;
        scores(a, q, k, i, j, end, p.data());
        normalise<T>(a, i, j, end, lse, nullptr, p.data());
        gemm(false, true, end - i, keys, a.e, T{1}, dout + a.q_at(i), q_stride, v + a.kv_at(j), kv_stride, T{0},
             dp.data(), keys);
        gemm(true, false, keys, a.e, end - i, T{1}, p.data(), keys, dout + a.q_at(i), q_stride, T{1}, dv + a.kv_at(j),
             kv_stride);
        for (int64_t row = i; row < end; ++row) {
          const T along = dot(dout + a.q_at(row), out + a.q_at(row), a.e);
          const T* pr = p.data() + (row - i) * keys;
          T* ds = dp.data() + (row - i) * keys;
          for (int64_t c = 0; c < keys; ++c) ds[c] = pr[c] * (ds[c] - along) * a.scale;
        }
        gemm(false, false, end - i, a.e, keys, T{1}, dp.data(), keys, k + a.kv_at(j), kv_stride, T{0}, dq + a.q_at(i),
             q_stride);
        gemm(true, false, keys, a.e, end - i, T{1}, dp.data(), keys, q + a.q_at(i), q_stride, T{1}, dk + a.kv_at(j),
             kv_stride);
      }
    }
  });
}

template void Host<float>::attend(const Rows&, const AttentionSizes&, const float*, const float*, const float*, float*,
                                  float*);
template void Host<double>::attend(const Rows&, const AttentionSizes&, const double*, const double*, const double*,
                                   double*, double*);
template void Host<float>::attend_backward(const Rows&, const AttentionSizes&, const float*, const float*, const float*,
                                           const float*, const float*, const float*, float*, float*, float*);
template void Host<double>::attend_backward(const Rows&, const AttentionSizes&, const double*, const double*,
                                            const double*, const double*, const double*, const double*, double*,
                                            double*, double*);

}  // namespace fidelio::train
