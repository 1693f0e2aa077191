// This file sums H, the sum of x x^T over calibration tokens, on the GPU, and makes the factor that GPTQ takes its
// error feedback from. quant/hessian.h explains both; this is the same computation (FP32 sums, FP64 factor, the same
// damping), but the tensor cores round inputs to TF32. H is then that of inputs which differ by at most 2^-10 of their
// size, less than what 16-bit activations change as the model is served.
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
  // Works on the current device. `stream` must outlive the object.
  explicit SecondOrder(Stream stream);
  ~SecondOrder();
  SecondOrder(const SecondOrder&) = delete;
  SecondOrder& operator=(const SecondOrder&) = delete;

  void begin(int64_t in);                                                 // sets H = 0
  void begin(std::span<const float> matrix, int64_t in, int64_t tokens);  // starts from a matrix on the host
  // Adds the rows of x (tokens, in). They may lie in the host's memory or the device's, and may be changed
  // afterwards.
  void add(std::span<const float> x);
  // Sets H to that of `other` with its columns in this order. A column index of -1 gives zeros.
  void take(SecondOrder& other, std::span<const int32_t> columns);

  // A Factor is the part of the factorisation that the host needs; the triangle stays on the device.
  struct Factor {
    std::vector<int32_t> order;  // maps a step to its column
    std::vector<float> weight;   // (in) by column: 1 / U_jj^2, or 0 where the column is dead
    double damping = 0;          // the damping used, as a fraction of the mean diagonal
    int64_t dead = 0;
  };
  const Factor& factorize(double damping, bool act_order);

  int64_t in() const { return in_; }
  int64_t tokens() const { return tokens_; }
  const Factor& factor() const { return factor_; }
  // These are on the device: H (in, in); the upper triangle in the order of steps (in, in), with zeros below it; the
  // order; and H's diagonal.
  const float* matrix();
  const float* upper() const { return upper_.as<float>(); }
  const int32_t* order() const { return order_.as<int32_t>(); }
  const float* diagonal() const { return diagonal_.as<float>(); }
  const float* weight() const { return weight_.as<float>(); }

 private:
  std::vector<float> inspected_diagonal();
  bool cholesky_and_inverse();

  Stream stream_;
  Blas sums_blas_;
  cusolverDnContext* solver_ = nullptr;
  cusolverDnParams* parameters_ = nullptr;
  int64_t in_ = 0, tokens_ = 0;
  bool mirrored_ = false;
  Factor factor_;
  DeviceBuffer sums_, rows_, triangle_, upper_, order_, diagonal_, weight_, workspace_, status_;
};

// These are the kernels behind it. The first copies H's lower triangle to its upper one. The second returns the index
// of the first entry that is not finite, or -1.
void mirror(Stream stream, float* h, int64_t in);
int64_t first_not_finite(Stream stream, const float* values, int64_t n);
// Writes to (n, n) the rows and columns order[0 .. n - 1] of h (in, in), with zeros where an index is -1.
void gather_square(Stream stream, const float* h, const int32_t* order, int64_t in, int64_t n, float* to);
void read_diagonal(Stream stream, const float* h, int64_t in, float* diagonal);
// Writes lower (in, in), row-major: H in the reverse order of the steps, damped. Dead columns are apart from the
// others and have a 1 on the diagonal.
void fill_reversed(Stream stream, const float* h, const int32_t* order, int64_t in, double damping, double* lower);
// Writes `upper`, the inverse of that triangle in the order of the steps, and `weight` by column.
void reverse_into(Stream stream, const double* inverse, const int32_t* order, const float* diagonal, int64_t in,
                  float* upper, float* weight);

}  // namespace fidelio::cuda
