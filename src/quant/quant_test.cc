// This file tests Hessians, the quantisation of matrices by rounding and GPTQ, descent, feedback and codebooks.
#include "quant/feedback.h"
#include "quant/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "quant/codebook.h"
#include "quant/descent/descent.h"

namespace fidelio {
namespace {

std::vector<float> normal(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

// Returns weights with a heavy tail and a mean that differs from group to group, as real ones have.
std::vector<float> weights(int64_t out, int64_t in, uint64_t seed) {
  std::vector<float> w = normal(out * in, seed);
  for (int64_t i = 0; i < out * in; ++i) w[i] *= 0.02f * (1 + 0.3f * w[i] * w[i]);
  return w;
}

// Returns activations with correlated columns of very different power: x = z A, where A randomly mixes half as many
// sources.
std::vector<float> activations(int64_t tokens, int64_t in, uint64_t seed) {
  const int64_t sources = in / 2 + 1;
  const std::vector<float> z = normal(tokens * sources, seed), mix = normal(sources * in, seed + 1),
                           own = normal(tokens * in, seed + 2);
  std::vector<float> x(static_cast<size_t>(tokens * in));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < in; ++c) {
      float sum = 0.5f * own[t * in + c];
      for (int64_t s = 0; s < sources; ++s)
        sum += z[t * sources + s] * mix[s * in + c] / std::sqrt(static_cast<float>(sources));
      x[t * in + c] = sum * (c % 7 == 0 ? 4.0f : 1.0f);
    }
  return x;
}

Hessian correlated(int64_t in, uint64_t seed, ThreadPool& pool) {
  Hessian h(in);
  h.add(activations(3 * in, in, seed), pool);
  return h;
}

std::vector<std::string> formats() {
  std::vector<std::string> all = {"fp4g16",  "fp4g16z", "mxfp4",   "fp8",    "lut2g32",
                                  "lut3g64", "lut4g64", "lut5g16", "lut6g64"};
  for (int b = 2; b <= 8; ++b)
    for (const char* tail : {"g128z", "g32", "g64zs8", "g64s8", "cz", "c"})
      all.push_back(fmt::format("int{}{}", b, tail));
  return all;
}

bool same_bytes(const LinearWeight& a, const LinearWeight& b) {
  const auto x = stored_tensors(a), y = stored_tensors(b);
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i].tensor.bytes() != y[i].tensor.bytes() ||
        std::memcmp(x[i].tensor.data, y[i].tensor.data, x[i].tensor.bytes()) != 0)
      return false;
  return true;
}

double squared_error(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum;
}

class Quant : public testing::Test {
 protected:
  ThreadPool pool_{2};
};

// ---- The next tests are about Hessians.

TEST_F(Quant, HessianIsTheSumOfOuterProducts) {
  const int64_t in = 300, tokens = 40;  // there are two tiles, and the second is not full
  const std::vector<float> x = activations(tokens, in, 1);
  Hessian h(in);
  h.add(std::span(x).first(15 * in), pool_);
  h.add(std::span(x).subspan(15 * in), pool_);
  EXPECT_EQ(h.tokens(), tokens);
  for (int64_t i = 0; i < in; i += 7)
    for (int64_t j = 0; j < in; j += 5) {
      double want = 0, magnitude = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        want += static_cast<double>(x[t * in + i]) * x[t * in + j];
        magnitude += std::fabs(static_cast<double>(x[t * in + i]) * x[t * in + j]);
      }
      // There are `tokens` FP32 additions and products, each with an error of 2^-24 of the running magnitude.
      EXPECT_NEAR(h.matrix()[i * in + j], want, (tokens + 1) * 0x1p-24 * magnitude);
      EXPECT_EQ(h.matrix()[i * in + j], h.matrix()[j * in + i]);
    }
  EXPECT_THROW(h.add(std::span(x).first(in + 1), pool_), Error);
  EXPECT_THROW(Hessian::from_matrix(x, in, 1), Error);
}

TEST_F(Quant, FactorIsTheInverse) {
  const int64_t in = 200;  // there are two tiles
  const Hessian h = correlated(in, 3, pool_);
  for (const bool act_order : {false, true}) {
    const HessianFactor f = factorize(h, 0.01, act_order, pool_);
    double mean = 0;
    for (int64_t i = 0; i < in; ++i) mean += h.matrix()[i * in + i] / static_cast<double>(in);
    // In the order of steps, U (H + damping) U^T = 1. The entries of U are FP32, with errors of 2^-24 times the
    // product of magnitudes. For this H, whose condition number is below 1e4 after damping, that stays under 1e4 * in
    // * 2^-24 < .12. The observed errors are far smaller, so the bound taken is a tenth of that.
    std::vector<double> hu(static_cast<size_t>(in * in), 0.0);  // this is (H + d) U^T
    for (int64_t a = 0; a < in; ++a)
      for (int64_t j = 0; j < in; ++j)
        for (int64_t k = j; k < in; ++k)
          hu[a * in + j] += (h.matrix()[f.order[a] * in + f.order[k]] + (a == k ? 0.01 * mean : 0)) * f.u(j, k);
    for (int64_t i = 0; i < in; ++i)
      for (int64_t j = 0; j < in; ++j) {
        double sum = 0;
        for (int64_t k = i; k < in; ++k) sum += f.u(i, k) * hu[k * in + j];
        ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 0.012) << i << " " << j;
      }
    for (int64_t j = 1; act_order && j < in; ++j)
      EXPECT_GE(h.matrix()[f.order[j - 1] * in + f.order[j - 1]], h.matrix()[f.order[j] * in + f.order[j]]);
    EXPECT_EQ(f.damping, 0.01);
  }
}

TEST_F(Quant, SingularHessianEscalatesAndSaysSo) {
  const int64_t in = 64;
  Hessian h(in);
  h.add(activations(3, in, 5), pool_);  // this has rank 3
  const HessianFactor healthy = factorize(h, 0.01, true, pool_);
  EXPECT_EQ(healthy.damping, 0.01);
  const HessianFactor f = factorize(h, 0.0, true, pool_);
  EXPECT_GT(f.damping, 0.0);
  const std::vector<float> w = weights(8, in, 6);
  const GptqResult r = quantize_gptq(parse_format("int4g32z"), w, 8, in, h, f, {}, pool_);
  EXPECT_EQ(r.report.damping, f.damping);
  for (const float q : decode(r.weight)) EXPECT_TRUE(std::isfinite(q));
}

TEST_F(Quant, HessiansThatAreNotOneAreRefused) {
  std::vector<float> m(16, 0.0f);
  for (int i = 0; i < 4; ++i) m[5 * i] = 1;
  m[5] = -1;
  EXPECT_THROW(factorize(Hessian::from_matrix(m, 4, 1), 0.01, true, pool_), Error);
  m[5] = NAN;
  EXPECT_THROW(factorize(Hessian::from_matrix(m, 4, 1), 0.01, true, pool_), Error);
}

// ---- The next tests are about rounding to nearest.

TEST_F(Quant, EveryFormatDecodesNearTheWeights) {
  const int64_t out = 70, in = 200;  // strips, groups and bytes are not full
  const std::vector<float> w = weights(out, in, 7);
  double reach = 0, energy = 0;  // sum over rows of in max^2, and the sum of squares
  for (int64_t r = 0; r < out; ++r) {
    double peak = 0;
    for (int64_t c = 0; c < in; ++c) {
      peak = std::max(peak, std::fabs(static_cast<double>(w[r * in + c])));
      energy += static_cast<double>(w[r * in + c]) * w[r * in + c];
    }
    reach += static_cast<double>(in) * peak * peak;
  }
  for (const std::string& text : formats()) {
    const LinearWeight q = quantize_rtn(parse_format(text), w, out, in, {}, pool_);
    EXPECT_EQ(to_string(q.spec), text);
    // No error exceeds half a step of the row's widest range, 2 max / (2^b - 1). E2M1's widest gap is a third of its
    // end, and E4M3's half gap is 2^-4 of the value. The factor 1.1 is for the rounding of the scales themselves (for
    // E4M3 ones 2^-4 of 1/6, twice).
    const double half = q.spec.kind == Kind::fp4 ? 1.0 / 6 : 1 / (std::pow(2, q.spec.bits) - 1);
    const double error = squared_error(w, decode(q));
    EXPECT_LT(error, q.spec.kind == Kind::fp8 ? energy * 0x1p-8 : 1.1 * reach * half * half) << text;
    EXPECT_GT(error, 0.0) << text;
  }
}

TEST_F(Quant, RangeSearchNeverLoses) {
  const int64_t out = 40, in = 300;
  const std::vector<float> w = weights(out, in, 8);
  for (const std::string& text : formats()) {
    const FormatSpec spec = parse_format(text);
    if (spec.kind == Kind::grid) continue;  // a grid's codebook depends on the scales as well
    const double plain =
        squared_error(w, decode(quantize_rtn(spec, w, out, in, {.range_search = false, .importance = {}}, pool_)));
    const double searched = squared_error(w, decode(quantize_rtn(spec, w, out, in, {}, pool_)));
    EXPECT_LE(searched, plain * (1 + 1e-6)) << text;  // the choice uses FP32 sums and this test a double, hence 1e-6
  }
}

TEST_F(Quant, ImportanceProtectsItsColumns) {
  const int64_t out = 64, in = 128;
  const std::vector<float> w = weights(out, in, 9);
  std::vector<float> importance(in, 1.0f);
  for (int64_t c = 0; c < in; c += 8) importance[c] = 100;
  const auto weighted = [&](const std::vector<float>& q) {
    double sum = 0;
    for (int64_t i = 0; i < out * in; ++i)
      sum += importance[i % in] * static_cast<double>((w[i] - q[i]) * (w[i] - q[i]));
    return sum;
  };
  for (const char* text : {"int3g128z", "int3g128", "lut3g128", "fp4g16", "int4g64zs8"}) {
    const FormatSpec spec = parse_format(text);
    EXPECT_LT(weighted(decode(quantize_rtn(spec, w, out, in, {.range_search = true, .importance = importance}, pool_))),
              weighted(decode(quantize_rtn(spec, w, out, in, {}, pool_))))
        << text;
  }
  EXPECT_THROW(quantize_rtn(parse_format("int4g128z"), w, out, in,
                            {.range_search = true, .importance = std::span(importance).first(3)}, pool_),
               Error);
}

// Each bit more lowers the error by 6 dB. Uniform noise of step D has the variance D^2 / 12, and D is proportional to
// 1 / (2^b - 1). The exact ratio is ((2^(b+1) - 1) / (2^b - 1))^2: 4.27 at 4 bits and 4.02 at 8. The 3% are for the
// error of the high-resolution law itself.
TEST_F(Quant, ErrorFallsByFourABit) {
  const int64_t out = 256, in = 512;
  const std::vector<float> w = normal(out * in, 10);
  std::vector<double> error(9);
  for (int b = 4; b <= 8; ++b)
    error[b] = squared_error(w, decode(quantize_rtn(parse_format(fmt::format("int{}g128z", b)), w, out, in,
                                                    {.range_search = false, .importance = {}}, pool_)));
  for (int b = 4; b < 8; ++b) {
    const double steps = (std::pow(2, b + 1) - 1) / (std::pow(2, b) - 1);
    EXPECT_NEAR(error[b] / error[b + 1], steps * steps, 0.03 * steps * steps) << b;
  }
}

// SLQ Lemma 3.2 says that the noise of symmetric over asymmetric ranges is gamma^2 = D_sym^2 / D_asym^2, summed over
// groups (E D_sym^2 / E D_asym^2). Without range search both use the group's own range, whose ends are levels and
// have no error. These are 2 of 128 values of an asymmetric group and 1 of a symmetric one, which is .8% of the
// ratio. 262144 squared errors with a relative deviation of .9 average to .18%, a ratio of two such averages to .25%,
// and three deviations are .7%. The tolerance of +-3% is twice their sum.
TEST_F(Quant, SymmetricNoiseIsGammaSquared) {
  const int64_t out = 256, in = 1024, g = 128;
  std::vector<float> uniform(static_cast<size_t>(out * in)), shifted = normal(out * in, 12);
  Rng rng(11);
  for (float& v : uniform) v = static_cast<float>(2 * rng.uniform() - 0.8);  // U[-.8, 1.2], which has gamma 1.2
  for (int64_t i = 0; i < out * in / g; ++i) {
    const auto mean = static_cast<float>(0.5 * rng.normal());
    for (int64_t c = 0; c < g; ++c) shifted[i * g + c] += mean;
  }
  for (const std::vector<float>* w : {&uniform, &shifted}) {
    double symmetric = 0, asymmetric = 0;
    for (int64_t i = 0; i < out * in / g; ++i) {
      const auto [low, high] = std::minmax_element(w->begin() + i * g, w->begin() + (i + 1) * g);
      const double reach = std::max(-*low, *high), span = *high - *low;
      symmetric += 4 * reach * reach;
      asymmetric += span * span;
    }
    for (int b = 4; b <= 8; ++b) {
      const RtnOptions plain{.range_search = false, .importance = {}};
      const double sym =
          squared_error(*w, decode(quantize_rtn(parse_format(fmt::format("int{}g128", b)), *w, out, in, plain, pool_)));
      const double asym = squared_error(
          *w, decode(quantize_rtn(parse_format(fmt::format("int{}g128z", b)), *w, out, in, plain, pool_)));
      EXPECT_NEAR(sym / asym, symmetric / asymmetric, 0.03 * symmetric / asymmetric) << b;
    }
  }
}

TEST_F(Quant, ScalesAreExactWhereTheWeightsAreOnTheGrid) {
  // Weights that are codes times a stored scale are reproduced exactly, in every format with a zero level.
  const int64_t out = 3, in = 128;
  std::vector<float> w(static_cast<size_t>(out * in));
  Rng rng(13);
  for (int64_t i = 0; i < out * in; ++i) w[i] = 0.25f * static_cast<float>(static_cast<int>(rng.below(16)) - 5);
  for (int64_t r = 0; r < out; ++r) {
    w[r * in] = -5 * 0.25f;
    w[r * in + 1] = 10 * 0.25f;
  }
  EXPECT_EQ(decode(quantize_rtn(parse_format("int4g128z"), w, out, in, {}, pool_)), w);
}

TEST_F(Quant, ZeroGroupsAndTinyScales) {
  for (const std::string& text : formats()) {
    const FormatSpec spec = parse_format(text);
    std::vector<float> w(2 * 256, 0.0f);
    for (const float q : decode(quantize_rtn(spec, w, 2, 256, {}, pool_))) EXPECT_EQ(q, 0.0f) << text;
    // A group far smaller than the others still has a scale of its own and is not rounded to zero.
    for (int64_t c = 0; c < 256; ++c) w[c] = (c < 128 ? 1.0f : 3e-3f) * (c % 2 ? 1.0f : -0.7f);
    const std::vector<float> q = decode(quantize_rtn(spec, w, 2, 256, {}, pool_));
    if (spec.group != 0 && spec.kind != Kind::fp8) {
      EXPECT_GT(q[129], 0.0f) << text;
    }
  }
}

TEST_F(Quant, BadMatricesAreRefused) {
  std::vector<float> w(8, 1.0f);
  EXPECT_THROW(quantize_rtn(parse_format("int4g128z"), w, 2, 5, {}, pool_), Error);
  w[5] = NAN;
  try {
    quantize_rtn(parse_format("int4g128z"), w, 2, 4, {}, pool_);
    ADD_FAILURE() << "accepted a NaN";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("row 1, column 1"));
  }
}

TEST_F(Quant, DenseFormatsAreRounded) {
  const std::vector<float> w = weights(3, 5, 14);
  const std::vector<float> q = decode(quantize_rtn(parse_format("bf16"), w, 3, 5, {}, pool_));
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(q[i], to_float(to_bf16(w[i])));
  EXPECT_EQ(decode(quantize_rtn(parse_format("f32"), w, 3, 5, {}, pool_)), w);
}

// ---- The next tests are about GPTQ and descent.

TEST_F(Quant, GptqBeatsRoundToNearestEverywhere) {
  const int64_t out = 66, in = 200;
  const std::vector<float> w = weights(out, in, 20);
  const Hessian h = correlated(in, 21, pool_);
  std::vector<float> diagonal(in);
  for (int64_t i = 0; i < in; ++i) diagonal[i] = h.matrix()[i * in + i];
  const HessianFactor f = factorize(h, 0.01, true, pool_);
  for (const std::string& text : formats()) {
    const FormatSpec spec = parse_format(text);
    const double rtn = proxy_loss(
        w, decode(quantize_rtn(spec, w, out, in, {.range_search = true, .importance = diagonal}, pool_)), out, in, h);
    const GptqResult r = quantize_gptq(spec, w, out, in, h, f, {}, pool_);
    const double loss = proxy_loss(w, decode(r.weight), out, in, h);
    EXPECT_LT(loss, rtn) << text;
    EXPECT_LT(r.report.loss_gptq, rtn) << text;
    EXPECT_LE(r.report.loss, r.report.loss_gptq * (1 + 1e-5)) << text;
    // The report's loss is an FP32 product over 200 columns. Its error is 200 * 2^-24 of the terms' magnitude, which
    // exceeds the sum here by less than the root of the condition number.
    EXPECT_NEAR(r.report.loss, loss, 1e-3 * loss) << text;
  }
}

TEST_F(Quant, DiagonalHessianMeansNoFeedback) {
  const int64_t out = 20, in = 150;
  const std::vector<float> w = weights(out, in, 22);
  std::vector<float> m(static_cast<size_t>(in * in), 0.0f), diagonal(in);
  for (int64_t i = 0; i < in; ++i)
    m[i * in + i] = diagonal[i] = std::ldexp(1.0f, static_cast<int>(2 * (i * 37 % 5)));  // the roots of these are exact
  const Hessian h = Hessian::from_matrix(m, in, 1);
  for (const std::string& text : formats()) {
    const FormatSpec spec = parse_format(text);
    const GptqResult r = quantize_gptq(
        spec, w, out, in, h, {.damping = 0, .act_order = true, .range_search = true, .descent_passes = 0}, pool_);
    EXPECT_TRUE(
        same_bytes(r.weight, quantize_rtn(spec, w, out, in, {.range_search = true, .importance = diagonal}, pool_)))
        << text;
  }
}

TEST_F(Quant, DeadColumnsBecomeZero) {
  const int64_t out = 10, in = 64;
  std::vector<float> x = activations(200, in, 23);
  for (int64_t t = 0; t < 200; ++t) x[t * in + 5] = x[t * in + 40] = 0;
  Hessian h(in);
  h.add(x, pool_);
  const std::vector<float> w = weights(out, in, 24);
  const GptqResult r = quantize_gptq(parse_format("int4g32z"), w, out, in, h, {}, pool_);
  EXPECT_EQ(r.report.dead_columns, 2);
  const std::vector<float> q = decode(r.weight);
  float live = 0;
  for (int64_t i = 0; i < out; ++i) {
    EXPECT_EQ(q[i * in + 5], 0.0f);
    EXPECT_EQ(q[i * in + 40], 0.0f);
    live += std::fabs(q[i * in + 6]);
  }
  EXPECT_GT(live, 0.0f);
}

TEST_F(Quant, AnyNumberOfThreadsGivesTheSameBytes) {
  const int64_t out = 200, in = 300;
  const std::vector<float> w = weights(out, in, 25), x = activations(900, in, 26);
  for (const char* text : {"int4g128z", "int3g64zs8", "lut3g64", "fp4g16z", "fp8"}) {
    std::vector<LinearWeight> results;
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      Hessian h(in);
      h.add(x, pool);
      results.push_back(quantize_gptq(parse_format(text), w, out, in, h, {}, pool).weight);
    }
    EXPECT_TRUE(same_bytes(results[0], results[1])) << text;
    EXPECT_TRUE(same_bytes(results[0], results[2])) << text;
  }
}

TEST_F(Quant, EveryPassOfTheDescentLowersTheLoss) {
  const int64_t out = 64, in = 192;
  const std::vector<float> w = weights(out, in, 27);
  const Hessian h = correlated(in, 28, pool_);
  for (const std::string& text : formats()) {
    double last = std::numeric_limits<double>::infinity();
    for (const int passes : {0, 1, 2, 4}) {
      const GptqResult r =
          quantize_gptq(parse_format(text), w, out, in, h,
                        {.damping = 0.01, .act_order = true, .range_search = true, .descent_passes = passes}, pool_);
      const double loss = proxy_loss(w, decode(r.weight), out, in, h);
      // A change is made where FP32 gradients say that it helps; their relative error is about in * 2^-24.
      EXPECT_LE(loss, last * (1 + 1e-5)) << text << " " << passes;
      last = loss;
    }
  }
}

// A pass may change only codes or only scales. Each lowers the loss and leaves the other as GPTQ made it.
TEST_F(Quant, CodesAndScalesDescendApart) {
  const int64_t out = 64, in = 192;
  const std::vector<float> w = weights(out, in, 27);
  const Hessian h = correlated(in, 28, pool_);
  const FormatSpec spec = parse_format("int4g64zs8");
  const auto made = [&](int passes, bool codes, bool scales) {
    GptqOptions options;
    options.descent_passes = passes, options.descend_codes = codes, options.refit_scales = scales;
    return quantize_gptq(spec, w, out, in, h, options, pool_).weight;
  };
  const auto parts = [](const LinearWeight& q) {
    const auto& m = std::get<IntGroup>(q.main);
    std::vector<int> codes, scales;
    for (int64_t r = 0; r < q.out; ++r)
      for (int64_t c = 0; c < q.in; ++c) codes.push_back(m.codes.get(r, c));
    for (uint8_t s : m.scale.as<const uint8_t>()) scales.push_back(s);
    return std::pair(codes, scales);
  };
  const auto loss = [&](const LinearWeight& q) { return proxy_loss(w, decode(q), out, in, h); };
  const LinearWeight plain = made(0, true, true), codes = made(4, true, false), scales = made(4, false, true);
  EXPECT_EQ(parts(codes).second, parts(plain).second);
  EXPECT_NE(parts(codes).first, parts(plain).first);
  EXPECT_EQ(parts(scales).first, parts(plain).first);
  EXPECT_NE(parts(scales).second, parts(plain).second);
  EXPECT_LT(loss(codes), loss(plain));
  EXPECT_LT(loss(scales), loss(plain));
}

// The target lies between W and the minimum of |W x - T y|^2, as far as its tokens are trusted: 600 / (600 + 32 *
// 40). If it is extrapolated to the minimum, the residual W x - T y is orthogonal to every y, up to FP32 errors.
// These come from sums of 600 products, then products with a factor whose condition number is some hundreds here: 600
// * 300 * 2^-24 of the size of the terms.
TEST_F(Quant, FeedbackIsTheLeastSquaresAnswerToOtherInputs) {
  const int64_t out = 9, in = 40, tokens = 600;
  const std::vector<float> w = weights(out, in, 31), x = activations(tokens, in, 32),
                           noise = activations(tokens, in, 33);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = 0.9f * x[i] + 0.3f * noise[i];
  Hessian h(in);
  h.add(y, pool_);
  const HessianFactor f = factorize(h, 0, true, pool_);
  Feedback feedback(in);
  feedback.add(x, y, pool_);
  const std::vector<float> part = feedback.target(w, out, h, f, pool_);
  std::vector<float> whole(part);
  for (size_t i = 0; i < w.size(); ++i) whole[i] = w[i] + (part[i] - w[i]) * (600.0f + 32 * 40) / 600;
  const auto residual = [&](const std::vector<float>& q, int64_t o, int64_t token) {
    double r = 0;
    for (int64_t c = 0; c < in; ++c)
      r += double{w[o * in + c]} * x[token * in + c] - double{q[o * in + c]} * y[token * in + c];
    return r;
  };
  double before = 0, between = 0, after = 0;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t c = 0; c < in; ++c) {
      double along = 0, size = 0;
      for (int64_t token = 0; token < tokens; ++token) {
        const double r = residual(whole, o, token);
        along += r * y[token * in + c];
        size += std::abs(r * y[token * in + c]);
        if (c > 0) continue;
        after += r * r;
        between += std::pow(residual(part, o, token), 2);
        before += std::pow(residual(w, o, token), 2);
      }
      EXPECT_LE(std::abs(along), 0.01 * size) << o << " " << c;
    }
  EXPECT_LT(after, between);
  EXPECT_LT(between, before);

  // For equal inputs the target is the same weight. C and H differ only by the order of 600 sums.
  Feedback none(in);
  none.add(y, y, pool_);
  const std::vector<float> same = none.target(w, out, h, f, pool_);
  for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(same[i], w[i], 0.01);
}

// Descent with a view trades one loss for the other. The sum of both ends lower than if only the whole weight
// counted. Other formats ignore the option.
TEST_F(Quant, AViewWithAWeightGetsCodesThatSuitIt) {
  const int64_t out = 64, in = 192;
  const std::vector<float> w = weights(out, in, 27);
  const Hessian h = correlated(in, 28, pool_);
  const auto quantised = [&](const std::string& format, int bits, float weight) {
    GptqOptions options;
    options.view_bits = bits, options.view_weight = weight;
    return quantize_gptq(parse_format(format), w, out, in, h, options, pool_).weight;
  };
  const auto loss = [&](const LinearWeight& q) { return proxy_loss(w, decode(q), out, in, h); };
  for (const auto& [format, bits] :
       {std::pair{"int3g64zs8", 2}, {"int5g32", 4}, {"int6g64zs8", 4}, {"int7g64z", 6}, {"int8g128z", 4}}) {
    SCOPED_TRACE(format);
    const LinearWeight plain = quantised(format, bits, 0);
    const double whole = loss(plain), view = loss(high_planes(plain, bits));
    double last_view = view;
    for (const float weight : {0.1f, 1.0f}) {
      const LinearWeight q = quantised(format, bits, weight);
      const double here = loss(high_planes(q, bits));
      EXPECT_LT(here, last_view) << weight;
      EXPECT_LT(loss(q) + double{weight} * here, whole + double{weight} * view) << weight;
      last_view = here;
    }
  }
  for (const char* format : {"int4g64zs8", "lut4g64", "fp4g16", "int6g64zs8"})  // int6 has no view of 2 bits
    EXPECT_TRUE(same_bytes(quantised(format, 2, 1), quantised(format, 0, 0))) << format;
}

// No single change of a code lowers the sum of both losses with a view either. The test tries every other code of
// every column.
TEST_F(Quant, DescentWithAViewEndsInALocalOptimum) {
  const int64_t in = 12;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> w = weights(1, in, 300 + seed);
    const Hessian h = correlated(in, 400 + seed, pool_);
    GptqOptions options{.descent_passes = 12};
    options.view_bits = 4, options.view_weight = 0.5f;
    LinearWeight q = quantize_gptq(parse_format("int6g16z"), w, 1, in, h, options, pool_).weight;
    const auto sum = [&] {
      return proxy_loss(w, decode(q), 1, in, h) + 0.5 * proxy_loss(w, decode(high_planes(q, 4)), 1, in, h);
    };
    const double best = sum();
    Codes& codes = std::get<IntGroup>(q.main).codes;
    for (int64_t c = 0; c < in; ++c) {
      const uint8_t chosen = codes.get(0, c);
      for (int code = 0; code < 64; ++code) {
        codes.set(0, c, static_cast<uint8_t>(code));
        EXPECT_GE(sum(), best * (1 - 1e-5)) << seed << ": column " << c << " from " << int{chosen} << " to " << code;
      }
      codes.set(0, c, chosen);
    }
  }
}

// Six weights of 2 bits have 4,096 choices of codes. With the scales that the descent ended with, its codes must be a
// local optimum (no single change helps), and within a factor of the best of all choices.
TEST_F(Quant, DescentEndsInALocalOptimumNearTheGlobalOne) {
  const int64_t in = 6;
  const FormatSpec spec = parse_format("int2g16z");
  double total = 0, total_best = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<float> w = weights(1, in, 100 + seed);
    const Hessian h = correlated(in, 200 + seed, pool_);
    const GptqResult r = quantize_gptq(
        spec, w, 1, in, h, {.damping = 0.01, .act_order = true, .range_search = true, .descent_passes = 8}, pool_);
    const double loss = proxy_loss(w, decode(r.weight), 1, in, h);
    double best = std::numeric_limits<double>::infinity();
    LinearWeight trial = r.weight;
    IntGroup& m = std::get<IntGroup>(trial.main);
    std::vector<uint8_t> chosen(in), codes(in);
    m.codes.get_row(0, chosen);
    for (int code = 0; code < 4096; ++code) {
      int differences = 0;
      for (int64_t c = 0; c < in; ++c)
        differences += (codes[c] = static_cast<uint8_t>(code >> (2 * c) & 3)) != chosen[c];
      m.codes.set_row(0, codes);
      const double here = proxy_loss(w, decode(trial), 1, in, h);
      if (differences == 1) {
        EXPECT_GE(here, loss * (1 - 1e-5)) << seed;
      }
      best = std::min(best, here);
    }
    m.codes.set_row(0, chosen);
    total += loss;
    total_best += best;
  }
  EXPECT_GE(total, total_best * (1 - 1e-5));
  EXPECT_LE(total, 1.5 * total_best);  // single changes sometimes get stuck, but on average not far from the optimum
}

TEST_F(Quant, MismatchedHessiansAreRefused) {
  const Hessian h = correlated(32, 30, pool_);
  EXPECT_THROW(quantize_gptq(parse_format("int4g32z"), weights(4, 48, 1), 4, 48, h, {}, pool_), Error);
}

// ---- The next tests are about grids.

TEST_F(Quant, CodebooksAreAscendingAndUseTheFullRange) {
  const int64_t out = 100, in = 256;
  const std::vector<float> w = weights(out, in, 31), even(in, 1.0f);
  for (int b = 2; b <= 5; ++b) {
    const std::vector<int8_t> book = fit_codebook(parse_format(fmt::format("lut{}g64", b)), w, out, in, even, pool_);
    ASSERT_EQ(book.size(), size_t{1} << b);
    int peak = 0;
    for (size_t k = 0; k < book.size(); ++k) {
      peak = std::max(peak, std::abs(static_cast<int>(book[k])));
      if (k > 0) {
        EXPECT_GT(book[k], book[k - 1]);
      }
    }
    EXPECT_EQ(peak, 127);
  }
  const std::vector<float> zeros(w.size(), 0.0f);
  EXPECT_EQ(fit_codebook(parse_format("lut5g64"), zeros, out, in, even, pool_).size(), 32u);
}

TEST_F(Quant, GridsBeatUniformStepsOnNormalWeights) {
  const int64_t out = 128, in = 512;
  const std::vector<float> w = normal(out * in, 32);
  for (const int b : {3, 4}) {  // lut{b}g64 stores fewer bits than int{b}g64 with zero points
    const double grid =
        squared_error(w, decode(quantize_rtn(parse_format(fmt::format("lut{}g64", b)), w, out, in, {}, pool_)));
    const double uniform =
        squared_error(w, decode(quantize_rtn(parse_format(fmt::format("int{}g64zs8", b)), w, out, in, {}, pool_)));
    EXPECT_LT(grid, uniform) << b;
  }
}

}  // namespace
}  // namespace fidelio
