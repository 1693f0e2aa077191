// This file has Host's losses of rows of logits and their gradients.
#include "train/host/host.h"
#include "train/host/host_math.h"

namespace fidelio::train {
namespace {

// A Row is one row of two models' logits. The normalisers are kept in double and enter as their difference, so that
// ln p - ln q is as exact as the difference of the logits.
template <typename T>
struct Row {
  int64_t v;
  std::vector<T> p, q;  // probabilities of the teacher and the student
  double lse_p = 0, lse_q = 0;

  explicit Row(int64_t size) : v(size), p(static_cast<size_t>(size)), q(static_cast<size_t>(size)) {}

  static double soften(const T* logits, int64_t v, T* p) {
    const T top = *std::max_element(logits, logits + v);
    exp_row(logits, top, v, p);
    const T sum = sum_lanes<T>(v, [=](int64_t k) { return p[k]; }), inverse = T{1} / sum;
    for (int64_t k = 0; k < v; ++k) p[k] *= inverse;
    return static_cast<double>(top) + std::log(static_cast<double>(sum));
  }
};

}  // namespace

// Let d = ln p - ln q. Then forward = sum p d, gradient q - p; reverse = -sum q d, gradient q (-d - reverse); label =
// -ln q(label), gradient q - [label].
template <typename T>
void Host<T>::divergence(const T* teacher, T* student, const int32_t* labels, int64_t rows, int64_t v,
                         const LossMix& mix, double gradient_scale, T* losses) {
  blocks(rows, 8, [&](int64_t first, int64_t last) {
    Row<T> row(v);
    T *p = row.p.data(), *q = row.q.data();
    for (int64_t r = first; r < last; ++r) {
      T* z = student + r * v;
      T* loss = losses + r * kLosses;
      row.lse_q = Row<T>::soften(z, v, q);
      loss[0] = loss[1] = loss[2] = 0;
      const int32_t label_id = labels == nullptr ? -1 : labels[r];
      if (label_id >= 0) loss[2] = static_cast<T>(row.lse_q - static_cast<double>(z[label_id]));
      if (teacher != nullptr) {
        const T* t = teacher + r * v;
        row.lse_p = Row<T>::soften(t, v, p);
        const T shift = static_cast<T>(row.lse_p - row.lse_q);
        loss[0] = sum_lanes<T>(v, [=](int64_t k) { return p[k] * (t[k] - z[k] - shift); });
        loss[1] = -sum_lanes<T>(v, [=](int64_t k) { return q[k] * (t[k] - z[k] - shift); });
        if (gradient_scale == 0) continue;
        const T forward = static_cast<T>(gradient_scale * mix.forward),
                reverse = static_cast<T>(gradient_scale * mix.reverse);
        const T mean = loss[1];
        for (int64_t k = 0; k < v; ++k) z[k] = forward * (q[k] - p[k]) + reverse * q[k] * (z[k] - t[k] + shift - mean);
      } else if (gradient_scale != 0) {
        std::fill(z, z + v, T{0});
      }
      if (gradient_scale == 0 || mix.label == 0 || label_id < 0) continue;
      const T label = static_cast<T>(gradient_scale * mix.label);
      for (int64_t k = 0; k < v; ++k) z[k] += label * q[k];
      z[label_id] -= label;
    }
  });
}

template void Host<float>::divergence(const float*, float*, const int32_t*, int64_t, int64_t, const LossMix&, double,
                                      float*);
template void Host<double>::divergence(const double*, double*, const int32_t*, int64_t, int64_t, const LossMix&, double,
                                       double*);

}  // namespace fidelio::train
