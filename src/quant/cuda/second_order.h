// H = sum of x x^T over calibration tokens and the factor that GPTQ reads its error feedback from, on the device:
// quant/hessian.h says what they are, and this is the same computation (FP32 sums, FP64 factor, the same damping).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device/blas.h"

struct cusolverDnContext;
struct cusolverDnParams;

namespace fidelio::cuda {

class SecondOrder {
 public:
  // On the current device; `stream` outlives it.
  explicit SecondOrder(Stream stream);
  ~SecondOrder();
  SecondOrder(const SecondOrder&) = delete;
  SecondOrder& operator=(const SecondOrder&) = delete;

  void begin(int64_t in);                                                 // H = 0
  void begin(std::span<const float> matrix, int64_t in, int64_t tokens);  // on the host
  // Adds the rows of x (tokens, in), which lie in the host's memory or the device's and may be changed afterwards.
  void add(std::span<const float> x);
  // H = that of `other` with its columns in this order; a column that is -1 has zeros.
  void take(SecondOrder& other, std::span<const int32_t> columns);

  // The host's part of a factor; the triangle stays on the device.
  struct Factor {
    std::vector<int32_t> order;  // step -> column
    std::vector<float> weight;   // (in) by column: 1 / U_jj^2, 0 where the column is dead
    double damping = 0;          // as used, a fraction of the mean diagonal
    int64_t dead = 0;
  };
  const Factor& factorize(double damping, bool act_order);

  int64_t in() const { return in_; }
  int64_t tokens() const { return tokens_; }
  const Factor& factor() const { return factor_; }
  // On the device: H (in, in); the upper triangle by steps (in, in), zeros below it; the order; H's diagonal.
  const float* matrix();
  const float* upper() const { return upper_.as<float>(); }
  const int32_t* order() const { return order_.as<int32_t>(); }
  const float* diagonal() const { return diagonal_.as<float>(); }
  const float* weight() const { return weight_.as<float>(); }

 private:
  std::vector<float> inspected_diagonal();
  bool cholesky_and_inverse();

  Stream stream_;
  Blas blas_;
  cusolverDnContext* solver_ = nullptr;
  cusolverDnParams* parameters_ = nullptr;
  int64_t in_ = 0, tokens_ = 0;
  bool mirrored_ = false;
  Factor factor_;
  DeviceBuffer sums_, rows_, triangle_, upper_, order_, diagonal_, weight_, workspace_, status_;
};

// The kernels behind it. H's lower triangle to its upper one; the first entry that is not finite, or -1.
void mirror(Stream stream, float* h, int64_t in);
int64_t first_not_finite(Stream stream, const float* values, int64_t n);
// to (n, n) = rows and columns order[0 .. n - 1] of h (in, in), zeros where that is -1.
void gather_square(Stream stream, const float* h, const int32_t* order, int64_t in, int64_t n, float* to);
void read_diagonal(Stream stream, const float* h, int64_t in, float* diagonal);
// lower (in, in), row-major = H in reverse order of the steps, damped, dead columns alone with a 1.
void fill_reversed(Stream stream, const float* h, const int32_t* order, int64_t in, double damping, double* lower);
// upper = the inverse of the triangle, reversed again; weight by column.
void reverse_into(Stream stream, const double* inverse, const int32_t* order, const float* diagonal, int64_t in,
                  float* upper, float* weight);

}  // namespace fidelio::cuda
