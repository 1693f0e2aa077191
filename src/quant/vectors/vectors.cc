#include "quant/vectors/vectors.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "quant/algebra/products.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

VectorWork begin(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, std::vector<int64_t> order,
                 const SharedCodebooks* codebooks) {
  VectorWork k;
  k.shape = vector_shape(spec, out, in);
  if (const auto name = shared_name(spec); codebooks && !name.empty() && codebooks->contains(name))
    k.shared = &codebooks->at(name);
  k.padded = k.shape.vectors * kVectorDim;
  k.vector = std::move(order);
  k.w.assign(static_cast<size_t>(out * k.padded), 0.0f);
  for (int64_t r = 0; r < out; ++r)
    for (int64_t i = 0; i < k.padded; ++i)
      if (k.column_of(i) < in) k.w[r * k.padded + i] = w[r * in + k.column_of(i)];
  k.done.assign(k.w.size(), 0.0f);
  k.corrected.assign(static_cast<size_t>(out * k.shape.vectors), 0);
  return k;
}

// Normalises rows to a root mean square of one, then columns, in one pass as in the paper. Columns hold a sixteenth
// of their factor and rows sixteen times theirs, so that both are normal FP16 numbers.
void normalise(VectorWork& k) {
  k.row.assign(static_cast<size_t>(k.shape.out), 0.0f);
  std::vector<double> squares(static_cast<size_t>(k.padded), 0.0);
  for (int64_t r = 0; r < k.shape.out; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < k.padded; ++i) sum += double{k.w[r * k.padded + i]} * k.w[r * k.padded + i];
    k.row[r] = static_cast<float>(16 * std::sqrt(sum / static_cast<double>(k.shape.in)));
    if (sum > 0)
      for (int64_t i = 0; i < k.padded; ++i) {
        const double x = 16 * double{k.w[r * k.padded + i]} / k.row[r];
        squares[i] += x * x;
      }
  }
  k.column.assign(static_cast<size_t>(k.padded), 0.0f);
  k.metrics.assign(k.column.size(), 0.0f);
  for (int64_t i = 0; i < k.padded; ++i) {
    k.column[i] = stored_scale(std::max(0.05, std::sqrt(squares[i] / static_cast<double>(k.shape.out))) / 16);
    k.metrics[i] = k.price[i] * k.column[i] * k.column[i];
  }
}

// Returns the vectors in the order of the file.
std::vector<int64_t> as_stored(int64_t in) {
  std::vector<int64_t> order(static_cast<size_t>((in + kVectorDim - 1) / kVectorDim));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Computes x of a vector as its codebook sees it. `scale` is the row's; x is zero if the row is.
void scaled(const VectorWork& k, const float* w, int64_t place, float scale, float* x) {
  for (int64_t j = 0; j < kVectorDim; ++j)
    x[j] = scale > 0 ? w[place * kVectorDim + j] / (scale * k.column[place * kVectorDim + j]) : 0.0f;
}

VectorSamples sample(const VectorWork& k, const std::vector<int32_t>& vectors) {
  VectorSamples s;
  s.metrics = k.metrics;
  for (const int32_t which : vectors) {
    const int64_t r = std::max(0, which) / k.shape.vectors, place = std::max(0, which) % k.shape.vectors;
    s.x.resize(s.x.size() + kVectorDim);
    scaled(k, k.w.data() + r * k.padded, place, which < 0 ? 0.0f : k.row[r], s.x.data() + s.x.size() - kVectorDim);
    s.weight.push_back(which < 0 ? 1.0f : k.row[r] * k.row[r]);
    s.place.push_back(static_cast<int32_t>(place));
  }
  return s;
}

void fit_books(VectorWork& k, ThreadPool& pool) {
  k.books.clear();
  k.book_scale.clear();
  if (k.shared) {
    VectorBook book = shared_book(k.shape, *k.shared);
    const VectorSamples samples = sample(k, thinned(sample_vectors(k.shape, 0, k.row, k.corrected)));
    k.book_scale.push_back(fit_shared_scale(samples, book));
    k.books.push_back(std::move(book));
    return;
  }
  for (int64_t b = 0; b < k.shape.blocks; ++b) {
    float scale = 1;
    k.books.push_back(fit_vector_book(sample(k, sample_vectors(k.shape, b, k.row, k.corrected)), k.shape.entries,
                                      k.shape.signs, pool, &scale));
    k.book_scale.push_back(scale);
  }
}

// Marks the `sparse` vectors whose error costs most by itself for correction.
void choose_corrections(VectorWork& k, ThreadPool& pool) {
  if (k.shape.sparse == 0) return;
  const int64_t V = k.shape.vectors;
  std::vector<float> cost(static_cast<size_t>(k.shape.out * V));
  over_rows(k.shape, pool, [&](int64_t block, int64_t first, int64_t last) {
    const VectorBook& book = k.books[block];
    std::vector<float> norm(static_cast<size_t>(book.entries()));
    for (int64_t v = 0; v < V; ++v) {
      const float* metric = &k.metrics[v * kVectorDim];
      book.norms(metric, norm.data());
      for (int64_t r = first; r < last; ++r) {
        float x[kVectorDim], q[kVectorDim], sum = 0;
        const float scale = k.row[r] * k.book_scale[block];
        scaled(k, k.w.data() + r * k.padded, v, scale, x);
        book.decode(book.nearest(x, metric, norm.data()), q);
        for (int64_t j = 0; j < kVectorDim; ++j) sum += metric[j] * (x[j] - q[j]) * (x[j] - q[j]);
        cost[r * V + v] = sum * scale * scale;
      }
    }
  });
  mark_corrections(cost, k.shape.sparse, k.corrected);
}

// Computes e U^-1 for the vector at `first` of one row. Later columns lose this times their part of U.
void divide(const HessianFactor& f, int64_t first, float* e) {
  for (int64_t j = 0; j < kVectorDim; ++j) {
    for (int64_t i = 0; i < j; ++i) e[j] -= e[i] * f.u(first + i, first + j);
    e[j] /= f.u(first + j, first + j);
  }
}

// Chooses the codes of rows [first, last), vector by vector. With a factor, each one's error is fed back into later
// columns.
void choose_rows(VectorWork& k, const HessianFactor* factor, int64_t block, int64_t first, int64_t last) {
  const VectorBook& book = k.books[block];
  const int64_t V = k.shape.vectors, rows = last - first;
  std::vector<float> norm(static_cast<size_t>(book.entries())), error(static_cast<size_t>(rows * kVectorDim));
  std::vector<float> target(k.w.begin() + first * k.padded, k.w.begin() + last * k.padded);
  for (int64_t v = 0; v < V; ++v) {
    const float* metric = &k.metrics[v * kVectorDim];
    book.norms(metric, norm.data());
    for (int64_t r = 0; r < rows; ++r) {
      const float* want = target.data() + r * k.padded + v * kVectorDim;
      float x[kVectorDim], q[kVectorDim], *e = &error[r * kVectorDim];
      const float scale = k.row[first + r];
      scaled(k, target.data() + r * k.padded, v, scale, x);
      const int64_t at = (first + r) * V + v;
      k.code[at] = book.nearest(x, metric, norm.data());
      book.decode(k.code[at], q);
      for (int64_t j = 0; j < kVectorDim; ++j) q[j] *= scale * k.column[v * kVectorDim + j];
      for (int64_t j = 0; j < kVectorDim; ++j) e[j] = want[j] - q[j];
      if (k.corrected[at]) {
        const VectorCorrection c = k.correction[at] = correct(e);
        for (int64_t j = 0; j < kVectorDim; ++j) q[j] += c.at(j);
        for (int64_t j = 0; j < kVectorDim; ++j) e[j] = want[j] - q[j];
      }
      std::copy_n(q, kVectorDim, &k.done[(first + r) * k.padded + v * kVectorDim]);
      if (factor) divide(*factor, v * kVectorDim, e);
    }
    const int64_t next = (v + 1) * kVectorDim;
    if (factor && next < k.padded)
      multiply<float>(rows, k.padded - next, kVectorDim, -1, {error.data(), kVectorDim},
                      {factor->upper.as<const float>() + v * kVectorDim * k.padded + next, k.padded}, true,
                      target.data() + next, k.padded);
  }
}

void choose(VectorWork& k, const HessianFactor* factor, ThreadPool& pool) {
  for (int64_t b = 0; b < k.shape.blocks; ++b)
    for (int64_t r = k.shape.first_row(b); r < k.shape.first_row(b + 1); ++r)
      k.row[r] = k.row[r] == 0 ? 0.0f : stored_scale(double{k.row[r]} * k.book_scale[b]);
  k.code.resize(k.corrected.size());
  k.correction.resize(k.shape.sparse > 0 ? k.corrected.size() : 0);
  over_rows(k.shape, pool,
            [&](int64_t block, int64_t first, int64_t last) { choose_rows(k, factor, block, first, last); });
}

void quantise(VectorWork& k, const HessianFactor* factor, ThreadPool& pool) {
  normalise(k);
  fit_books(k, pool);
  if (k.shape.sparse > 0) {
    choose_corrections(k, pool);
    fit_books(k, pool);  // without the vectors that are corrected
  }
  choose(k, factor, pool);
}

// Returns H in working order. Columns beyond the matrix have a diagonal that keeps them independent of all others.
Hessian reordered(const Hessian& hessian, const VectorWork& k) {
  const int64_t in = hessian.in(), n = k.padded;
  std::vector<float> h(static_cast<size_t>(n * n), 0.0f);
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = 0; b < n; ++b)
      if (k.column_of(a) < in && k.column_of(b) < in)
        h[a * n + b] = hessian.matrix()[k.column_of(a) * in + k.column_of(b)];
  return Hessian::from_matrix(h, n, hessian.tokens());
}

// Returns the cost of an error in one column of a vector if only later vectors make up for it. It is the diagonal of
// (U_vv^T U_vv)^-1, the squared length of row j of U_vv^-1.
std::vector<float> prices(const Hessian& h, const HessianFactor& f) {
  std::vector<float> price(static_cast<size_t>(f.in));
  for (int64_t first = 0; first < f.in; first += kVectorDim)
    for (int64_t j = 0; j < kVectorDim; ++j) {
      if (h.matrix()[(first + j) * f.in + first + j] == 0) continue;  // no token uses this column, so any value will do
      float unit[kVectorDim] = {};
      unit[j] = 1;
      divide(f, first, unit);
      for (const float x : unit) price[first + j] += x * x;
    }
  return price;
}

}  // namespace

float stored_scale(double x) {
  const float value = static_cast<float>(std::clamp(x, 0x1p-20, 60000.0));
  return to_float(to_f16(value));
}

VectorCorrection correct(const float* error) {
  VectorCorrection c;
  float largest = 0;
  for (int64_t j = 0; j < kVectorDim; ++j) largest = std::max(largest, std::fabs(error[j]));
  c.scale = to_f16(std::min(largest / 127, 60000.0f));
  const float scale = to_float(c.scale);
  for (int64_t j = 0; j < kVectorDim; ++j)
    c.value[j] = scale == 0 ? 0 : static_cast<int8_t>(std::clamp(std::nearbyint(error[j] / scale), -127.0f, 127.0f));
  return c;
}

void add_normalised(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t count,
                    VectorSamples& to) {
  VectorWork k = begin(spec, w, out, in, as_stored(in), nullptr);
  k.price.assign(static_cast<size_t>(k.padded), 1.0f);
  normalise(k);
  Rng rng(3, static_cast<uint64_t>(to.size()));
  for (int64_t i = 0; i < count; ++i) {
    const auto r = static_cast<int64_t>(rng.below(static_cast<uint64_t>(out)));
    const auto place = static_cast<int64_t>(rng.below(static_cast<uint64_t>(k.shape.vectors)));
    if (k.row[r] == 0) continue;
    to.x.resize(to.x.size() + kVectorDim);
    scaled(k, k.w.data() + r * k.padded, place, k.row[r], to.x.data() + to.x.size() - kVectorDim);
    to.weight.push_back(1);
    to.place.push_back(0);
  }
}

LinearWeight quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                              std::span<const float> price, const SharedCodebooks* codebooks, ThreadPool& pool) {
  VectorWork k = begin(spec, w, out, in, as_stored(in), codebooks);
  k.price.assign(static_cast<size_t>(k.padded), 0.0f);
  std::copy(price.begin(), price.end(), k.price.begin());
  quantise(k, nullptr, pool);
  return to_weight(spec, k);
}

GptqResult quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                            const Hessian& hessian, const GptqOptions& options, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  check(options.gradient.empty() || !spec.shared,
        "{}: as the paper has it every block has a codebook of its own; leave out the m", to_string(spec));
  std::vector<float> diagonal;
  for (int64_t c = 0; c < in; ++c) diagonal.push_back(hessian.matrix()[c * in + c]);
  VectorWork k = begin(spec, w, out, in, vector_order(diagonal), options.codebooks);
  const Hessian ordered = reordered(hessian, k);
  const HessianFactor factor = factorize(ordered, options.damping, false, pool);
  VectorDescent descent{options.descent_passes, options.descend_codes, options.refit_scales};
  if (options.gradient.empty()) {
    k.price = prices(ordered, factor);
    quantise(k, &factor, pool);
  } else {
    for (int64_t i = 0; i < k.padded; ++i) k.price.push_back(ordered.matrix()[i * k.padded + i]);
    normalise(k);
    quantise_as_paper(k, options.gradient, options.paper, pool);
    descent.passes = 0;
  }
  const VectorLosses losses = descend_vectors(k, ordered.matrix(), descent, pool);
  GptqResult result{.weight = to_weight(spec, k),
                    .report = {.damping = factor.damping, .dead_columns = factor.dead - (k.padded - in)}};
  result.report.energy = losses.energy;
  result.report.loss_gptq = losses.before;
  result.report.loss = losses.after;
  result.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace fidelio
