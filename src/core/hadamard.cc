#include "core/hadamard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr int64_t kLargestCore = 512;  // The product with this core is dense, so a column takes K additions.

// This is the finite field of p^k elements, with k at most 3. An element is the number whose digits to the base p are
// the coefficients of a polynomial of degree below k.
class Field {
 public:
  // Returns nothing if q is no such power of an odd prime.
  static std::optional<Field> of(int64_t q) {
    for (int64_t p = 3; p <= q; p += 2) {
      if (q % p != 0) continue;  // The first divisor that is found is a prime.
      int k = 1;
      for (int64_t power = p; power < q; power *= p) ++k;
      if (std::llround(std::pow(p, k)) != q || k > 3) return std::nullopt;
      return Field(p, k);
    }
    return std::nullopt;
  }

  int64_t size() const { return size_; }
  int64_t difference(int64_t a, int64_t b) const {
    int64_t sum = 0;
    for (int64_t unit = 1; unit < size_; unit *= p_, a /= p_, b /= p_) sum += unit * ((a % p_ - b % p_ + p_) % p_);
    return sum;
  }
  // Returns the quadratic character of every element: 0 for 0, 1 for squares and -1 for the others.
  std::vector<int> characters() const {
    std::vector<int> character(static_cast<size_t>(size_), -1);
    character[0] = 0;
    for (int64_t a = 1; a < size_; ++a) character[static_cast<size_t>(product(a, a))] = 1;
    return character;
  }

 private:
  Field(int64_t p, int k) : p_(p), k_(k), size_(std::llround(std::pow(p, k))) {
    // Searches the first tail for which x^k - tail is irreducible. As k is at most 3, it is so if it has no root.
    const auto has_root = [&] {
      for (int64_t x = 0; x < p_; ++x) {
        int64_t value = 0, power = 1;
        for (int i = 0; i < k_; ++i, power = power * x % p_) value = (value + tail_[i] * power) % p_;
        if (power == value) return true;
      }
      return false;
    };
    for (int64_t code = 0; k_ > 1; ++code) {
      for (int64_t i = 0, rest = code; i < 3; ++i, rest /= p_) tail_[i] = rest % p_;
      if (!has_root()) break;
    }
  }

  int64_t product(int64_t a, int64_t b) const {
    int64_t terms[5] = {}, x[3], y[3];
    for (int i = 0; i < 3; ++i, a /= p_, b /= p_) x[i] = a % p_, y[i] = b % p_;
    for (int i = 0; i < k_; ++i)
      for (int j = 0; j < k_; ++j) terms[i + j] = (terms[i + j] + x[i] * y[j]) % p_;
    for (int i = 2 * k_ - 2; i >= k_; --i)  // Every term of degree k or more is reduced by x^i = x^(i - k) tail.
      for (int j = 0; j < k_; ++j) terms[i - k_ + j] = (terms[i - k_ + j] + terms[i] * tail_[j]) % p_;
    return terms[0] + p_ * (terms[1] * (k_ > 1) + p_ * terms[2] * (k_ > 2));
  }

  int64_t p_;
  int k_;
  int64_t size_;
  int64_t tail_[3] = {};
};

// Returns the conference matrix C with C C^T = q I. It is Q(a, b) = character(a - b) with a row and a column of ones
// put before it, where the column is multiplied by `below`.
std::vector<int8_t> conference(const Field& field, int below) {
  const int64_t n = field.size() + 1;
  const std::vector<int> character = field.characters();
  std::vector<int8_t> c(static_cast<size_t>(n * n));
  for (int64_t i = 1; i < n; ++i) {
    c[static_cast<size_t>(i)] = 1;
    c[static_cast<size_t>(i * n)] = static_cast<int8_t>(below);
    for (int64_t j = 1; j < n; ++j)
      c[static_cast<size_t>(i * n + j)] =
          static_cast<int8_t>(character[static_cast<size_t>(field.difference(i - 1, j - 1))]);
  }
  return c;
}

// Paley's first construction is I + C with a skew-symmetric C.
std::vector<int8_t> paley_first(const Field& field) {
  std::vector<int8_t> h = conference(field, -1);
  for (size_t i = 0; i < h.size(); i += static_cast<size_t>(field.size()) + 2) h[i] = 1;
  return h;
}

// Paley's second construction is C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1] with a symmetric C.
std::vector<int8_t> paley_second(const Field& field) {
  const int64_t n = field.size() + 1;
  const std::vector<int8_t> c = conference(field, 1);
  std::vector<int8_t> h(static_cast<size_t>(4 * n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int8_t value = c[static_cast<size_t>(i * n + j)];
      const int8_t four[2][2] = {{static_cast<int8_t>(i == j ? 1 : value), static_cast<int8_t>(i == j ? -1 : value)},
                                 {static_cast<int8_t>(i == j ? -1 : value), static_cast<int8_t>(i == j ? -1 : -value)}};
      for (int64_t a = 0; a < 2; ++a)
        for (int64_t b = 0; b < 2; ++b) h[static_cast<size_t>((2 * i + a) * 2 * n + 2 * j + b)] = four[a][b];
    }
  return h;
}

bool has_paley(int64_t order) {
  if (order < 4 || order % 4 != 0) return false;
  return Field::of(order - 1).has_value() || ((order / 2 - 1) % 4 == 1 && Field::of(order / 2 - 1).has_value());
}

}  // namespace

std::vector<int8_t> paley(int64_t order) {
  if (order < 4 || order % 4 != 0) return {};
  // This needs order - 1 = 3 mod 4, which holds as 4 divides the order.
  if (const auto field = Field::of(order - 1)) return paley_first(*field);
  if (const auto field = Field::of(order / 2 - 1); field && field->size() % 4 == 1) return paley_second(*field);
  return {};
}

double Hadamard::scale() const { return 1 / std::sqrt(static_cast<double>(order)); }

int Hadamard::entry(int64_t row, int64_t column) const {
  const int dense = core == 1 ? 1 : signs[static_cast<size_t>(row / doubled * core + column / doubled)];
  const auto both = static_cast<uint64_t>(row % doubled & column % doubled);
  return std::popcount(both) % 2 == 0 ? dense : -dense;
}

Hadamard hadamard_for(int64_t length, int64_t stride) {
  check(length > 0 && stride > 0, "a Hadamard matrix turns at least one column, not {} by {}", length, stride);
  const int64_t two = length & -length, odd = length / two;
  Hadamard how{.columns = length * stride, .stride = stride, .order = two, .doubled = two, .core = 1, .signs = {}};
  for (int64_t factor = odd; factor > 1; factor -= 2) {
    if (odd % factor != 0) continue;
    for (int64_t doublings = 4; doublings <= two && factor * doublings <= kLargestCore; doublings *= 2) {
      const int64_t core = factor * doublings;
      if (!has_paley(core)) continue;
      how.order = factor * two, how.doubled = two / doublings, how.core = core, how.signs = paley(core);
      return how;
    }
  }
  return how;
}

void turn(const Hadamard& how, std::span<double> row) {
  check(static_cast<int64_t>(row.size()) == how.columns, "a row of {} columns is to be turned, not of {}", how.columns,
        row.size());
  const int64_t part = how.doubled * how.stride;  // It is the part of a block within which the doublings act.
  std::vector<double> turned(static_cast<size_t>(how.block()));
  for (double* block = row.data(); block < row.data() + how.columns; block += how.block()) {
    for (int64_t half = how.stride; half < part; half *= 2)
      for (int64_t i = 0; i < how.block(); ++i)
        if (i / half % 2 == 0) {
          const double a = block[i], b = block[i + half];
          block[i] = a + b, block[i + half] = a - b;
        }
    for (int64_t i = 0; i < how.block(); ++i) {
      double sum = how.core == 1 ? block[i] : 0;
      if (how.core > 1)
        for (int64_t j = 0; j < how.core; ++j)
          sum += how.signs[static_cast<size_t>(i / part * how.core + j)] * block[j * part + i % part];
      turned[static_cast<size_t>(i)] = sum * how.scale();
    }
    std::copy(turned.begin(), turned.end(), block);
  }
}

}  // namespace fidelio
