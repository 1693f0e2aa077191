#include "io/rows/stored_rows.h"

#include <algorithm>
#include <cstring>

namespace fidelio {
namespace {

// Copies rows of a matrix that a file has by columns: element (r, c) of a part with `each` rows is its number c * each
// + r. A few rows and columns at a time stay in a cache.
template <typename Number>
void copy_from_columns(const Number* part, const RowRun& run, int64_t each, int64_t columns, Number* to) {
  constexpr int64_t kTile = 32;
  for (int64_t first = 0; first < run.rows; first += kTile)
    for (int64_t begin = 0; begin < columns; begin += kTile)
      for (int64_t r = first; r < std::min(first + kTile, run.rows); ++r)
        for (int64_t c = begin; c < std::min(begin + kTile, columns); ++c)
          to[r * columns + c] = part[c * each + run.first_row + r * run.step];
}

OwnedTensor rows_of_columns(const StoredRows& stored, const Shape& shape) {
  const Tensor& matrix = stored.matrix.view;
  OwnedTensor rows = OwnedTensor::allocate(matrix.dtype, shape);
  RowRun run = stored.runs.front();
  const int64_t part = run.first_row / stored.each;
  run.first_row %= stored.each;
  const auto copy = [&]<typename Number>(Number) {
    copy_from_columns(reinterpret_cast<const Number*>(matrix.data) + part * stored.each * shape[1], run, stored.each,
                      shape[1], reinterpret_cast<Number*>(rows.view.data));
  };
  size_of(matrix.dtype) == 4 ? copy(uint32_t{}) : copy(uint16_t{});
  return rows;
}

// Copies elements of `bytes` bytes, rows of a matrix or single numbers.
void copy_runs(const std::byte* from, std::span<const RowRun> runs, size_t bytes, std::byte* to) {
  for (const RowRun& run : runs) {
    const int64_t together = run.step == 1 ? run.rows : 1;
    for (int64_t row = 0; row < run.rows; row += together) {
      const size_t count = static_cast<size_t>(together) * bytes;
      std::memcpy(to, from + static_cast<size_t>(run.first_row + row * run.step) * bytes, count);
      to += count;
    }
  }
}

}  // namespace

OwnedTensor rows_of(const StoredRows& stored, const Shape& shape) {
  if (stored.each > 0) return rows_of_columns(stored, shape);
  const Tensor& matrix = stored.matrix.view;
  const auto row_bytes = static_cast<size_t>(shape[1] * size_of(matrix.dtype));
  if (stored.runs.size() == 1 && stored.runs.front().step == 1) {
    OwnedTensor view = stored.matrix;
    view.view.data += static_cast<size_t>(stored.runs.front().first_row) * row_bytes;
    view.view.shape = shape;
    return view;
  }
  OwnedTensor rows = OwnedTensor::allocate(matrix.dtype, shape);
  copy_runs(matrix.data, stored.runs, row_bytes, rows.view.data);
  return rows;
}

OwnedTensor numbers_of(const OwnedTensor& all, std::span<const RowRun> runs, int64_t count) {
  OwnedTensor numbers = OwnedTensor::allocate(all.view.dtype, {count});
  copy_runs(all.view.data, runs, static_cast<size_t>(size_of(all.view.dtype)), numbers.view.data);
  return numbers;
}

}  // namespace fidelio
