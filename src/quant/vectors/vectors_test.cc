#include "quant/vectors/vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/rng.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

std::vector<float> normal(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

// Returns the Hessian of columns that share sources and differ in power.
Hessian correlated(int64_t in, ThreadPool& pool) {
  const int64_t tokens = 3 * in, sources = in / 2 + 1;
  const std::vector<float> z = normal(tokens * sources, 1), mix = normal(sources * in, 2);
  std::vector<float> x = normal(tokens * in, 3);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < in; ++c) {
      for (int64_t s = 0; s < sources; ++s)
        x[t * in + c] += 2 * z[t * sources + s] * mix[s * in + c] / std::sqrt(static_cast<float>(sources));
      x[t * in + c] *= c % 7 == 0 ? 4.0f : 1.0f;
    }
  Hessian h(in);
  h.add(x, pool);
  return h;
}

struct Size {
  int64_t out, in;
};

// The search is compared with the definition, which tries every centroid with every sign in double.
TEST(VectorBook, NearestIsNoWorseThanAnyCentroidWithAnySigns) {
  for (const int signs : {1, 4, 8}) {
    VectorBook book(256, signs);
    Rng rng(4);
    for (int64_t k = 0; k < 256; ++k)
      for (int64_t j = 0; j < 8; ++j) book.at(k, j) = static_cast<float>(rng.below(255)) - 127;
    for (int trial = 0; trial < 20; ++trial) {
      float x[8], metric[8], q[8];
      for (int j = 0; j < 8; ++j) x[j] = static_cast<float>(60 * rng.normal());
      for (int j = 0; j < 8; ++j) metric[j] = static_cast<float>(0.1 + rng.uniform());
      std::vector<float> norm(256);
      book.norms(metric, norm.data());
      const auto cost = [&](VectorChoice c) {
        book.decode(c, q);
        double sum = 0;
        for (int j = 0; j < 8; ++j) sum += double{metric[j]} * (double{x[j]} - q[j]) * (double{x[j]} - q[j]);
        return sum;
      };
      double best = std::numeric_limits<double>::max(), largest = 0;
      for (int k = 0; k < 256; ++k)
        for (int s = 0; s < 1 << signs; ++s) {
          const double c = cost({k, static_cast<uint8_t>(s)});
          best = std::min(best, c), largest = std::max(largest, c);
        }
      // The search compares sums of 16 FP32 products that are no larger than the largest cost.
      EXPECT_LE(cost(book.nearest(x, metric, norm.data())), best + 32 * 0x1p-24 * largest) << signs;
    }
  }
}

TEST(Vectors, TheReportIsTheLossOfWhatIsStored) {
  ThreadPool pool(2);
  for (const auto [out, in] : {Size{40, 64}, Size{3, 61}, Size{70, 40}}) {
    const Hessian h = correlated(in, pool);
    const std::vector<float> w = normal(out * in, 5);
    for (const char* text : {"vq8k9s1", "vq8k12s4+r3.0", "vq8k17s8+r0.5"}) {
      const GptqResult made = quantize_gptq(parse_format(text), w, out, in, h, {}, pool);
      check_codes(made.weight);
      const double loss = proxy_loss(w, decode(made.weight), out, in, h);
      const double energy = proxy_loss(w, std::vector<float>(w.size()), out, in, h);
      // The products with H are FP32. Each term is within `in` eps of the sum of magnitudes, which is at most `in`
      // times the trace.
      const double tolerance = static_cast<double>(2 * in) * 0x1p-24 * static_cast<double>(in) * energy;
      EXPECT_NEAR(made.report.loss, loss, tolerance) << text << " " << out << "x" << in;
      EXPECT_NEAR(made.report.energy, energy, tolerance);
      EXPECT_LE(made.report.loss, made.report.loss_gptq);
      EXPECT_LT(made.report.loss, energy);
    }
  }
}

TEST(Vectors, ErrorFeedbackAndCorrectionsLowerTheLoss) {
  ThreadPool pool(2);
  constexpr int64_t kOut = 64, kIn = 96;
  const Hessian h = correlated(kIn, pool);
  const std::vector<float> w = normal(kOut * kIn, 6);
  const auto loss = [&](const LinearWeight& q) { return proxy_loss(w, decode(q), kOut, kIn, h); };
  const auto fed_back = [&](const char* text) {
    return loss(quantize_gptq(parse_format(text), w, kOut, kIn, h, {}, pool).weight);
  };
  const double alone = loss(quantize_rtn(parse_format("vq8k12s4"), w, kOut, kIn, {}, pool));
  EXPECT_LT(fed_back("vq8k12s4"), alone);
  EXPECT_LT(fed_back("vq8k12s4+r5.0"), fed_back("vq8k12s4"));
  EXPECT_LT(fed_back("vq8k16s8"), fed_back("vq8k12s4"));
}

TEST(Vectors, ThreadsChangeNothing) {
  constexpr int64_t kOut = 150, kIn = 64;
  ThreadPool one(1), three(3);
  const Hessian h = correlated(kIn, one);
  const std::vector<float> w = normal(kOut * kIn, 7);
  const FormatSpec spec = parse_format("vq8k12s4+r2.2");
  const GptqResult a = quantize_gptq(spec, w, kOut, kIn, h, {}, one),
                   b = quantize_gptq(spec, w, kOut, kIn, h, {}, three);
  EXPECT_EQ(decode(a.weight), decode(b.weight));
}

// Two matrices of different size and shape get one codebook. It is the very same one, stays as it was, and serves
// also a matrix that is a thousand times larger in value.
TEST(Vectors, ASharedCodebookServesAnyMatrix) {
  constexpr int64_t kEntries = 256;
  ThreadPool pool(2);
  const FormatSpec spec = parse_format("vq8k16s8m+r1.0");
  VectorSamples samples;
  const std::vector<float> wide = normal(96 * 128, 9), plain(8, 1.0f);
  add_normalised(spec, wide, 96, 128, 64 * kEntries, samples);
  samples.metrics = plain;
  float scale = 1;
  const VectorBook book = fit_vector_book(samples, kEntries, spec.signs, pool, &scale);
  OwnedTensor codebook = OwnedTensor::allocate(DType::i8, {kEntries, kVectorDim});
  for (int64_t i = 0; i < kEntries * kVectorDim; ++i)
    codebook.as<int8_t>()[i] = static_cast<int8_t>(book.at(i / kVectorDim, i % kVectorDim));
  const std::vector<int8_t> before(codebook.as<int8_t>().begin(), codebook.as<int8_t>().end());
  const SharedCodebooks codebooks = {{shared_name(spec), codebook}};

  for (const auto [out, in] : {Size{40, 64}, Size{70, 61}}) {
    const Hessian h = correlated(in, pool);
    std::vector<float> w = normal(out * in, 10);
    for (float& x : w) x *= out == 40 ? 1 : 1000;
    const GptqResult made = quantize_gptq(spec, w, out, in, h, {.codebooks = &codebooks}, pool);
    EXPECT_EQ(shared_codebook(made.weight)->view.data, codebook.view.data);
    const double loss = proxy_loss(w, decode(made.weight), out, in, h);
    const LinearWeight alone = quantize_rtn(spec, w, out, in, {.importance = {}, .codebooks = &codebooks}, pool);
    EXPECT_LT(loss, proxy_loss(w, decode(alone), out, in, h));
    // Two bits of a normal distribution leave a tenth of its energy. (Vectors of one matrix do not differ from those
    // of another.)
    EXPECT_LT(loss, 0.1 * proxy_loss(w, std::vector<float>(w.size()), out, in, h));
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), codebook.as<const int8_t>().begin()));
  const Hessian h = correlated(64, pool);
  EXPECT_THROW(quantize_gptq(spec, normal(64, 1), 1, 64, h, {.gradient = plain, .codebooks = &codebooks}, pool), Error);
}

// The next tests are for steps that the GPU's quantiser shares with the host's.
TEST(Vectors, TheDearestAreCorrectedAndTheFirstOfThoseThatCostAsMuch) {
  const std::vector<float> cost = {1, 5, 3, 3, 0, 3, 9};
  std::vector<uint8_t> corrected(cost.size());
  mark_corrections(cost, 4, corrected);
  EXPECT_EQ(corrected, (std::vector<uint8_t>{0, 1, 1, 1, 0, 0, 1}));
}

TEST(Vectors, SamplesAreOfTheBlockByPlaceWithoutWhatIsCorrected) {
  const VectorShape shape = vector_shape(parse_format("vq8k16s8"), 2080, 1024);  // this makes two codebooks
  ASSERT_EQ(shape.blocks, 2);
  std::vector<float> row(static_cast<size_t>(shape.out), 1.0f);
  std::vector<uint8_t> corrected(static_cast<size_t>(shape.out * shape.vectors));
  row[1100] = 0;
  for (int64_t v = 0; v < shape.vectors; v += 2) corrected[static_cast<size_t>(1200 * shape.vectors + v)] = 1;
  const std::vector<int32_t> which = sample_vectors(shape, 1, row, corrected);
  EXPECT_NEAR(static_cast<double>(which.size()), 64.0 * 256, 0.02 * 64 * 256);  // 64 vectors for each entry
  int64_t last = 0;
  for (const int32_t v : which) {
    const int64_t r = v / shape.vectors, place = v % shape.vectors;
    EXPECT_GE(r, shape.first_row(1));
    EXPECT_NE(r, 1100);
    EXPECT_FALSE(corrected[static_cast<size_t>(v)]);
    EXPECT_GE(place, last);
    last = place;
  }
  std::fill(row.begin(), row.end(), 0.0f);
  EXPECT_EQ(sample_vectors(shape, 0, row, corrected), std::vector<int32_t>{-1});
  EXPECT_THAT(vector_order(std::vector<float>{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 9}),
              testing::ElementsAre(1, 0, 2));
}

// A row of zeros stays one, a matrix of zeros is no special case, and a column that no token uses costs nothing.
TEST(Vectors, ZerosAndDeadColumns) {
  constexpr int64_t kOut = 20, kIn = 32;
  ThreadPool pool(1);
  std::vector<float> w = normal(kOut * kIn, 8);
  std::fill_n(w.begin() + 3 * kIn, kIn, 0.0f);
  const Hessian live = correlated(kIn, pool);
  std::vector<float> matrix(live.matrix().begin(), live.matrix().end());
  for (int64_t i = 0; i < kIn; ++i) matrix[5 * kIn + i] = matrix[i * kIn + 5] = 0;
  const Hessian h = Hessian::from_matrix(matrix, kIn, live.tokens());
  const FormatSpec spec = parse_format("vq8k16s8+r1.0");
  const GptqResult made = quantize_gptq(spec, w, kOut, kIn, h, {}, pool);
  const std::vector<float> q = decode(made.weight);
  for (int64_t i = 0; i < kIn; ++i) EXPECT_EQ(q[3 * kIn + i], 0.0f);
  EXPECT_EQ(made.report.dead_columns, 1);
  EXPECT_LT(made.report.relative_loss(), 0.5);
  const std::vector<float> nothing(kOut * kIn);
  EXPECT_EQ(decode(quantize_gptq(spec, nothing, kOut, kIn, h, {}, pool).weight), nothing);
}

}  // namespace
}  // namespace fidelio
