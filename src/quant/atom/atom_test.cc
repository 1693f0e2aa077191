#include "quant/atom/atom.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/rng.h"

namespace fidelio {
namespace {

// Returns the Hessian of inputs whose columns share 12 directions, where some columns have much more energy than
// others.
Hessian unequal_hessian(int64_t in, ThreadPool& pool) {
  Rng rng(31);
  std::vector<double> shared(static_cast<size_t>(12 * in));
  for (double& value : shared) value = rng.normal();
  std::vector<float> x;
  for (int64_t t = 0; t < 600; ++t) {
    double common[12];
    for (double& value : common) value = rng.normal();
    for (int64_t c = 0; c < in; ++c) {
      double sum = rng.normal();
      for (int64_t k = 0; k < 12; ++k) sum += 0.5 * common[k] * shared[static_cast<size_t>(k * in + c)];
      x.push_back(static_cast<float>(sum * (c % 7 == 3 ? 20 : 1 + 0.01 * static_cast<double>(c))));
    }
  }
  Hessian hessian(in);
  hessian.add(x, pool);
  return hessian;
}

TEST(Atom, KeptColumnsMakeUpForTheOthersAndAreRoundedToEightBits) {
  constexpr int64_t kIn = 160, kKept = 32, kOthers = kIn - kKept, kOut = 70;
  ThreadPool pool(2);
  const Hessian hessian = unequal_hessian(kIn, pool);
  const auto h = hessian.matrix();
  const KeptInput input(hessian, kKept, 1e-7, pool);
  const std::vector<int32_t>& order = input.order();
  ASSERT_EQ(order.size(), static_cast<size_t>(kIn + kKept));
  EXPECT_EQ(std::set<int32_t>(order.begin(), order.begin() + kIn).size(), static_cast<size_t>(kIn));
  EXPECT_TRUE(std::equal(order.end() - kKept, order.end(), order.begin() + kOthers));
  for (size_t i = 1; i < kIn; ++i)
    EXPECT_LE(h[static_cast<size_t>(order[i - 1] * (kIn + 1))], h[static_cast<size_t>(order[i] * (kIn + 1))]);

  Rng rng(32);
  std::vector<float> w(static_cast<size_t>(kOut * kIn));
  for (float& value : w) value = static_cast<float>(rng.normal());
  const std::vector<float> others = input.others_of(w, kOut);
  const LinearWeight coded = quantize_rtn(parse_format("int4g32"), others, kOut, kOthers, {}, pool);
  const LinearWeight weight = input.with_kept(coded, w);
  const std::vector<float> stored = decode(weight), own = decode(in_own_order(weight, order, kKept)),
                           first = decode(coded);
  ASSERT_EQ(weight.in, kIn + kKept);
  // The loss is that of the other columns under S, plus what the rounding of the kept ones adds. That is at most half
  // a scale each, where a scale is the largest of the row divided by 119 and rounded to FP16 (2^-11), for all of
  // H_kk. S and the compensating weights are FP32 sums from a matrix of condition 1e4, which gives a thousandth.
  double kept_energy = 0, rounding = 0;
  for (int64_t i = kOthers; i < kIn; ++i)
    for (int64_t j = kOthers; j < kIn; ++j)
      kept_energy += std::abs(double{h[static_cast<size_t>(order[i] * kIn + order[j])]});
  for (int64_t r = 0; r < kOut; ++r) {
    for (int64_t c = 0; c < kOthers; ++c)
      EXPECT_EQ(stored[static_cast<size_t>(r * weight.in + c)], first[static_cast<size_t>(r * kOthers + c)]);
    const auto& scales = std::get<IntGroup>(weight.main).scale.as<const f16>();
    const auto last = static_cast<size_t>((r + 1) * weight.spec.groups(weight.in));
    const double scale = to_float(scales[last - 1]);
    EXPECT_EQ(to_float(scales[last - 2]), 16 * scale);
    rounding += scale * scale * 0.25 * (1 + 0x1p-9) * kept_energy;
    for (int64_t c = kOthers; c < kIn; ++c) {
      const double q = own[static_cast<size_t>(r * kIn + order[static_cast<size_t>(c)])] / scale;
      EXPECT_NEAR(q, std::nearbyint(q), 1e-3);
      EXPECT_LE(std::abs(q), 119);
    }
  }
  const double loss = proxy_loss(w, own, kOut, kIn, hessian),
               least = proxy_loss(others, first, kOut, kOthers, input.others());
  EXPECT_GT(loss, least * (1 - 1e-3));
  EXPECT_LT(loss, least * (1 + 1e-3) + rounding);
  // If the kept columns do not compensate, the loss is larger: it is the whole loss of the others.
  std::vector<float> alone = own;
  for (int64_t r = 0; r < kOut; ++r)
    for (int64_t c = kOthers; c < kIn; ++c) {
      const auto at = static_cast<size_t>(r * kIn + order[static_cast<size_t>(c)]);
      alone[at] = w[at];
    }
  EXPECT_LT(loss, 0.7 * proxy_loss(w, alone, kOut, kIn, hessian));
}

// Columns that no token uses become zeros, and rows of zeros in the kept columns stay zeros.
TEST(Atom, DeadColumnsAndZeroWeightsAreZeros) {
  constexpr int64_t kIn = 96, kKept = 32;
  ThreadPool pool(1);
  std::vector<float> x(static_cast<size_t>(200 * kIn));
  Rng rng(33);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % kIn < 20 ? static_cast<float>(rng.normal()) : 0.0f;
  Hessian hessian(kIn);
  hessian.add(x, pool);
  const KeptInput input(hessian, kKept, 0.01, pool);
  const std::vector<float> w(static_cast<size_t>(3 * kIn), 0.0f);
  const LinearWeight coded = quantize_rtn(parse_format("int4g32"), input.others_of(w, 3), 3, kIn - kKept, {}, pool);
  for (const float value : decode(input.with_kept(coded, w))) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace fidelio
