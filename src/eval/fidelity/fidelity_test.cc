#include "eval/fidelity/fidelity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/fast_exp.h"
#include "core/rng.h"

namespace fidelio {
namespace {

std::vector<float> random_logits(size_t v, double spread, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(v);
  for (float& x : logits) x = static_cast<float>(spread * rng.normal());
  return logits;
}

std::vector<float> perturbed(std::vector<float> logits, double noise, uint64_t seed) {
  Rng rng(seed, 1);
  for (float& x : logits) x = static_cast<float>(x + noise * rng.normal());
  return logits;
}

// This computes the definitions directly, in long double.
struct Slow {
  long double kl = 0, ear = 0, entropy = 0, kl_raw = 0, ear_raw = 0, mass = 0, kl_renormalised = 0,
              ear_renormalised = 0;
};

std::vector<long double> softmax(const std::vector<float>& logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<long double> p;
  for (float x : logits) p.push_back(std::exp(static_cast<long double>(x) - top));
  const long double sum = std::accumulate(p.begin(), p.end(), 0.0L);
  for (long double& x : p) x /= sum;
  return p;
}

Slow slow(const std::vector<float>& a, const std::vector<float>& b, size_t k) {
  const auto p = softmax(a), q = softmax(b);
  Slow s;
  for (size_t i = 0; i < p.size(); ++i) {
    s.kl += p[i] * std::log(p[i] / q[i]);
    s.ear += std::min(p[i], q[i]);
    s.entropy -= p[i] * std::log(p[i]);
  }
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return a[x] > a[y]; });
  order.resize(std::min(k, order.size()));
  long double mass_q = 0;
  for (size_t i : order) {
    s.mass += p[i];
    mass_q += q[i];
    s.kl_raw += p[i] * std::log(p[i] / q[i]);
    s.ear_raw += std::min(p[i], q[i]);
  }
  for (size_t i : order) {
    s.kl_renormalised += p[i] / s.mass * std::log(p[i] / s.mass / (q[i] / mass_q));
    s.ear_renormalised += std::min(p[i] / s.mass, q[i] / mass_q);
  }
  return s;
}

float one(Float4 x) { return x[2]; }

TEST(FastExp, RelativeErrorAsDocumented) {
  for (float x = -87; x <= 87; x += 0.00123f) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(one(fast_exp(splat4(x))) / exact, 1, 2e-7) << x;
  }
  EXPECT_EQ(one(fast_exp(splat4(0))), 1);
  EXPECT_LT(one(fast_exp(splat4(-1000))), 1e-37);
}

TEST(FastExp, TheConvexTermKeepsRelativeAccuracyNearZero) {
  for (double size = 1e-12; size < 1.0; size *= 1.37)
    for (double sign : {-1.0, 1.0}) {
      const auto x = static_cast<float>(sign * size);
      const long double
          y = x,
          exact =
              y * y *
              (0.5L +
               y / 6 *
                   (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7 * (1 + y / 8 * (1 + y / 9 * (1 + y / 10))))))));
      // For n = 0 there are a few roundings. Otherwise numbers of size 1 cancel down to at least .055, so that their
      // error of 2^-23 grows by 1 / .055 = 18.
      EXPECT_NEAR(static_cast<double>(one(exp_minus_1_minus_x(splat4(x))) / exact), 1, 18 * 2.4e-7) << x;
      EXPECT_GE(one(exp_minus_1_minus_x(splat4(x))), 0);
    }
  EXPECT_FLOAT_EQ(one(exp_minus_1_minus_x(splat4(-500))), 499);
}

TEST(Fidelity, EqualsTheDefinitions) {
  uint64_t seed = 0;
  for (size_t v : {1u, 2u, 7u, 16u, 33u, 1000u, 8192u})
    for (double spread : {0.1, 3.0, 12.0})
      for (double noise : {0.0, 1e-3, 0.1, 5.0}) {
        const auto a = random_logits(v, spread, ++seed), b = perturbed(a, noise, seed);
        const PositionFidelity f = RowComparer(10).compare(a, b);
        const Slow s = slow(a, b, 10);
        SCOPED_TRACE(fmt::format("v {} spread {} noise {}", v, spread, noise));
        // Each of p and q has a relative error of about 3e-7, which sums and weighted means inherit.
        EXPECT_NEAR(f.ear, static_cast<double>(s.ear), 1e-6);
        EXPECT_NEAR(f.entropy, static_cast<double>(s.entropy), 1e-6 * (1 + static_cast<double>(s.entropy)));
        // t has the rounding error of logits of size `spread`, which is 2^-24 of it. Relative to a typical t of size
        // `noise`, that is the error of a term. The convex term itself adds 18 * 2.4e-7.
        const double relative = 1e-5 + (noise > 0 ? 4 * 6e-8 * spread / noise : 0);
        EXPECT_NEAR(f.kl, static_cast<double>(s.kl), relative * static_cast<double>(s.kl) + 1e-12);
        // Here the relative error of the FP32 normalisers, 2e-7, enters once.
        EXPECT_NEAR(f.kl_raw, static_cast<double>(s.kl_raw), 1e-6);
        EXPECT_NEAR(f.ear_raw, static_cast<double>(s.ear_raw), 1e-6);
        EXPECT_NEAR(f.top_k_mass, static_cast<double>(s.mass), 1e-6);
        EXPECT_NEAR(f.kl_renormalised, static_cast<double>(s.kl_renormalised),
                    1e-9 * (1 + static_cast<double>(s.kl_renormalised)));
        EXPECT_NEAR(f.ear_renormalised, static_cast<double>(s.ear_renormalised), 1e-12);
      }
}

TEST(Fidelity, OfADistributionWithItselfIsExactlyOne) {
  for (size_t v : {5u, 33u, 8191u}) {
    const auto p = random_logits(v, 4, v);
    const PositionFidelity f = RowComparer(10).compare(p, p);
    EXPECT_EQ(f.ear, 1);
    EXPECT_EQ(f.ear_renormalised, 1);
    EXPECT_EQ(f.ear_raw, f.top_k_mass);
    EXPECT_EQ(f.kl, 0);
    EXPECT_EQ(f.kl_raw, 0);
    EXPECT_EQ(f.kl_renormalised, 0);
    EXPECT_TRUE(f.agree());
    EXPECT_EQ(f.margin_p, 0);
  }
}

TEST(Fidelity, PinskerSymmetryAndSign) {
  RowComparer comparer;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const auto a = random_logits(500, 3, seed), b = perturbed(a, std::pow(10.0, -static_cast<double>(seed % 5)), seed);
    const PositionFidelity f = comparer.compare(a, b), g = comparer.compare(b, a);
    EXPECT_EQ(f.ear, g.ear);
    EXPECT_GE(f.kl, 0);
    // The only slack is EAR's rounding (see above).
    EXPECT_GE(f.ear, 1 - std::sqrt(f.kl / 2) - 1e-6);
    EXPECT_LE(f.ear, 1);
  }
}

TEST(Fidelity, ShiftingAllLogitsChangesNothingMuch) {
  const auto a = random_logits(4096, 3, 9), b = perturbed(a, 0.01, 9);
  auto shifted = b;
  for (float& x : shifted) x += 16;  // this rounds each logit by up to 2^-20
  const PositionFidelity f = RowComparer().compare(a, b), g = RowComparer().compare(a, shifted);
  EXPECT_NEAR(g.kl / f.kl, 1, 4 * 9.6e-7 / 0.01);  // t has size .01 and moved by up to 2^-20
}

TEST(Fidelity, KnownDisagreement) {
  // The distributions are p = (.5, .3, .2) and q = (.3, .5, .2).
  const std::vector<float> p = {std::log(0.5f), std::log(0.3f), std::log(0.2f)},
                           q = {std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  const PositionFidelity f = RowComparer(2).compare(p, q);
  constexpr double kRounding = 1e-6;
  EXPECT_NEAR(f.ear, 0.8, kRounding);
  EXPECT_NEAR(f.kl, 0.5 * std::log(5. / 3) + 0.3 * std::log(3. / 5), kRounding);
  EXPECT_NEAR(f.top_k_mass, 0.8, kRounding);
  EXPECT_NEAR(f.ear_raw, 0.6, kRounding);
  EXPECT_NEAR(f.ear_renormalised, 0.75, kRounding);
  EXPECT_NEAR(f.margin_p, 0.2, kRounding);
  EXPECT_NEAR(f.margin_q, 0.2, kRounding);
  EXPECT_EQ(f.top_p, 0);
  EXPECT_EQ(f.top_q, 1);
}

TEST(Fidelity, TiesGoToTheLowestId) {
  const std::vector<float> tied = {1, 3, 3, 0}, other = {1, 3, 2.999f, 0};
  EXPECT_EQ(RowComparer().compare(tied, other).top_p, 1);
  EXPECT_TRUE(RowComparer().compare(tied, other).agree());
}

TEST(Fidelity, FarApartDistributionsStayFinite) {
  std::vector<float> p(100, -90.f), q(100, -90.f);
  p[3] = 90;
  q[7] = 90;
  const PositionFidelity f = RowComparer().compare(p, q);
  EXPECT_NEAR(f.kl, 180, 1e-4);
  EXPECT_NEAR(f.ear, 0, 1e-6);
}

TEST(Fidelity, RefusesWhatIsNoDistribution) {
  const std::vector<float> good = {1, 2, 3};
  EXPECT_THROW(RowComparer().compare(good, std::vector<float>{1, 2}), Error);
  EXPECT_THROW(RowComparer().compare({}, {}), Error);
  EXPECT_THROW(RowComparer().compare(good, std::vector<float>{1, std::numeric_limits<float>::quiet_NaN(), 2}), Error);
  EXPECT_THROW(log_sum_exp(std::vector<float>{1, std::numeric_limits<float>::infinity()}), Error);
}

TEST(Fidelity, LogSumExpEqualsTheDefinition) {
  for (size_t v : {1u, 15u, 16u, 17u, 8192u}) {
    const auto a = random_logits(v, 5, v);
    long double sum = 0;
    for (float x : a) sum += std::exp(static_cast<long double>(x));
    EXPECT_NEAR(log_sum_exp(a), static_cast<double>(std::log(sum)), 3e-7);
  }
}

TEST(FidelitySums, CountsFlipsByEntropy) {
  EXPECT_EQ(entropy_bin(-1e-9), 0);  // rounding may give an entropy just below zero
  EXPECT_EQ(entropy_bin(0.1), 1);
  EXPECT_EQ(entropy_bin(3.99), 5);
  EXPECT_EQ(entropy_bin(9), 6);
  FidelitySums s;
  PositionFidelity f;
  f.entropy = 1.5;
  f.kl = 0.25;
  s.add(f);
  f.top_q = 1;
  f.margin_p = 0.5;
  s.add(f);
  EXPECT_EQ(s.positions, 2);
  EXPECT_EQ(s.kl, 0.5);
  EXPECT_EQ(s.agreements, 1);
  EXPECT_EQ(s.disagreements, 1);
  EXPECT_EQ(s.bin_positions[3], 2);
  EXPECT_EQ(s.bin_flips[3], 1);
  EXPECT_EQ(s.margin_p, 0.5);
}

}  // namespace
}  // namespace fidelio
