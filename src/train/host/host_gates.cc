// This file computes what surrounds the delta rule and attention's output: the convolution over positions, and gates.
#include "train/host/host.h"
#include "train/host/host_math.h"

namespace fidelio::train {
namespace {

constexpr int64_t kGates = 16384;  // elements of a job over single values
constexpr int64_t kBand = 64;      // columns of a job of the convolution

// Computes s = 1 / (1 + e^-x) in place.
template <typename T>
void sigmoid_row(T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = -x[i];
  exp_row(x, T{0}, n, x);
  for (int64_t i = 0; i < n; ++i) x[i] = T{1} / (T{1} + x[i]);
}

// A Band is some columns of the rows of one sequence, with the weights of their convolution by tap.
template <typename T>
struct Band {
  int64_t begin, end;    // rows
  int64_t first, width;  // columns
  int64_t all;           // columns of a row
  int64_t kernel;
  std::vector<T> weight;  // (kernel, width)

  Band(const Sequences& sequences, const DeltaNet& net, const T* weights, int64_t job) : all(net.channels()) {
    const int64_t bands = bands_of(net), sequence = job / bands;
    begin = sequences.begin[static_cast<size_t>(sequence)], end = sequences.begin[static_cast<size_t>(sequence) + 1];
    first = job % bands * kBand, width = std::min(kBand, all - first), kernel = net.kernel;
    for (int64_t tap = 0; tap < kernel; ++tap)
      for (int64_t c = first; c < first + width; ++c) weight.push_back(weights[c * kernel + tap]);
  }
  static int64_t bands_of(const DeltaNet& net) { return (net.channels() + kBand - 1) / kBand; }
  int64_t at(int64_t row) const { return row * all + first; }

  // Computes sum_tap weight[tap] x[row - kernel + 1 + tap] over the rows of the sequence.
  void convolve(int64_t row, const T* x, T* y) const {
    std::fill_n(y, width, T{0});
    for (int64_t tap = std::max<int64_t>(0, kernel - 1 - (row - begin)); tap < kernel; ++tap)
      add_tap(tap, x + at(row - kernel + 1 + tap), y);
  }
  // Computes the transpose, sum_tap weight[tap] dy[row + kernel - 1 - tap], from the band's own rows dy.
  void convolve_back(int64_t row, const T* dy, T* dx) const {
    std::fill_n(dx, width, T{0});
    for (int64_t tap = std::max<int64_t>(0, row + kernel - end); tap < kernel; ++tap)
      add_tap(tap, dy + (row - begin + kernel - 1 - tap) * width, dx);
  }

 private:
  void add_tap(int64_t tap, const T* from, T* to) const {
    const T* w = weight.data() + tap * width;
    for (int64_t c = 0; c < width; ++c) to[c] += w[c] * from[c];
  }
};

}  // namespace

template <typename T>
void Host<T>::convolve(const Rows& rows, const DeltaNet& net, const T* weight, const T* x, T* y) {
  pool_->run(rows.sequences.count() * Band<T>::bands_of(net), [&](int64_t job, int) {
    const Band<T> band(rows.sequences, net, weight, job);
    T s[kBand];
    for (int64_t row = band.begin; row < band.end; ++row) {
      T* to = y + band.at(row);
      band.convolve(row, x, to);
      std::copy_n(to, band.width, s);
      sigmoid_row(s, band.width);
      for (int64_t c = 0; c < band.width; ++c) to[c] *= s[c];
    }
  });
}

// The convolution z has the gradient dz = dy s (1 + z (1 - s)), where s = sigmoid(z). The transpose of the convolution
// makes dx of it.
template <typename T>
void Host<T>::convolve_backward(const Rows& rows, const DeltaNet& net, const T* weight, const T* x, T* dy) {
  pool_->run(rows.sequences.count() * Band<T>::bands_of(net), [&](int64_t job, int) {
    const Band<T> band(rows.sequences, net, weight, job);
    std::vector<T> all(static_cast<size_t>((band.end - band.begin) * band.width));
    T s[kBand];
    for (int64_t row = band.begin; row < band.end; ++row) {
      T* z = all.data() + (row - band.begin) * band.width;
      band.convolve(row, x, z);
      std::copy_n(z, band.width, s);
      sigmoid_row(s, band.width);
      const T* g = dy + band.at(row);
      for (int64_t c = 0; c < band.width; ++c) z[c] = g[c] * s[c] * (T{1} + z[c] * (T{1} - s[c]));
    }
    for (int64_t row = band.begin; row < band.end; ++row) band.convolve_back(row, all.data(), dy + band.at(row));
  });
}

template <typename T>
void Host<T>::gated(Gate function, const T* gate, const T* x, int64_t n, T* y) {
  blocks(n, kGates, [=](int64_t first, int64_t last) {
    std::copy(gate + first, gate + last, y + first);
    sigmoid_row(y + first, last - first);
    if (function == Gate::silu)
      for (int64_t i = first; i < last; ++i) y[i] *= gate[i];
    for (int64_t i = first; i < last; ++i) y[i] *= x[i];
  });
}

// The derivative of s = sigmoid(gate) is s (1 - s), and that of gate s is s (1 + gate (1 - s)).
template <typename T>
void Host<T>::gated_backward(Gate function, T* gate, const T* x, int64_t n, T* dy) {
  const bool silu = function == Gate::silu;
  blocks(n, kGates, [=](int64_t first, int64_t last) {
    std::vector<T> sigmoids(gate + first, gate + last);
    sigmoid_row(sigmoids.data(), last - first);
    for (int64_t i = first; i < last; ++i) {
      const T s = sigmoids[static_cast<size_t>(i - first)], g = gate[i];
      gate[i] = x[i] * dy[i] * s * (silu ? T{1} + g * (T{1} - s) : T{1} - s);
      dy[i] *= silu ? g * s : s;
    }
  });
}

template <typename T>
void Host<T>::split_pairs(const T* from, int64_t rows, int64_t columns, T* a, T* b) {
  blocks(rows, kBand, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::copy_n(from + 2 * r * columns, columns, a + r * columns);
      std::copy_n(from + (2 * r + 1) * columns, columns, b + r * columns);
    }
  });
}

template <typename T>
void Host<T>::join_pairs(const T* a, const T* b, int64_t rows, int64_t columns, T* to) {
  blocks(rows, kBand, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::copy_n(a + r * columns, columns, to + 2 * r * columns);
      std::copy_n(b + r * columns, columns, to + (2 * r + 1) * columns);
    }
  });
}

// Instantiates the members of this file for one type.
#define FIDELIO_GATES(T)                                                                          \
  template void Host<T>::convolve(const Rows&, const DeltaNet&, const T*, const T*, T*);          \
  template void Host<T>::convolve_backward(const Rows&, const DeltaNet&, const T*, const T*, T*); \
  template void Host<T>::gated(Gate, const T*, const T*, int64_t, T*);                            \
  template void Host<T>::gated_backward(Gate, T*, const T*, int64_t, T*);                         \
  template void Host<T>::split_pairs(const T*, int64_t, int64_t, T*, T*);                         \
  template void Host<T>::join_pairs(const T*, const T*, int64_t, int64_t, T*);
FIDELIO_GATES(float)
FIDELIO_GATES(double)
#undef FIDELIO_GATES

}  // namespace fidelio::train
