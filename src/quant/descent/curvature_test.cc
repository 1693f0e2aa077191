#include "quant/descent/curvature.h"

#include <gtest/gtest.h>

#include "core/rng.h"
#include "quant/quantize.h"

namespace fidelio {
namespace {

// Returns x^T x of rows (n, columns) that share a few directions.
std::vector<float> second_moment(int64_t n, int64_t columns, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> shared(static_cast<size_t>(3 * columns)), x(static_cast<size_t>(columns));
  for (float& v : shared) v = static_cast<float>(rng.normal());
  std::vector<float> moment(static_cast<size_t>(columns * columns));
  for (int64_t row = 0; row < n; ++row) {
    const double a = rng.normal(), b = rng.normal(), c = rng.normal();
    for (int64_t i = 0; i < columns; ++i)
      x[i] = static_cast<float>(a * shared[i] + b * shared[columns + i] + c * shared[2 * columns + i] + rng.normal());
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t k = 0; k < columns; ++k) moment[i * columns + k] += x[i] * x[k];
  }
  return moment;
}

// Returns tr(M E H E^T) with the damped M of curvature.h, in double, from the decoded weight.
double curved_loss(const std::vector<float>& w, const LinearWeight& q, const std::vector<float>& moment,
                   const Hessian& h) {
  const int64_t out = q.out, in = q.in;
  const std::vector<float> values = decode(q);
  double mean = 0, total = 0;
  for (int64_t i = 0; i < out; ++i) mean += double{moment[i * out + i]} / static_cast<double>(out);
  std::vector<double> e(static_cast<size_t>(out * in)), seen(e.size());
  for (size_t i = 0; i < e.size(); ++i) e[i] = double{w[i]} - double{values[i]};
  for (int64_t i = 0; i < out; ++i)
    for (int64_t c = 0; c < in; ++c)
      for (int64_t k = 0; k < in; ++k) seen[i * in + c] += e[i * in + k] * double{h.matrix()[k * in + c]};
  for (int64_t i = 0; i < out; ++i)
    for (int64_t k = 0; k < out; ++k) {
      double dot = 0;
      for (int64_t c = 0; c < in; ++c) dot += e[i * in + c] * seen[k * in + c];
      total += (double{moment[i * out + k]} + (i == k ? double{kMomentDamping} * mean : 0)) * dot;
    }
  return total;
}

class Curvature : public ::testing::TestWithParam<const char*> {
 protected:
  Curvature() : h_(Hessian::from_matrix(second_moment(200, kIn, 1), kIn, 200)), moment_(second_moment(200, kOut, 2)) {
    Rng rng(3);
    w_.resize(kOut * kIn);
    for (float& v : w_) v = static_cast<float>(0.02 * rng.normal());
  }
  GptqResult quantised(std::span<const float> moment, ThreadPool& pool) {
    GptqOptions options;
    options.output_moment = moment;
    return quantize_gptq(spec_, w_, kOut, kIn, h_, options, pool);
  }

  static constexpr int64_t kOut = 100, kIn = 160;  // strips, blocks and groups are not full
  const FormatSpec spec_ = parse_format(GetParam());
  Hessian h_;
  std::vector<float> moment_, w_;
};

// The outputs share three directions. By measurement .58 to .64 of their joint loss remains.
TEST_P(Curvature, LowersTheLossOfOutputsTogether) {
  ThreadPool pool(2);
  const double without = curved_loss(w_, quantised({}, pool).weight, moment_, h_);
  const double with = curved_loss(w_, quantised(moment_, pool).weight, moment_, h_);
  EXPECT_LT(with, 0.8 * without);
  RecordProperty("ratio", std::to_string(with / without));
}

// If outputs share nothing, rows are independent and descent has already done what it can, so that hardly a code
// moves.
TEST_P(Curvature, OutputsApartAreWhatDescentHasDone) {
  ThreadPool pool(1);
  std::vector<float> apart(static_cast<size_t>(kOut * kOut));
  for (int64_t i = 0; i < kOut; ++i) apart[i * kOut + i] = 1 + static_cast<float>(i % 3);
  const double before = quantised({}, pool).report.loss, after = quantised(apart, pool).report.loss;
  EXPECT_LE(after, before * (1 + 1e-6));
  EXPECT_GT(after, 0.95 * before);
}

TEST_P(Curvature, AnyNumberOfThreadsGivesTheSameCodes) {
  ThreadPool one(1), three(3);
  EXPECT_EQ(decode(quantised(moment_, one).weight), decode(quantised(moment_, three).weight));
}

INSTANTIATE_TEST_SUITE_P(Formats, Curvature, ::testing::Values("int3g64zs8", "int4g32", "lut3g64", "fp4g16", "fp8"),
                         [](const auto& format) { return std::string(format.param); });

}  // namespace
}  // namespace fidelio
