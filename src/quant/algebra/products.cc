#include "quant/algebra/products.h"

#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fidelio {
namespace {

constexpr int64_t kRows = 6;  // rows of a tile; with 2 vectors of columns they use 12 accumulators of 16 registers
constexpr int64_t kTileBytes = 64;     // bytes in a row of a tile
constexpr int64_t kRowBlock = 96;      // rows that are packed together
constexpr int64_t kColumnBlock = 256;  // columns that are packed together
constexpr int64_t kSolveTile = 64;

template <typename T>
constexpr int64_t kColumns = kTileBytes / static_cast<int64_t>(sizeof(T));

// Six rows of a factor as a tile reads them: element (r, k) is values[r * apart + k * step]. Rows that lie along k
// are read in place (step 1). Others are packed first (apart 1, step kRows).
template <typename T>
struct Rows {
  const T* values;
  int64_t apart, step;
};

// Computes one tile of products, p (kRows, kColumns), from kRows rows of a and columns of b that are packed by k.
template <typename T>
void tile_plain(int64_t k, Rows<T> a, const T* b, T* p) {
  T sum[kRows * kColumns<T>] = {};
  for (int64_t i = 0; i < k; ++i)
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < kColumns<T>; ++j)
        sum[r * kColumns<T> + j] =
            std::fma(a.values[r * a.apart + i * a.step], b[i * kColumns<T> + j], sum[r * kColumns<T> + j]);
  std::copy_n(sum, kRows * kColumns<T>, p);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void tile_avx2(int64_t k, Rows<float> a, const float* b, float* p) {
  __m256 sum[kRows][2];
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  for (int64_t i = 0; i < k; ++i, a.values += a.step, b += 16) {
    const __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(a.values + r * a.apart);
      sum[r][0] = _mm256_fmadd_ps(value, left, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(value, right, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(p + r * 16, sum[r][0]);
    _mm256_storeu_ps(p + r * 16 + 8, sum[r][1]);
  }
}
__attribute__((target("avx2,fma"))) void tile_avx2(int64_t k, Rows<double> a, const double* b, double* p) {
  __m256d sum[kRows][2];
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_pd();
  for (int64_t i = 0; i < k; ++i, a.values += a.step, b += 8) {
    const __m256d left = _mm256_loadu_pd(b), right = _mm256_loadu_pd(b + 4);
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
      const __m256d value = _mm256_broadcast_sd(a.values + r * a.apart);
      sum[r][0] = _mm256_fmadd_pd(value, left, sum[r][0]);
      sum[r][1] = _mm256_fmadd_pd(value, right, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) {
    _mm256_storeu_pd(p + r * 8, sum[r][0]);
    _mm256_storeu_pd(p + r * 8 + 4, sum[r][1]);
  }
}
#endif

template <typename T>
void tile(int64_t k, Rows<T> a, const T* b, T* p) {
#if defined(__x86_64__)
  static const bool vectors = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (vectors) return tile_avx2(k, a, b, p);
#endif
  tile_plain(k, a, b, p);
}

// Packs elements [first, first + count) x [k, k + depth) of a factor by k, kWidth of them side by side, with zeros
// beyond `count`.
template <int64_t kWidth, typename T>
void pack(Factor<T> f, bool by_rows, int64_t first, int64_t count, int64_t k, int64_t depth, T* to) {
  // If the packed direction runs across memory (rows of a plain a, or columns of a transposed b), its elements are
  // `stride` apart.
  const bool apart = by_rows != f.transposed;
  const int64_t step = apart ? f.stride : 1, next = apart ? 1 : f.stride;
  for (int64_t begin = 0; begin < count; begin += kWidth, to += depth * kWidth) {
    const int64_t valid = std::min(kWidth, count - begin);
    const T* from = apart ? f.values + (first + begin) * f.stride + k : f.values + k * f.stride + first + begin;
    // Whole tiles take loops of a known length.
    if (valid == kWidth && !apart) {
      for (int64_t i = 0; i < depth; ++i)
        for (int64_t j = 0; j < kWidth; ++j) to[i * kWidth + j] = from[i * next + j];
    } else if (valid == kWidth) {
      for (int64_t i = 0; i < depth; ++i)
#pragma GCC unroll 16
        for (int64_t j = 0; j < kWidth; ++j) to[i * kWidth + j] = from[i + j * step];
    } else {
      for (int64_t i = 0; i < depth; ++i)
        for (int64_t j = 0; j < kWidth; ++j) to[i * kWidth + j] = j < valid ? from[i * next + j * step] : T{0};
    }
  }
}

// Adds or subtracts the first `rows` rows and `columns` columns of a tile's products to or from c.
template <typename T>
void add_tile(const T* __restrict p, T alpha, int64_t rows, int64_t columns, T* __restrict c, int64_t stride) {
  constexpr int64_t W = kColumns<T>;
  if (columns >= W) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t l = 0; l < W; ++l) c[r * stride + l] += alpha * p[r * W + l];
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t l = 0; l < columns; ++l) c[r * stride + l] += alpha * p[r * W + l];
  }
}

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Factor<T> a, Factor<T> b, bool add, T* c, int64_t stride) {
  constexpr int64_t W = kColumns<T>;
  thread_local std::vector<T> packed_a, packed_b;
  packed_a.resize(static_cast<size_t>(rounded_up(kRowBlock, kRows) * kProductRun));
  packed_b.resize(static_cast<size_t>(rounded_up(kColumnBlock, W) * kProductRun));
  if (!add)
    for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * stride, n, T{0});
  T p[kRows * W];
  for (int64_t column = 0; column < n; column += kColumnBlock) {
    const int64_t columns = std::min(kColumnBlock, n - column);
    for (int64_t run = 0; run < k; run += kProductRun) {
      const int64_t depth = std::min(kProductRun, k - run);
      pack<W>(b, false, column, columns, run, depth, packed_b.data());
      for (int64_t row = 0; row < m; row += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, m - row), in_place = a.transposed ? 0 : rows / kRows * kRows;
        if (in_place < rows) pack<kRows>(a, true, row + in_place, rows - in_place, run, depth, packed_a.data());
        for (int64_t j = 0; j < columns; j += W)
          for (int64_t i = 0; i < rows; i += kRows) {
            const Rows<T> six = i < in_place ? Rows<T>{a.values + (row + i) * a.stride + run, a.stride, 1}
                                             : Rows<T>{packed_a.data() + (i - in_place) * depth, 1, kRows};
            tile(depth, six, packed_b.data() + j * depth, p);
            add_tile(p, alpha, std::min(kRows, rows - i), columns - j, c + (row + i) * stride + column + j, stride);
          }
      }
    }
  }
}
template void multiply(int64_t, int64_t, int64_t, float, Factor<float>, Factor<float>, bool, float*, int64_t);
template void multiply(int64_t, int64_t, int64_t, double, Factor<double>, Factor<double>, bool, double*, int64_t);

// Solves by tiles of L's diagonal. A product subtracts what earlier tiles contribute, and the tile itself is solved
// element by element. The innermost loops run over rows of x or of a transposed tile, so that they need no sums
// across lanes.
void solve_right(int64_t rows, int64_t n, const double* lower, int64_t lower_stride, double* x, int64_t stride) {
  std::vector<double> mirrored(static_cast<size_t>(kSolveTile * kSolveTile));
  for (int64_t begin = 0; begin < n; begin += kSolveTile) {
    const int64_t width = std::min(kSolveTile, n - begin);
    if (begin > 0)
      multiply<double>(rows, width, begin, -1, {x, stride}, {lower + begin * lower_stride, lower_stride, true}, true,
                       x + begin, stride);
    for (int64_t i = 0; i < width; ++i)
      for (int64_t j = 0; j <= i; ++j)
        mirrored[static_cast<size_t>(j * width + i)] = lower[(begin + i) * lower_stride + begin + j];
    for (int64_t r = 0; r < rows; ++r) {
      double* v = x + r * stride + begin;
      for (int64_t i = 0; i < width; ++i) {
        const double* column = mirrored.data() + i * width;
        v[i] /= column[i];
        for (int64_t j = i + 1; j < width; ++j) v[j] -= v[i] * column[j];
      }
    }
  }
}

void solve_left(int64_t n, int64_t columns, const double* lower, int64_t lower_stride, double* x, int64_t stride) {
  for (int64_t begin = 0; begin < n; begin += kSolveTile) {
    const int64_t height = std::min(kSolveTile, n - begin);
    if (begin > 0)
      multiply<double>(height, columns, begin, -1, {lower + begin * lower_stride, lower_stride}, {x, stride}, true,
                       x + begin * stride, stride);
    for (int64_t i = 0; i < height; ++i) {
      const double* row = lower + (begin + i) * lower_stride + begin;
      double* v = x + (begin + i) * stride;
      for (int64_t j = 0; j < i; ++j)
        for (int64_t l = 0; l < columns; ++l) v[l] -= row[j] * x[(begin + j) * stride + l];
      for (int64_t l = 0; l < columns; ++l) v[l] /= row[i];
    }
  }
}

}  // namespace fidelio
