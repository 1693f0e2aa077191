// This file has the operations over rows and single values. Attention, delta nets, losses and codes have files of their
// own.
#include "train/host/host.h"

#include <cmath>

#include "core/tensor.h"
#include "train/host/blas.h"
#include "train/host/host_math.h"

namespace fidelio::train {
namespace {

constexpr int64_t kElements = 16384;  // elements of a job over single values
constexpr int64_t kRows = 32;         // rows of a job over rows
constexpr int64_t kColumns = 64;      // columns of a job that sums over rows

}  // namespace

template <typename T>
Host<T>::Host(int threads) : pool_(std::make_unique<ThreadPool>(threads)) {
  load_blas(pool_->threads());
}

template <typename T>
std::shared_ptr<T[]> Host<T>::allocate(int64_t n) {
  // A Buffer maps large blocks, so that memory that is never touched costs nothing.
  auto owner = std::make_shared<Buffer>(static_cast<size_t>(n) * sizeof(T));
  return Array(owner, owner->template as<T>());
}

template <typename T>
void Host<T>::upload(std::span<const float> from, T* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = static_cast<T>(from[i]);
}

template <typename T>
void Host<T>::download(const T* from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
}

template <typename T>
void Host<T>::download(const T* from, std::span<double> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<double>(from[i]);
}

template <typename T>
void Host<T>::zero(T* x, int64_t n) {
  blocks(n, kElements, [=](int64_t first, int64_t last) { std::fill(x + first, x + last, T{0}); });
}

template <typename T>
void Host<T>::copy(const T* from, T* to, int64_t n) {
  blocks(n, kElements, [=](int64_t first, int64_t last) { std::copy(from + first, from + last, to + first); });
}

template <typename T>
void Host<T>::add(const T* from, T* to, int64_t n) {
  blocks(n, kElements, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] += from[i];
  });
}

template <typename T>
void Host<T>::add_absolute(const T* from, T* to, int64_t n) {
  blocks(n, kElements, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] += std::abs(from[i]);
  });
}

template <typename T>
typename Host<T>::Rows Host<T>::load(const Sequences& sequences) {
  const auto n = static_cast<size_t>(sequences.rows());
  Rows rows{sequences, std::vector<int32_t>(n), std::vector<int32_t>(n, -1)};
  for (int64_t s = 0; s < sequences.count(); ++s)
    for (int32_t row = sequences.begin[s]; row < sequences.begin[s + 1]; ++row) {
      rows.positions[row] = row - sequences.begin[s];
      if (row + 1 < sequences.begin[s + 1]) rows.next[row] = sequences.ids[row + 1];
    }
  return rows;
}

template <typename T>
void Host<T>::multiply(const Product<T>& p) {
  constexpr int64_t kM = 128, kN = 512;  // a tile is large enough for a call, and the same for any number of threads
  const int64_t across = (p.n + kN - 1) / kN, down = (p.m + kM - 1) / kM;
  const int64_t lda = p.a_transposed ? p.m : p.k, ldb = p.b_transposed ? p.k : p.n;
  pool_->run(across * down, [&](int64_t job, int) {
    const int64_t i = job / across * kM, j = job % across * kN;
    gemm(p.a_transposed, p.b_transposed, std::min(kM, p.m - i), std::min(kN, p.n - j), p.k, T{1},
         p.a + (p.a_transposed ? i : i * lda), lda, p.b + (p.b_transposed ? j * ldb : j), ldb, p.beta,
         p.c + i * p.n + j, p.n);
  });
}

template <typename T>
void Host<T>::add_bias(const T* bias, int64_t rows, int64_t columns, T* y) {
  blocks(rows, kRows, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t c = 0; c < columns; ++c) y[r * columns + c] += bias[c];
  });
}

template <typename T>
void Host<T>::sum_rows(const T* x, int64_t rows, int64_t columns, T* sums) {
  blocks(columns, kColumns, [=](int64_t first, int64_t last) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < last; ++c) sums[c] += x[r * columns + c];
  });
}

template <typename T>
void Host<T>::gather(const Rows& rows, const T* table, int64_t d, T* x) {
  blocks(rows.rows(), kRows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) std::copy_n(table + rows.ids()[r] * d, d, x + r * d);
  });
}

template <typename T>
void Host<T>::scatter(const Rows& rows, const T* x, int64_t d, T* table) {
  blocks(d, kColumns, [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < rows.rows(); ++r) {
      T* to = table + rows.ids()[r] * d;
      for (int64_t c = first; c < last; ++c) to[c] += x[r * d + c];
    }
  });
}

template <typename T>
void Host<T>::norm(const T* x, const T* weight, double eps, int64_t rows, int64_t columns, T* y) {
  blocks(rows, kRows, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* row = x + r * columns;
      const T inverse = T{1} / std::sqrt(dot(row, row, columns) / static_cast<T>(columns) + static_cast<T>(eps));
      for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = row[c] * inverse * weight[c];
    }
  });
}

// Computes dx = inverse (w dy) - x inverse^3 / d sum(w dy x), and dweight as the sum over rows of dy x inverse.
template <typename T>
void Host<T>::norm_backward(const T* x, const T* weight, double eps, int64_t rows, int64_t columns, const T* dy, T* dx,
                            bool add, T* dweight) {
  std::vector<T> inverses(static_cast<size_t>(rows));
  blocks(rows, kRows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T *row = x + r * columns, *g = dy + r * columns;
      const T n = static_cast<T>(columns), inverse = T{1} / std::sqrt(dot(row, row, columns) / n + static_cast<T>(eps));
      inverses[static_cast<size_t>(r)] = inverse;
      const T along = sum_lanes<T>(columns, [=](int64_t c) { return weight[c] * g[c] * row[c]; });
      const T back = inverse * inverse * inverse / n * along;
      T* out = dx + r * columns;
      for (int64_t c = 0; c < columns; ++c)
        out[c] = (add ? out[c] : T{0}) + (inverse * weight[c] * g[c] - back * row[c]);
    }
  });
  if (dweight == nullptr) return;
  blocks(columns, kColumns, [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < last; ++c)
        dweight[c] += dy[r * columns + c] * x[r * columns + c] * inverses[static_cast<size_t>(r)];
  });
}

template <typename T>
void Host<T>::turn(const AttentionSizes& sizes, int64_t positions) {
  const auto half = static_cast<int64_t>(sizes.frequencies.size());
  if (frequencies_ != sizes.frequencies || rope_scale_ != sizes.rope_scale) cosine_.clear(), sine_.clear();
  frequencies_ = sizes.frequencies, rope_scale_ = sizes.rope_scale;
  for (int64_t p = static_cast<int64_t>(cosine_.size()) / half; p < positions; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * static_cast<double>(frequencies_[static_cast<size_t>(i)]);
      cosine_.push_back(static_cast<T>(std::cos(angle) * rope_scale_));
      sine_.push_back(static_cast<T>(std::sin(angle) * rope_scale_));
    }
}

template <typename T>
void Host<T>::rope(const Rows& rows, const AttentionSizes& sizes, int64_t heads, bool back, T* x) {
  const int64_t e = sizes.e, half = static_cast<int64_t>(sizes.frequencies.size());
  turn(sizes, rows.positions.empty() ? 0 : *std::max_element(rows.positions.begin(), rows.positions.end()) + 1);
  blocks(rows.rows(), kRows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* cosine = cosine_.data() + rows.positions[static_cast<size_t>(r)] * half;
      const T* sine = sine_.data() + rows.positions[static_cast<size_t>(r)] * half;
      for (int64_t head = 0; head < heads; ++head) {
        T *a = x + (r * heads + head) * e, *b = a + half;
        for (int64_t i = 0; i < half; ++i) {
          const T s = back ? -sine[i] : sine[i], turned = a[i] * cosine[i] - b[i] * s;
          b[i] = b[i] * cosine[i] + a[i] * s;
          a[i] = turned;
        }
      }
    }
  });
}

template <typename T>
typename Host<T>::Held Host<T>::swiglu(const T* gate, const T* up, int64_t n, T* y) {
  blocks(n, kElements, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) y[i] = -gate[i];
    exp_row(y + first, T{0}, last - first, y + first);
    for (int64_t i = first; i < last; ++i) y[i] = gate[i] / (T{1} + y[i]) * up[i];
  });
  return {};
}

// Let s = 1 / (1 + e^-gate). Then dup = gate s dy and dgate = up dy s (1 + gate (1 - s)).
template <typename T>
std::pair<typename Host<T>::Held, typename Host<T>::Held> Host<T>::swiglu_backward(T* gate, T* up, int64_t n,
                                                                                   const T* dy, bool) {
  blocks(n, kElements, [=](int64_t first, int64_t last) {
    std::vector<T> e(static_cast<size_t>(last - first));
    for (int64_t i = first; i < last; ++i) e[static_cast<size_t>(i - first)] = -gate[i];
    exp_row(e.data(), T{0}, last - first, e.data());
    for (int64_t i = first; i < last; ++i) {
      const T s = T{1} / (T{1} + e[static_cast<size_t>(i - first)]), g = gate[i];
      gate[i] = up[i] * dy[i] * s * (T{1} + g * (T{1} - s));
      up[i] = g * s * dy[i];
    }
  });
  return {};
}

template <typename T>
double Host<T>::difference(const T* target, double scale, int64_t n, T* x) {
  return sum_blocks(n, [=](int64_t first, int64_t last) {
    double sum = 0;
    for (int64_t i = first; i < last; ++i) {
      const T by = x[i] - target[i];
      sum += static_cast<double>(by) * static_cast<double>(by);
      x[i] = static_cast<T>(scale) * by;
    }
    return sum;
  });
}

template <typename T>
double Host<T>::sum_of_squares(const T* x, const T* unit, int64_t n) {
  return sum_blocks(n, [=](int64_t first, int64_t last) {
    return static_cast<double>(sum_lanes<T>(last - first, [=](int64_t i) {
      const T value = unit == nullptr ? x[first + i] : x[first + i] * unit[first + i];
      return value * value;
    }));
  });
}

template <typename T>
void Host<T>::adam(const T* gradient, const T* unit, int64_t n, const AdamStep& how, T* value, T* m, T* v) {
  const auto step = static_cast<double>(how.step);
  const T first_correction = static_cast<T>(1 / (1 - std::pow(how.beta1, step)));
  const T second_correction = static_cast<T>(1 / (1 - std::pow(how.beta2, step)));
  const T beta1 = static_cast<T>(how.beta1), beta2 = static_cast<T>(how.beta2), eps = static_cast<T>(how.eps);
  const T rate = static_cast<T>(how.rate), low = static_cast<T>(how.low), high = static_cast<T>(how.high);
  blocks(n, kElements, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T one = unit == nullptr ? T{1} : unit[i], g = static_cast<T>(how.clip) * gradient[i] * one;
      m[i] = beta1 * m[i] + (T{1} - beta1) * g;
      v[i] = beta2 * v[i] + (T{1} - beta2) * g * g;
      const T by = rate * one * (m[i] * first_correction) / (std::sqrt(v[i] * second_correction) + eps);
      value[i] = std::min(high, std::max(low, value[i] - by));
    }
  });
}

template class Host<float>;
template class Host<double>;

}  // namespace fidelio::train
