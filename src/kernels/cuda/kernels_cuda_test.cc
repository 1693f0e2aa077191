// These tests compare every operation and format of the CUDA backend with kernels/ref. Without a GPU they are
// skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "formats/grid_curve.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
  }
  Cuda& b() { return *backend_; }

  // Begins a step of `n` rows of one sequence, with positions from `start` and pages in reverse order.
  Batch batch(int n, int start, int pages, const AttentionShape& shape, Activations mode = Activations::a16,
              RowKind kind = RowKind::output) {
    Batch batch;
    std::vector<int32_t> ids(static_cast<size_t>(n)), own(static_cast<size_t>(pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::iota(own.rbegin(), own.rend(), 0);
    batch.append(ids, start, own, n, kind);
    b().begin(batch, mode, shape);
    return batch;
  }
  Cuda::Matrix matrix(const std::vector<float>& values, int64_t columns) {
    Cuda::Matrix m = b().allocate(static_cast<int64_t>(values.size()) / columns, columns);
    b().upload(values, m);
    return m;
  }
  std::vector<float> values_of(const Cuda::Matrix& m) {
    std::vector<float> values(static_cast<size_t>(m.rows * m.columns));
    b().download(m, 0, m.rows, values);
    return values;
  }
  std::vector<float> values_of(const Cuda::Acts& acts) {
    std::vector<float> values(static_cast<size_t>(acts.rows * acts.columns));
    b().read(acts, values);
    return values;
  }

 private:
  std::unique_ptr<Cuda> backend_;
};

const AttentionShape kShape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

std::vector<float> normals(Rng& rng, int64_t n, double scale = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = static_cast<float>(rng.normal() * scale);
  return values;
}
std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Returns a weight with random content in every stored tensor, with scales of a reasonable size.
LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in, Rng& rng) {
  LinearWeight w = allocate_weight(spec, out, in);
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::u8)
      for (uint8_t& v : t.tensor.as<uint8_t>()) v = static_cast<uint8_t>(rng.below(256));
    if (t.tensor.dtype == DType::i8)
      for (int8_t& v : t.tensor.as<int8_t>()) v = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.005 + 0.01 * rng.uniform()));
    if (t.tensor.dtype == DType::bf16)
      for (bf16& v : t.tensor.as<bf16>()) v = to_bf16(static_cast<float>(0.05 * rng.normal()));
    if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>()) v = static_cast<float>(0.001 + 0.002 * rng.uniform());
  }
  // Grids with other groups keep any entries.
  if (spec.kind == Kind::grid && is_curve_width(spec.bits) && spec.group == 64) {
    const std::vector<int8_t> grid = typical_grid(spec.bits);
    std::copy(grid.begin(), grid.end(), std::get<VectorCode>(w.main).codebook.as<int8_t>().begin());
  }
  if (spec.kind == Kind::mxfp4)  // so many powers of two fit into a grid's scales
    for (uint8_t& v : std::get<FpBlock>(w.main).scale.as<uint8_t>()) v = static_cast<uint8_t>(118 + rng.below(7));
  if (spec.kind == Kind::fp8)  // the lowest bit of the exponent is 0, so no code is NaN
    for (OwnedTensor& plane : std::get<FpBlock>(w.main).codes.planes)
      for (uint8_t& v : plane.as<uint8_t>()) v &= 0x77;
  w.bias = OwnedTensor::allocate(DType::f32, {out});
  for (float& v : w.bias.as<float>()) v = static_cast<float>(rng.normal());
  return w;
}

// The inputs are numbers that FP16 and integers of 16 bits hold exactly under a scale for each block. Their size
// differs very much from row to row and in some blocks. What remains is the error of FP32 sums. On its way into an
// output a product passes fewer than 48 additions. Codes in a group are added exactly; a prompt row has at most 8
// products of 16 columns in a group of 128. Then follow K / 1024 groups of a part, 3 levels of parts, and the
// roundings of the scale, the bias and the factor. Each addition is wrong by at most 2^-23 (matrix units truncate) of
// the magnitudes added so far. For these formats they are at most sum |s| (q + z) |x| <= 2 sum |w|max |x|. In the
// dense case, with K additions, 16 at a time, they are sum |w x|.
constexpr double kTolerance = 2 * 48 * 0x1p-23;

TEST_F(CudaTest, LinearsOfEveryFormatAgreeWithTheReferenceAndRowsDoNotDependOnTheBatch) {
  Rng rng(1);
  const int64_t in = 1000, out = 300, rows = 130;
  const std::pair<RowKind, int64_t> kBatches[] = {
      {RowKind::output, rows}, {RowKind::output, 96}, {RowKind::output, 32}, {RowKind::output, 17},
      {RowKind::output, 9},    {RowKind::output, 6},  {RowKind::output, 3},  {RowKind::output, 1},
      {RowKind::prompt, rows}, {RowKind::prompt, 70}, {RowKind::prompt, 9},  {RowKind::prompt, 1}};
  b().reserve(rows, in, 128);
  std::vector<float> x(static_cast<size_t>(rows * in));
  for (int64_t i = 0; i < rows * in; ++i) {
    const int64_t row = i / in, block = i % in / 128;
    const int exponent = row % 3 == 0 && block == 2   ? -60  // beyond FP16, also in the first row
                         : row % 3 == 1 && block == 5 ? 30
                                                      : static_cast<int>(row % 21) - 14;
    x[static_cast<size_t>(i)] = std::ldexp(static_cast<float>(static_cast<int>(rng.below(2001)) - 1000), exponent);
  }
  for (const char* format :
       {"int2g32z", "int2g128",   "int3g64z",  "int3g64zs8", "int4g128z",  "int4g128",  "int4g64zs8", "int4c",
        "int5g32z", "int5g64zs8", "int6g128z", "int7g64z",   "int7g32zs8", "int8g128z", "int8g128",   "int8cz",
        "lut2g64",  "lut3g32",    "lut4g64",   "lut4g128",   "lut5g64",    "lut5g32",   "lut6g64",    "lut6g128",
        "bf16",     "f16",        "f32",       "fp8",        "mxfp4"}) {
    SCOPED_TRACE(format);
    const LinearWeight weight = random_weight(parse_format(format), out, in, rng);
    const std::vector<float> decoded = decode(weight);
    const auto bias = weight.bias.as<float>();
    const std::vector<double> expected =
        ref::linear(doubles(x), doubles(decoded), std::vector<double>(bias.begin(), bias.end()), rows, in, out);
    const Cuda::Linear packed = b().pack(weight);
    for (Activations mode : {Activations::a16, Activations::f32}) {
      std::vector<float> whole[2];
      for (const auto& [kind, n] : kBatches) {
        SCOPED_TRACE(n);
        batch(static_cast<int>(n), 0, 5, kShape, mode, kind);
        const Cuda::Matrix input = matrix(std::vector<float>(x.begin(), x.begin() + n * in), in);
        Cuda::Matrix y = matrix(std::vector<float>(static_cast<size_t>(n * out), NAN), out);
        const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&packed, &y}};
        b().linear(b().input(input), outputs);
        const std::vector<float> got = values_of(y);
        for (int64_t m = 0; m < n; ++m)
          for (int64_t o = 0; o < out; ++o) {
            double magnitude = std::abs(bias[static_cast<size_t>(o)]), largest = 0, inputs = 0;
            for (int64_t k = 0; k < in; ++k) {
              largest = std::max(largest, std::abs(double{decoded[static_cast<size_t>(o * in + k)]}));
              inputs += std::abs(double{x[static_cast<size_t>(m * in + k)]});
            }
            magnitude += largest * inputs;
            // Weights that are dequantised for prompts are rounded to FP16 once, by 2^-12 of each.
            const bool rounded = mode == Activations::a16 && kind == RowKind::prompt;
            const double tolerance = kTolerance + (rounded ? 0x1p-12 : 0);
            ASSERT_NEAR(got[static_cast<size_t>(m * out + o)], expected[static_cast<size_t>(m * out + o)],
                        tolerance * magnitude)
                << "row " << m << " output " << o;
          }
        std::vector<float>& all = whole[kind == RowKind::prompt];
        if (all.empty()) all = got;
        ASSERT_EQ(0, std::memcmp(got.data(), all.data(), got.size() * sizeof(float)))
            << "a row depends on how many there are";
      }
    }
  }
}

// There are kernels of their own for few and for many outputs, and for 1, 4, 8, 16, 32 and 64 rows. The kernels for
// many rows are cut up by outputs, but the sums must not be. The reference is the largest batch; the test above knows
// its rows to be right.
TEST_F(CudaTest, RowsDoNotDependOnTheBatchWhateverTheWidth) {
  Rng rng(6);
  const int64_t in = 2200, rows = 130;
  b().reserve(rows, in, 128);
  const std::vector<float> x = normals(rng, rows * in);
  for (int64_t out : {int64_t{90}, int64_t{1500}, int64_t{5000}, int64_t{9000}, int64_t{18000}})
    for (const char* format : {"int2g32z", "int3g64z", "int4g128z", "int4g64zs8", "int5g32", "int6g64z", "int7g128z",
                               "int8g128z", "int8g64zs8", "lut3g64", "lut4g64", "lut6g64", "bf16"}) {
      SCOPED_TRACE(std::string(format) + " " + std::to_string(out));
      const Cuda::Linear packed = b().pack(random_weight(parse_format(format), out, in, rng));
      std::vector<float> together;
      for (int64_t n : {rows, int64_t{97}, int64_t{65}, int64_t{64}, int64_t{47}, int64_t{33}, int64_t{32}, int64_t{24},
                        int64_t{16}, int64_t{13}, int64_t{9}, int64_t{8}, int64_t{7}, int64_t{2}, int64_t{1}}) {
        batch(static_cast<int>(n), 0, 1, kShape);
        const Cuda::Matrix input = matrix(std::vector<float>(x.begin(), x.begin() + n * in), in);
        Cuda::Matrix y = matrix(std::vector<float>(static_cast<size_t>(n * out), NAN), out);
        const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&packed, &y}};
        b().linear(b().input(input), outputs);
        const std::vector<float> got = values_of(y);
        if (together.empty()) together = got;
        ASSERT_EQ(0, std::memcmp(got.data(), together.data(), got.size() * sizeof(float))) << n << " rows";
      }
    }
}

TEST_F(CudaTest, WhatIsNotFiniteReachesItsRowAndNoOther) {
  Rng rng(7);
  const int64_t in = 300, out = 40, most = 50;
  b().reserve(most, in, 128);
  std::vector<float> x = normals(rng, most * in);
  x[static_cast<size_t>(in + 7)] = INFINITY;
  x[static_cast<size_t>(2 * in + 290)] = NAN;
  for (const char* format : {"int4g128z", "int8g32", "lut4g64", "bf16"})
    for (int64_t n : {int64_t{3}, int64_t{12}, int64_t{20}, most}) {
      SCOPED_TRACE(std::string(format) + " " + std::to_string(n));
      const Cuda::Linear packed = b().pack(random_weight(parse_format(format), out, in, rng));
      batch(static_cast<int>(n), 0, 1, kShape);
      Cuda::Matrix y = b().allocate(n, out);
      const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&packed, &y}};
      b().linear(b().input(matrix(std::vector<float>(x.begin(), x.begin() + n * in), in)), outputs);
      const std::vector<float> got = values_of(y);
      for (int64_t i = 0; i < n * out; ++i) {
        const int64_t row = i / out;
        EXPECT_EQ(std::isfinite(got[static_cast<size_t>(i)]), row != 1 && row != 2) << i;
      }
    }
}

// The three weights have one, three and one row blocks, so pairs of row blocks belong to two weights.
TEST_F(CudaTest, LinearAddAddsAndSeveralWeightsGoTogether) {
  Rng rng(2);
  const int64_t in = 256, wide = 330, narrow = 72;
  b().reserve(50, 1024, 128);
  const LinearWeight first = random_weight(parse_format("int4g64z"), narrow, in, rng),
                     second = random_weight(parse_format("int4g64z"), wide, in, rng),
                     third = random_weight(parse_format("int4g64z"), narrow, in, rng);
  const Cuda::Linear a = b().pack(first), c = b().pack(second), d = b().pack(third);
  for (int64_t n : {int64_t{5}, int64_t{20}, int64_t{50}}) {
    SCOPED_TRACE(n);
    batch(static_cast<int>(n), 0, 1, kShape);
    const Cuda::Matrix x = matrix(normals(rng, n * in), in);
    Cuda::Matrix ya = b().allocate(n, narrow), yc = b().allocate(n, wide), yd = b().allocate(n, narrow),
                 wide_alone = b().allocate(n, wide), alone = b().allocate(n, narrow);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> all[] = {{&a, &ya}, {&c, &yc}, {&d, &yd}},
                                                        one[] = {{&c, &wide_alone}}, another[] = {{&d, &alone}};
    b().linear(b().input(x), all);
    b().linear(b().input(x), one);
    b().linear(b().input(x), another);
    EXPECT_EQ(values_of(yc), values_of(wide_alone));
    EXPECT_EQ(values_of(yd), values_of(alone));
    const std::vector<float> before = normals(rng, n * narrow);
    Cuda::Matrix sum = matrix(before, narrow);
    b().linear_add(b().input(x), d, sum);
    const std::vector<float> got = values_of(sum), product = values_of(alone);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], before[i] + product[i]);
  }
}

// Prompt rows are multiplied in tiles of 128 or 256 rows, whichever fills the device. (On an H200 1024 rows of 16800
// outputs take tiles of 256, and 300 rows tiles of 128.) The products are taken alone, beside another weight, and
// added.
TEST_F(CudaTest, ManyRowsDoNotDependOnTheBatchNorOnWhatIsMultipliedBeside) {
  Rng rng(7);
  const int64_t in = 392, rows = 1024, out = 16800, narrow = 200;
  b().reserve(rows, in, 128);
  const std::vector<float> x = normals(rng, rows * in);
  for (const char* format :
       {"int4g128z", "int3g64zs8", "int8g32", "lut4g64", "lut5g64", "lut5g32", "lut6g64", "lut6g128"}) {
    SCOPED_TRACE(format);
    const Cuda::Linear wide = b().pack(random_weight(parse_format(format), out, in, rng)),
                       few = b().pack(random_weight(parse_format(format), narrow, in, rng));
    const auto product = [&](int64_t n, const Cuda::Linear& w, bool beside, bool add) {
      batch(static_cast<int>(n), 0, static_cast<int>(n / kPageTokens) + 1, kShape, Activations::a16, RowKind::prompt);
      const Cuda::Matrix input = matrix(std::vector<float>(x.begin(), x.begin() + n * in), in);
      Cuda::Matrix y = matrix(std::vector<float>(static_cast<size_t>(n * w.out), add ? 1.0f : NAN), w.out),
                   other = b().allocate(n, out);
      const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&w, &y}, {&wide, &other}};
      if (add)
        b().linear_add(b().input(input), w, y);
      else
        b().linear(b().input(input), std::span(outputs, beside ? 2 : 1));
      return values_of(y);
    };
    const auto same = [](const std::vector<float>& part, const std::vector<float>& all) {
      return std::memcmp(part.data(), all.data(), part.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(product(300, wide, false, false), product(rows, wide, false, false)));
    const std::vector<float> alone = product(rows, few, false, false);
    EXPECT_TRUE(same(product(130, few, false, false), alone));
    EXPECT_TRUE(same(product(3, few, false, false), alone));
    EXPECT_TRUE(same(product(rows, few, true, false), alone));
    const std::vector<float> added = product(rows, few, false, true);
    // Our own kernels compute 1 + (sum + bias). cuBLAS, which is used before Hopper, computes (1 + sum) + bias. With
    // a bias of at most 5 the four roundings differ by at most 2^-24 (|sum + bias| + |1 + sum| + 2 |1 + sum + bias|)
    // <= 2^-22 (|sum + bias| + 2).
    for (size_t i = 0; i < added.size(); ++i) {
      const double tolerance = cuda::device_code().hopper ? 0 : 0x1p-22 * (std::abs(alone[i]) + 2);
      ASSERT_NEAR(added[i], 1 + alone[i], tolerance) << i;
    }
  }
}

TEST_F(CudaTest, EmbeddingGivesTheDecodedRows) {
  Rng rng(3);
  b().reserve(6, 1024, 128);
  batch(6, 0, 1, kShape);
  for (const char* format : {"int2g32z", "int3g64zs8", "int4g128", "int5g64z", "int6g64z", "int7g64z", "int8g128z",
                             "lut2g64", "lut3g64", "lut4g64", "lut5g64", "lut5g32", "lut6g64", "lut6g128", "bf16"}) {
    SCOPED_TRACE(format);
    const LinearWeight weight = random_weight(parse_format(format), 150, 200, rng);
    const Cuda::Linear table = b().pack(weight);
    Cuda::Matrix x = b().allocate(6, 200);
    b().embed(table, x, 1);
    const std::vector<float> got = values_of(x), decoded = decode(weight);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], decoded[i], std::abs(decoded[i]) * 0x1p-22);
  }
}

TEST_F(CudaTest, NormAndSwigluAgreeWithTheReference) {
  Rng rng(4);
  const int64_t n = 3, d = 1000;
  b().reserve(n, d, 128);
  batch(static_cast<int>(n), 0, 1, kShape);
  const std::vector<float> x = normals(rng, n * d, 3), weight = normals(rng, d);
  const Cuda::Matrix mx = matrix(x, d), mw = matrix(weight, d);
  const std::vector<float> got = values_of(b().norm(mx, mw, 1e-5f));
  const std::vector<double> expected = ref::rmsnorm(doubles(x), doubles(weight), 1e-5f, n, d);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], std::abs(expected[i]) * 1e-6 + 1e-9);  // there are about ten roundings
  const std::vector<float> last = values_of(b().norm_logit_rows(mx, mw, 1e-5f, 2, 1));
  EXPECT_EQ(last, std::vector<float>(got.end() - d, got.end()));
  const Cuda::Matrix mu = matrix(std::vector<float>(x.rbegin(), x.rend()), d);
  const std::vector<float> gated = values_of(b().gated(mx, mu, Gate::silu, n));
  const std::vector<double> silu = ref::swiglu(doubles(x), doubles(std::vector<float>(x.rbegin(), x.rend())));
  for (size_t i = 0; i < gated.size(); ++i) EXPECT_NEAR(gated[i], silu[i], std::abs(silu[i]) * 2e-6 + 1e-9);
}

// GELU is checked as SwiGLU is, but the exponent's roundings count as well: 2 t is below 12 where the value is not
// negligible beside 1e-6. Norms in place, and the addition of a norm's output, must use the values of norm().
TEST_F(CudaTest, OtherBlocksAgreeWithTheReference) {
  Rng rng(24);
  const int64_t n = 3, d = 1000;
  b().reserve(n, d, 128);
  batch(static_cast<int>(n), 0, 1, kShape);
  const std::vector<float> x = normals(rng, n * d, 3), y = normals(rng, n * d), weight = normals(rng, d);
  Cuda::Matrix mx = matrix(x, d), my = matrix(y, d);
  const Cuda::Matrix mw = matrix(weight, d);
  const std::vector<float> gated = values_of(b().gated(mx, my, Gate::gelu_tanh, n));
  const std::vector<double> gelu = ref::geglu(doubles(x), doubles(y));
  for (size_t i = 0; i < gated.size(); ++i) EXPECT_NEAR(gated[i], gelu[i], std::abs(gelu[i]) * 1e-5 + 1e-6);
  const Gating clamp(Gate::clamped, 1.702f, 1.5f);
  const std::vector<float> held = values_of(b().gated(mx, my, clamp, n));
  const std::vector<double> clamped = ref::gated(clamp, doubles(x), doubles(y));
  for (size_t i = 0; i < held.size(); ++i) EXPECT_NEAR(held[i], clamped[i], std::abs(clamped[i]) * 1e-5 + 1e-6);
  const std::vector<float> normed = values_of(b().norm(my, mw, 1e-5f));
  b().add_normed(my, mw, 1e-5f, mx);
  const std::vector<float> sum = values_of(mx);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], x[i] + normed[i]);
  b().normalise(my, mw, 1e-5f);
  EXPECT_EQ(values_of(my), normed);
}

// Operations that make activations also round them when a coarse mode asks for it. A product must then have the bits
// that it has if the same activations are given from outside, for every width and group that weights ask for, and
// whichever weight asked before. Rows of +-1 are normalised to +-weight exactly.
TEST_F(CudaTest, NormsAndGatesPrepareWhatACoarseModeMultiplies) {
  Rng rng(21);
  const int64_t d = 1024, out = 200, most = 20;
  b().reserve(most, d, 128);
  std::vector<Cuda::Linear> weights;
  for (const char* format : {"int4g64zs8", "int8g128z", "lut4g32", "int8g64zs8", "int6c", "bf16"})
    weights.push_back(b().pack(random_weight(parse_format(format), out, d, rng)));
  const std::pair<RowKind, int> kBatches[] = {
      {RowKind::output, 1}, {RowKind::output, 3}, {RowKind::output, 20}, {RowKind::prompt, 5}, {RowKind::prompt, 20}};
  for (const Activations mode : {Activations::a16, Activations::a8, Activations::a4, Activations::aw})
    for (const auto& [kind, n] : kBatches) {
      SCOPED_TRACE(std::string(name_of(mode)) + ", rows " + std::to_string(n) +
                   (kind == RowKind::prompt ? " of a prompt" : ""));
      std::vector<float> signs(static_cast<size_t>(n * d));
      for (float& v : signs) v = rng.below(2) ? 1.0f : -1.0f;
      const Cuda::Matrix x = matrix(signs, d), with = matrix(normals(rng, d), d), gate = matrix(normals(rng, n * d), d),
                         up = matrix(normals(rng, n * d, 3), d);
      const auto products = [&](const std::function<Cuda::Acts()>& make) {
        std::vector<std::vector<float>> all;
        batch(n, 0, 1, kShape, mode, kind);
        const Cuda::Acts acts = make();
        for (const Cuda::Linear& w : weights) {
          Cuda::Matrix y = b().allocate(n, out);
          b().linear(acts, std::array{std::pair<const Cuda::Linear*, Cuda::Matrix*>{&w, &y}});
          all.push_back(values_of(y));
        }
        all.push_back(values_of(acts));
        return all;
      };
      std::vector<float> weighted = signs;
      const std::vector<float> scales = values_of(with);
      for (size_t i = 0; i < weighted.size(); ++i) weighted[i] *= scales[i % static_cast<size_t>(d)];
      const Cuda::Matrix normed = matrix(weighted, d);
      EXPECT_EQ(products([&] { return b().norm(x, with, 0); }), products([&] { return b().input(normed); }));
      for (const Gate how : {Gate::silu, Gate::gelu_tanh}) {
        const auto made = products([&] { return b().gated(gate, up, how, n); });
        const Cuda::Matrix same = matrix(made.back(), d);
        EXPECT_EQ(made, products([&] { return b().input(same); }));
      }
    }
}

// Rows of a prompt that a coarse mode rounds must have the bits that a16 gives to rows that were rounded before.
TEST_F(CudaTest, PromptsInACoarseModeAreProductsOfRoundedRows) {
  Rng rng(22);
  const int64_t n = 70, d = 1024, out = 200;
  b().reserve(n, d, 128);
  const Cuda::Matrix x = matrix(normals(rng, n * d), d), rounded = b().allocate(n, d);
  const auto product = [&](const Cuda::Linear& w, const Cuda::Matrix& of, Activations mode) {
    batch(static_cast<int>(n), 0, 5, kShape, mode, RowKind::prompt);
    Cuda::Matrix y = b().allocate(n, out);
    b().linear(b().input(of), std::array{std::pair<const Cuda::Linear*, Cuda::Matrix*>{&w, &y}});
    return values_of(y);
  };
  for (const char* format : {"int4g64zs8", "int8g128z", "lut4g32", "int6c"})
    for (const Activations mode : {Activations::a8, Activations::a4, Activations::aw}) {
      SCOPED_TRACE(std::string(format) + " " + std::string(name_of(mode)));
      const FormatSpec spec = parse_format(format);
      const Cuda::Linear w = b().pack(random_weight(spec, out, d, rng));
      const cuda::Stream stream = cuda::make_stream();
      cuda::round_to_integers(
          stream, x.data(), n, d,
          cuda::rounding_of(static_cast<int>(activation_group(spec)), (1 << (activation_bits(mode, spec) - 1)) - 1),
          rounded.data());
      cuda::wait_for(stream);
      cuda::destroy_stream(stream);
      EXPECT_EQ(product(w, x, mode), product(w, rounded, Activations::a16));
      EXPECT_NE(product(w, x, mode), product(w, x, Activations::a16));
    }
}

// In groups of 128 the integers of a group are added exactly, multiplied by two scales, and groups are added in
// order. The reference uses the rounded rows. There are three roundings for each group and those of decoded values,
// so the error is at most 2^-23 (groups + 4) of the magnitudes that are added up.
TEST_F(CudaTest, PromptsInACoarseModeAreMultipliedAsIntegers) {
  Rng rng(23);
  for (const auto& [n, d, out] : {std::array<int64_t, 3>{300, 1000, 200}, {70, 1024, 260}, {1, 128, 128}}) {
    b().reserve(n, d, 128);
    const Cuda::Matrix x = matrix(normals(rng, n * d), d), rounded = b().allocate(n, d);
    for (const char* format : {"int4g128z", "int4g128", "int4c", "int8g128", "int8c", "int4g128s8"})
      for (const Activations mode : {Activations::a8, Activations::a4}) {
        SCOPED_TRACE(fmt::format("{} {} {} x {}, {} rows", format, name_of(mode), out, d, n));
        const FormatSpec spec = parse_format(format);
        const LinearWeight weight = random_weight(spec, out, d, rng);
        const Cuda::Linear w = b().pack(weight);
        const cuda::Stream stream = cuda::make_stream();
        cuda::round_to_integers(stream, x.data(), n, d,
                                cuda::rounding_of(128, (1 << (activation_bits(mode, spec) - 1)) - 1), rounded.data());
        cuda::wait_for(stream);
        cuda::destroy_stream(stream);
        const std::vector<float> seen = values_of(rounded), values = decode(weight);
        batch(static_cast<int>(n), 0, 5, kShape, mode, RowKind::prompt);
        Cuda::Matrix y = b().allocate(n, out);
        b().linear(b().input(x), std::array{std::pair<const Cuda::Linear*, Cuda::Matrix*>{&w, &y}});
        const std::vector<float> got = values_of(y);
        for (int64_t m = 0; m < n; m += 1 + n / 7)
          for (int64_t o = 0; o < out; ++o) {
            double sum = weight.bias ? weight.bias.as<const float>()[o] : 0, magnitude = std::abs(sum);
            for (int64_t c = 0; c < d; ++c) {
              const double term = double{seen[static_cast<size_t>(m * d + c)]} * values[static_cast<size_t>(o * d + c)];
              sum += term, magnitude += std::abs(term);
            }
            ASSERT_NEAR(got[static_cast<size_t>(m * out + o)], sum,
                        magnitude * 0x1p-23 * static_cast<double>(d / 128 + 5))
                << m << " " << o;
          }
      }
  }
}

// The host does the same FP32 operations. It may fuse x / scale and its sum with a magic number, so an element whose
// quotient lies next to a tie may be rounded the other way. It then differs by one step, and few elements do.
TEST_F(CudaTest, CoarseActivationsAreTheNearestIntegers) {
  Rng rng(14);
  const cuda::Stream stream = cuda::make_stream();
  for (const int64_t columns : {int64_t{32}, int64_t{200}, int64_t{1096}})
    for (const int64_t group : {int64_t{32}, int64_t{64}, int64_t{128}})
      for (const int bits : {4, 6, 8}) {
        const int64_t n = 5;
        std::vector<float> x = normals(rng, n * columns, 2), got(x.size());
        for (int64_t c = 0; c < 32; ++c) x[static_cast<size_t>(c)] = 0;            // this group is all zeros
        x[static_cast<size_t>(columns)] = std::numeric_limits<float>::infinity();  // this group's scale is infinite
        const Cuda::Matrix from = matrix(x, columns), to = b().allocate(n, columns);
        const auto steps = static_cast<float>((1 << (bits - 1)) - 1);
        cuda::round_to_integers(stream, from.data(), n, columns,
                                cuda::rounding_of(static_cast<int>(group), (1 << (bits - 1)) - 1), to.data());
        cuda::from_device(stream, got.data(), to.data(), got.size() * sizeof(float));
        int64_t differ = 0;
        for (int64_t m = 0; m < n; ++m)
          for (int64_t first = 0; first < columns; first += group) {
            const auto at = x.begin() + m * columns + first;
            const int64_t count = std::min(group, columns - first);
            float largest = 0;
            for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(at[i]));
            for (int64_t i = 0; i < count; ++i) {
              const float value = got[static_cast<size_t>(m * columns + first + i)];
              if (std::isinf(largest)) {
                EXPECT_FALSE(std::isfinite(value) && value != 0) << m << " " << first + i;
                continue;
              }
              const float scale = largest / steps, expected = largest == 0 ? 0 : std::nearbyint(at[i] / scale) * scale;
              ASSERT_NEAR(value, expected, scale * (1 + 1e-5f)) << columns << " " << group << " " << bits;
              differ += std::abs(value - expected) > scale * 0.5f;
            }
          }
        EXPECT_LE(differ, 1 + n * columns / 1000);  // a quotient lies within 2^-23 x 127 of a tie in 3 of 100,000 cases
      }
  cuda::destroy_stream(stream);
}

TEST_F(CudaTest, AttentionOverPagesAgreesWithTheReference) {
  Rng rng(5);
  struct Case {
    int h, hk, e, window;
    KvFormat kv;
    double tolerance;
    int pairs = -1;   // the pairs of columns that are rotated, if not all; q is then scaled by position too
    int total = 300;  // the last ten are output rows, the others a prompt
  };
  // The tolerances are these. f32 has about a hundred FP32 roundings of values below 4, however long the context is
  // (a warp adds up one span in 2,048 positions). The other formats add the rounding of keys and values, and f16 also
  // that of queries and weights, for hundreds of rows together. With integers half a step is at most 10 / 255 / 2 =
  // .02 of a value. For keys it moves a score by a normal of sd 1.1^2 .04 / sqrt 12 = .014. Five such deviations
  // between two positions that are alike move their mean by .25 x .07 |v - v'|, which is .06 where the values lie 3.4
  // apart.
  for (const Case& c :
       {Case{4, 2, 64, 0, KvFormat::f32, 1e-5}, Case{12, 1, 32, 0, KvFormat::f32, 1e-5},
        Case{4, 4, 128, 70, KvFormat::f32, 1e-5}, Case{4, 2, 64, 0, KvFormat::f16, 6e-3},
        Case{4, 1, 128, 0, KvFormat::f16, 6e-3}, Case{4, 4, 128, 70, KvFormat::f16, 6e-3},
        Case{4, 2, 64, 0, KvFormat::bf16, 5e-2}, Case{4, 2, 64, 0, KvFormat::i8, 8e-2},
        Case{4, 2, 64, 0, KvFormat::i4x2, 8e-2}, Case{4, 1, 128, 70, KvFormat::i4x2, 8e-2},
        Case{4, 2, 64, 0, KvFormat::f32, 1e-5, 24}, Case{3, 1, 64, 0, KvFormat::f32, 1e-5, 0},
        Case{4, 2, 128, 70, KvFormat::f16, 6e-3, 48}, Case{4, 2, 64, 0, KvFormat::f32, 1e-5, -1, 9000},
        Case{8, 2, 128, 0, KvFormat::f16, 6e-3, -1, 9000}, Case{2, 2, 64, 0, KvFormat::i8, 8e-2, -1, 2500}}) {
    SCOPED_TRACE(std::to_string(c.h) + " heads, " + std::to_string(c.e) + ", " + std::string(name_of(c.kv)));
    const int total = c.total, chunk = total - 10, pages = (total + kPageTokens - 1) / kPageTokens;
    AttentionShape shape{{{c.window, 0}}, {{{}, 1.1f}}, c.h, c.hk, c.e, 1e-5f};
    for (int i = 0; i < (c.pairs < 0 ? c.e / 2 : c.pairs); ++i)
      shape.rotations[0].inverse_frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.e)));
    if (c.pairs >= 0) shape.query_scale = 0.7f, shape.query_growth = 0.1, shape.query_growth_positions = 50;
    const std::vector<float> q = normals(rng, int64_t{total} * c.h * c.e),
                             k = normals(rng, int64_t{total} * c.hk * c.e),
                             v = normals(rng, int64_t{total} * c.hk * c.e);
    const std::vector<float> sinks = normals(rng, c.h, 2);
    const Cuda::Matrix some_sinks = matrix(sinks, c.h);
    const bool sunk = c.window == 0 || c.pairs >= 0;  // the others have no sinks
    b().reserve(total, int64_t{c.h} * c.e, total);
    Cuda::KvCache cache = b().allocate_cache(shape, pages, c.kv);
    std::vector<float> got;
    for (const auto& [start, n] : {std::pair{0, chunk}, std::pair{chunk, total - chunk}}) {
      batch(n, start, pages, shape, Activations::a16, start == 0 ? RowKind::prompt : RowKind::output);
      const auto part = [&](const std::vector<float>& all, int heads) {
        const int64_t width = int64_t{heads} * c.e;
        return matrix(std::vector<float>(all.begin() + start * width, all.begin() + (start + n) * width), width);
      };
      Cuda::Matrix mq = part(q, c.h), mk = part(k, c.hk);
      const Cuda::Matrix mv = part(v, c.hk);
      b().rope_append(mq, mk, mv, nullptr, nullptr, cache, 0);
      const std::vector<float> out = values_of(b().attend(mq, cache, 0, sunk ? &some_sinks : nullptr));
      got.insert(got.end(), out.begin(), out.end());
    }
    const std::vector<float>& single = shape.rotations[0].inverse_frequencies;
    const std::vector<double> frequencies(single.begin(), single.end());
    std::vector<double> rq = doubles(q), rk = doubles(k);
    const std::vector<double> rv = doubles(v);
    for (int p = 0; p < total; ++p) {
      for (double& x : std::span(rq).subspan(static_cast<size_t>(p * c.h * c.e), static_cast<size_t>(c.h * c.e)))
        x *= static_cast<double>(shape.query_factor(p));
      ref::rope(std::span(rq).subspan(static_cast<size_t>(p * c.h * c.e), static_cast<size_t>(c.h * c.e)), frequencies,
                1.1f, p, c.h, c.e);
      ref::rope(std::span(rk).subspan(static_cast<size_t>(p * c.hk * c.e), static_cast<size_t>(c.hk * c.e)),
                frequencies, 1.1f, p, c.hk, c.e);
    }
    for (int p : {0, 1, 31, 32, 127, 128, 200, 289, chunk, total - 1}) {
      const std::vector<double> expected =
          ref::attention(std::span(rq).subspan(static_cast<size_t>(p * c.h * c.e), static_cast<size_t>(c.h * c.e)),
                         std::span(rk).first(static_cast<size_t>((p + 1) * c.hk * c.e)),
                         std::span(rv).first(static_cast<size_t>((p + 1) * c.hk * c.e)), p, c.h, c.hk, c.e, c.window,
                         sunk ? doubles(sinks) : std::vector<double>());
      for (int i = 0; i < c.h * c.e; ++i)
        ASSERT_NEAR(got[static_cast<size_t>(p * c.h * c.e + i)], expected[static_cast<size_t>(i)], c.tolerance)
            << p << " " << i;
    }
  }
}

// 260 rows of two sequences in one step must get what each sequence gets alone.
TEST_F(CudaTest, ManyRowsOfAttentionDoNotDependOnTheirBatch) {
  Rng rng(8);
  struct Case {
    int window;
    KvFormat kv;
  };
  for (const Case& c :
       {Case{0, KvFormat::f16}, Case{40, KvFormat::f16}, Case{0, KvFormat::i4x2}, Case{40, KvFormat::i4x2}}) {
    const AttentionShape shape{{{c.window, 0}}, {{std::vector<float>(64, 0.3f), 1.0f}}, 4, 2, 128, 1e-5f};
    const int first = 130, total = 260, pages = 6;
    b().reserve(total, 512, 256);
    const std::vector<float> q = normals(rng, total * 512), k = normals(rng, total * 256),
                             v = normals(rng, total * 256);
    const auto attended = [&](int from, int to) {
      Batch batch;
      for (int row = from; row < to;) {
        const int next = row < first ? std::min(first, to) : to;
        std::vector<int32_t> ids(static_cast<size_t>(next - row), 0), own(static_cast<size_t>(pages));
        std::iota(own.begin(), own.end(), static_cast<int32_t>(batch.segments.size()) * pages);
        batch.append(ids, row % first, own, next - row, RowKind::prompt);
        row = next;
      }
      b().begin(batch, Activations::a16, shape);
      Cuda::KvCache cache = b().allocate_cache(shape, 2 * pages, c.kv);
      const auto part = [&](const std::vector<float>& all, int width) {
        return matrix(std::vector<float>(all.begin() + from * width, all.begin() + to * width), width);
      };
      Cuda::Matrix mq = part(q, 512), mk = part(k, 256);
      b().rope_append(mq, mk, part(v, 256), nullptr, nullptr, cache, 0);
      return values_of(b().attend(mq, cache, 0));
    };
    std::vector<float> alone = attended(0, first);
    const std::vector<float> second = attended(first, total);
    alone.insert(alone.end(), second.begin(), second.end());
    EXPECT_TRUE(attended(0, total) == alone) << "window " << c.window << ", " << name_of(c.kv);
  }
}

// The contexts are so long that a thread block has several cuts. The output of a row must not depend on how it is
// computed: in a chunk with rows before it, or alone, where attention itself rotates and appends it, beside rows of
// other sequences.
TEST_F(CudaTest, AttentionOfARowAloneEqualsThatAmongAllBitForBit) {
  Rng rng(7);
  struct Case {
    int h, hk, e, window;
    KvFormat kv;
    int total = 2304;
  };
  for (const Case& c :
       {Case{8, 2, 128, 0, KvFormat::f16, 9600}, Case{4, 2, 64, 8300, KvFormat::f32, 9600},
        Case{3, 1, 24, 0, KvFormat::i8, 9600}, Case{8, 2, 128, 0, KvFormat::f16}, Case{16, 2, 128, 0, KvFormat::f16},
        Case{2, 2, 80, 0, KvFormat::f16}, Case{16, 2, 64, 900, KvFormat::f16}, Case{4, 1, 256, 0, KvFormat::f16},
        Case{4, 2, 64, 0, KvFormat::f32}, Case{4, 2, 128, 500, KvFormat::bf16}, Case{3, 1, 24, 0, KvFormat::i8},
        Case{3, 1, 24, 0, KvFormat::i4x2}, Case{8, 2, 128, 900, KvFormat::i4x2}, Case{4, 1, 256, 0, KvFormat::i4x2}}) {
    SCOPED_TRACE(std::to_string(c.h) + " heads, " + std::to_string(c.e) + ", " + std::string(name_of(c.kv)));
    const int total = c.total, pages = total / kPageTokens;
    AttentionShape shape{{{c.window, 0}}, {{{}, 1.0f}}, c.h, c.hk, c.e, 1e-5f};
    for (int i = 0; i < c.e / 2; ++i)
      shape.rotations[0].inverse_frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.e)));
    const int64_t q_width = int64_t{c.h} * c.e, k_width = int64_t{c.hk} * c.e;
    const std::vector<float> q = normals(rng, total * q_width), k = normals(rng, total * k_width),
                             v = normals(rng, total * k_width);
    const Cuda::Matrix q_norm = matrix(normals(rng, c.e), c.e), k_norm = matrix(normals(rng, c.e), c.e),
                       sinks = matrix(normals(rng, c.h, 2), c.h);
    b().reserve(total, q_width, total);
    Cuda::KvCache cache = b().allocate_cache(shape, pages, c.kv);
    std::vector<float> all;
    constexpr int kChunk = 96;
    for (int start = 0; start < total; start += kChunk) {
      const int n = std::min(kChunk, total - start);
      const auto chunk = [&](const std::vector<float>& from, int64_t width) {
        return matrix(std::vector<float>(from.begin() + start * width, from.begin() + (start + n) * width), width);
      };
      batch(n, start, pages, shape);
      Cuda::Matrix mq = chunk(q, q_width), mk = chunk(k, k_width);
      const Cuda::Matrix mv = chunk(v, k_width);
      b().rope_append(mq, mk, mv, &q_norm, &k_norm, cache, 0);
      const std::vector<float> some = values_of(b().attend(mq, cache, 0, &sinks));
      all.insert(all.end(), some.begin(), some.end());
    }
    // The numbers of sequences make a row have a cluster of eight thread blocks, two of them on a multiprocessor or
    // not, a cluster of fewer, some separate blocks, or one. Long and short contexts are mixed.
    std::vector<std::vector<int>> batches = {
        {0}, {1151}, {total - 1}, {total - 1, 7, 128}, {127, 1024, 2047, 1040}, {total - 1, total / 2, 2, total - 300}};
    for (const auto& [sequences, longest] : {std::pair{14, 1024}, {3, total}, {13, total}, {40, total}, {140, total}}) {
      batches.emplace_back();
      for (int i = 0; i < sequences; ++i)
        batches.back().push_back(static_cast<int>(rng.below(static_cast<uint64_t>(longest))));
    }
    for (const std::vector<int>& positions : batches) {
      Batch alone;
      std::vector<float> parts[3];
      for (int position : positions) {
        const int32_t id = 0;
        std::vector<int32_t> own(static_cast<size_t>(pages));
        std::iota(own.rbegin(), own.rend(), 0);
        alone.append({&id, 1}, position, own, 1, RowKind::output);
        const auto take = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
          to.insert(to.end(), from.begin() + position * width, from.begin() + (position + 1) * width);
        };
        take(parts[0], q, q_width), take(parts[1], k, k_width), take(parts[2], v, k_width);
      }
      b().begin(alone, Activations::a16, shape);
      Cuda::Matrix aq = matrix(parts[0], q_width), ak = matrix(parts[1], k_width);
      const Cuda::Matrix av = matrix(parts[2], k_width);
      b().rope_append(aq, ak, av, &q_norm, &k_norm, cache, 0);
      const std::vector<float> got = values_of(b().attend(aq, cache, 0, &sinks));
      for (size_t i = 0; i < positions.size(); ++i)
        ASSERT_EQ(0, std::memcmp(got.data() + static_cast<int64_t>(i) * q_width, all.data() + positions[i] * q_width,
                                 static_cast<size_t>(q_width) * sizeof(float)))
            << "position " << positions[i];
    }
  }
}

// i8 and i4x2 must keep the same bytes of the same keys and values, whether rope_append or attention writes them, so
// that attention to either gives the same bits.
TEST_F(CudaTest, NibblePlanesHoldTheBytesOfAnI8Cache) {
  Rng rng(9);
  const cuda::Stream stream = cuda::make_stream();
  for (const int e : {24, 64, 128, 256}) {
    const int hk = 2, rows = 70, pages = 3, slots = pages * hk * kPageTokens;
    const AttentionShape shape{{{}}, {{std::vector<float>(static_cast<size_t>(e / 2), 0.3f), 1.0f}}, 4, hk, e, 1e-5f};
    const std::vector<float> q = normals(rng, rows * 4 * e), k = normals(rng, rows * hk * e),
                             v = normals(rng, rows * hk * e);
    b().reserve(rows, 4 * e, rows);
    const auto run = [&](KvFormat kv) {
      Cuda::KvCache cache = b().allocate_cache(shape, pages, kv);
      std::vector<float> attended;
      for (int start : {0, rows - 1}) {
        const int n = start == 0 ? rows - 1 : 1;
        batch(n, start, pages, shape);
        const auto part = [&](const std::vector<float>& all, int width) {
          return matrix(std::vector<float>(all.begin() + start * width, all.begin() + (start + n) * width), width);
        };
        Cuda::Matrix mq = part(q, 4 * e), mk = part(k, hk * e);
        const Cuda::Matrix mv = part(v, hk * e);
        b().rope_append(mq, mk, mv, nullptr, nullptr, cache, 0);
        const std::vector<float> out = values_of(b().attend(mq, cache, 0));
        attended.insert(attended.end(), out.begin(), out.end());
      }
      std::vector<uint8_t> bytes(cache.storage.size());
      cuda::from_device(stream, bytes.data(), cache.storage.data(), bytes.size());
      return std::pair{attended, bytes};
    };
    const auto [expected, whole] = run(KvFormat::i8);
    const auto [got, planes] = run(KvFormat::i4x2);
    EXPECT_TRUE(got == expected) << e;
    const int64_t elements = int64_t{2} * slots * e;  // the scales follow
    std::vector<uint8_t> joined = planes;
    for (int64_t at = 0; at < elements; ++at) {
      const int64_t column = at % e, row = at / e % kPageTokens, page = at / e / kPageTokens * kPageTokens * e,
                    word = page + row * (e / 2) + column / 8 * 4 + column % 4, shift = column % 8 / 4 * 4;
      joined[static_cast<size_t>(at)] =
          static_cast<uint8_t>((planes[static_cast<size_t>(word)] >> shift & 15) << 4 |
                               (planes[static_cast<size_t>(word + kPageTokens * e / 2)] >> shift & 15));
    }
    EXPECT_TRUE(joined == whole) << e;
    EXPECT_NE(std::count(whole.begin(), whole.begin() + elements, 255), 0) << e;
  }
  cuda::destroy_stream(stream);
}

TEST_F(CudaTest, RefusesWhatItCannotDo) {
  EXPECT_THROW(b().allocate(int64_t{1} << 24, int64_t{1} << 20), Error);  // this would be 64 TB
  EXPECT_THROW(Cuda(Cuda::Options{.device = 99}), Error);
}

}  // namespace
}  // namespace fidelio
