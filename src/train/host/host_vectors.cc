// This file has Host's operations on vector codes: decoding and its gradients.
#include "train/host/host.h"
#include "train/host/rounding.h"
#include "train/host/vector_rounding.h"

namespace fidelio::train {
namespace {

constexpr int64_t kRows = 16;  // rows of a job

}  // namespace

template <typename T>
void Host<T>::decode(const VectorSizes& s, const VectorView<T>& view, T* values) {
  blocks(s.out, kRows, [&](int64_t first, int64_t last) {
    for (int64_t at = first * s.vectors; at < last * s.vectors; ++at)
      decode_vector(s, view, at / s.vectors, at % s.vectors, values);
  });
  blocks(s.corrections, 1024, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) add_correction(s, view, i, values);
  });
}

template <typename T>
void Host<T>::decode_backward(const VectorSizes& s, const VectorView<T>& view, const VectorGradient<T>& to) {
  for (int64_t i = 0; i < s.corrections; ++i)
    for (int64_t j = 0; j < kVector; ++j) {
      const auto row = static_cast<int64_t>(view.place[2 * i]), c = static_cast<int64_t>(view.place[2 * i + 1]) * 8 + j;
      to.correction[i * kVector + j] = c < s.in ? to.latent[row * s.in + c] : T{0};
    }
  const int64_t jobs = (s.out + kRows - 1) / kRows, book = s.books * s.entries * kVector;
  std::vector<T> columns(static_cast<size_t>(jobs * s.in));
  std::vector<T> books(to.codebook == nullptr ? 0 : static_cast<size_t>(jobs * book));
  blocks(s.out, kRows, [&](int64_t first, int64_t last) {
    T* column = columns.data() + first / kRows * s.in;
    T* of_book = to.codebook == nullptr ? nullptr : books.data() + first / kRows * book;
    for (int64_t r = first; r < last; ++r) {
      const T row = stored_f16(view.row[r]);
      T along = 0;
      for (int64_t c = 0; c < s.in; ++c) {
        const auto code = static_cast<int64_t>(view.code[r * s.vectors + c / kVector]);
        const int64_t at = (static_cast<int64_t>(view.book[r]) * s.entries + code % s.entries) * kVector + c % kVector;
        const bool negated = is_negated(s.signs, static_cast<int>(code / s.entries), c % kVector);
        const T level = negated ? -view.codebook[at] : view.codebook[at], scale = stored_f16(view.column[c]);
        const T by = to.latent[r * s.in + c];
        along += by * scale * level;
        column[c] += by * row * level;
        to.latent[r * s.in + c] = by * row * scale;
        if (of_book != nullptr) of_book[at] += negated ? -by * row * scale : by * row * scale;
      }
      to.row[r] = along;
    }
  });
  for (int64_t c = 0; c < s.in; ++c) to.column[c] = 0;
  for (size_t i = 0; i < columns.size(); ++i) to.column[i % static_cast<size_t>(s.in)] += columns[i];
  for (size_t i = 0; i < books.size(); ++i) to.codebook[i % static_cast<size_t>(book)] += books[i];
}

template void Host<float>::decode(const VectorSizes&, const VectorView<float>&, float*);
template void Host<double>::decode(const VectorSizes&, const VectorView<double>&, double*);
template void Host<float>::decode_backward(const VectorSizes&, const VectorView<float>&, const VectorGradient<float>&);
template void Host<double>::decode_backward(const VectorSizes&, const VectorView<double>&,
                                            const VectorGradient<double>&);

}  // namespace fidelio::train
