// Vector codes on a GPU against their decoded weights. Without a GPU each test is skipped by name.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"

namespace fidelio {
namespace {

const AttentionShape kShape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

// Random codes, codebooks, scales and corrections, with a bias.
LinearWeight random_vectors(const char* format, int64_t out, int64_t in) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  const VectorShape& s = m.shape;
  Rng rng(11);
  const auto scale = [&] { return to_f16(static_cast<float>(0.01 + 0.02 * rng.uniform())); };
  const auto byte = [&] { return static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128); };
  for (int8_t& b : m.codebook.as<int8_t>()) b = byte();
  for (f16& x : m.row_scale.as<f16>()) x = scale();
  for (f16& x : m.column_scale.as<f16>()) x = scale();
  for (int64_t r = 0; r < out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v)
      set_vector(m, r, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(s.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << s.signs))});
  for (int64_t i = 0; i < s.sparse; ++i) {
    ++m.sparse_count.as<uint16_t>()[static_cast<size_t>(i % out)];
    m.sparse_scale.as<f16>()[static_cast<size_t>(i)] = scale();
    for (size_t j = 0; j < 8; ++j) m.sparse_value.as<int8_t>()[static_cast<size_t>(i) * 8 + j] = byte();
  }
  size_t at = 0;
  for (int64_t r = 0; r < out && s.sparse > 0; ++r)
    for (int i = 0; i < m.sparse_count.as<uint16_t>()[static_cast<size_t>(r)]; ++i)
      m.sparse_index.as<uint16_t>()[at++] = static_cast<uint16_t>(2 * i + 1);
  w.bias = OwnedTensor::allocate(DType::f32, {out});
  for (float& v : w.bias.as<float>()) v = static_cast<float>(rng.normal());
  check_codes(w);
  return w;
}

class VectorsCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      backend_ = std::make_unique<Cuda>(Cuda::Options{});
    } catch (const Error& e) {
      GTEST_SKIP() << "no GPU: " << e.what();
    }
  }
  std::vector<float> product(const Cuda::Linear& w, std::span<const float> x, int64_t rows, RowKind kind,
                             Activations mode) {
    Cuda& b = *backend_;
    b.reserve(rows, w.in, 64);
    Batch batch;
    std::vector<int32_t> ids(static_cast<size_t>(rows)), pages(static_cast<size_t>(rows / kPageTokens + 1));
    std::iota(pages.begin(), pages.end(), 0);
    batch.append(ids, 0, pages, static_cast<int>(rows), kind);
    b.begin(batch, mode, kShape);
    Cuda::Matrix input = b.allocate(rows, w.in), output = b.allocate(rows, w.out);
    b.upload(x, input);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> one[] = {{&w, &output}};
    b.linear(b.input(input), one);
    std::vector<float> y(static_cast<size_t>(rows * w.out));
    b.download(output, 0, rows, y);
    return y;
  }
  std::unique_ptr<Cuda> backend_;
};

// A row's sum has, in a lane, 8 products for each of V / 32 vectors, then 5 additions of lanes; the inputs and the
// weight are rounded once each, row scale, corrections and bias three times more: so many roundings of 2^-24 of the
// magnitudes, where a correction that cancels its code counts as both. Prompt rows see weights and activations of FP16.
TEST_F(VectorsCuda, ProductsAgreeWithDecodedWeightsAndRowsDoNotDependOnTheBatch) {
  constexpr int64_t kRows = 9;
  for (const char* format : {"vq8k9s1", "vq8k12s1+r2.2", "vq8k12s4+r9.0", "vq8k16s4", "vq8k16s8", "vq8k20s8+r4.7"})
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{37, 72}, {300, 1000}, {16, 61}, {1040, 2048}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", format, out, in));
      const LinearWeight weight = random_vectors(format, out, in);
      const std::vector<float> decoded = decode(weight);
      const Cuda::Linear packed = backend_->pack(weight);
      Rng rng(3);
      std::vector<float> x(static_cast<size_t>(kRows * in));
      for (float& v : x) v = static_cast<float>(rng.normal());
      const double largest = 0.03 * (0.03 * 128 + 128);
      for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
        const std::vector<float> y = product(packed, x, kRows, kind, Activations::a16);
        const double eps = kind == RowKind::output ? static_cast<double>(in / 32 + 24) * 0x1p-24 : 3 * 0x1p-11;
        for (int64_t m = 0; m < kRows; ++m)
          for (int64_t o = 0; o < out; ++o) {
            double want = double{weight.bias.as<float>()[static_cast<size_t>(o)]}, magnitude = std::abs(want);
            for (int64_t k = 0; k < in; ++k) {
              const double at = double{x[static_cast<size_t>(m * in + k)]};
              const double term = at * double{decoded[static_cast<size_t>(o * in + k)]};
              want += term;
              magnitude += std::abs(term) + (weight.spec.sparse > 0 ? std::abs(at) * largest : 0);
            }
            ASSERT_NEAR(y[static_cast<size_t>(m * out + o)], want, eps * magnitude) << m << " " << o;
          }
        for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}}) {
          const std::vector<float> few =
              product(packed, std::span(x).first(static_cast<size_t>(rows * in)), rows, kind, Activations::a16);
          EXPECT_TRUE(std::equal(few.begin(), few.end(), y.begin())) << rows;
        }
      }
    }
}

// Two products and, where there is a correction, a sum: the values of decode_row(), bit for bit.
TEST_F(VectorsCuda, EmbeddingGivesTheDecodedRows) {
  for (const char* format : {"vq8k12s1+r2.2", "vq8k16s4", "vq8k16s8+r5.0"}) {
    const LinearWeight weight = random_vectors(format, 150, 200);
    const Cuda::Linear packed = backend_->pack(weight);
    Batch batch;
    const std::vector<int32_t> ids = {3, 0, 149, 77}, pages = {0};
    batch.append(ids, 0, pages, 4, RowKind::output);
    backend_->reserve(4, 200, 64);
    backend_->begin(batch, Activations::a16, kShape);
    Cuda::Matrix x = backend_->allocate(4, 200);
    backend_->embed(packed, x, 1);
    std::vector<float> got(800), row(200);
    backend_->download(x, 0, 4, got);
    for (size_t i = 0; i < ids.size(); ++i) {
      decode_row(weight, ids[i], row);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), got.begin() + static_cast<std::ptrdiff_t>(200 * i))) << format;
    }
  }
}

}  // namespace
}  // namespace fidelio
