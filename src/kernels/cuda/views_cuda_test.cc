// These tests check readings of high bits on a GPU: integers of 5 to 8 bits read as their four high ones, from the
// packed bytes of the whole weight. Without a GPU they are skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

const AttentionShape kShape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

LinearWeight random_weight(const char* format, int64_t out, int64_t in, Rng& rng) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::u8)
      for (uint8_t& v : t.tensor.as<uint8_t>()) v = static_cast<uint8_t>(rng.below(256));
    if (t.tensor.dtype == DType::i8)
      for (int8_t& v : t.tensor.as<int8_t>()) v = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.005 + 0.01 * rng.uniform()));
    if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>()) v = static_cast<float>(0.001 + 0.002 * rng.uniform());
  }
  w.bias = OwnedTensor::allocate(DType::f32, {out});
  for (float& v : w.bias.as<float>()) v = static_cast<float>(rng.normal());
  return w;
}

class CudaViews : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
  }
  void begin(int64_t n, Reading reading, RowKind kind) {
    Batch batch;
    const std::vector<int32_t> ids(static_cast<size_t>(n)), pages = {0, 1, 2, 3, 4};
    batch.append(ids, 0, pages, n, kind);
    backend_->begin(batch, reading, kShape);
  }
  // Returns the product of the first n rows of x with w.
  std::vector<float> product(const Cuda::Linear& w, const std::vector<float>& x, int64_t n, Reading reading,
                             RowKind kind) {
    begin(n, reading, kind);
    Cuda::Matrix input = backend_->allocate(n, w.in), y = backend_->allocate(n, w.out);
    backend_->upload({x.data(), static_cast<size_t>(n * w.in)}, input);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&w, &y}};
    backend_->linear(backend_->input(input), outputs);
    std::vector<float> got(static_cast<size_t>(n * w.out));
    backend_->download(y, 0, n, got);
    return got;
  }
  std::unique_ptr<Cuda> backend_;
};

// The inputs are numbers that 16-bit integers hold exactly under a scale for each block, so what remains is the error
// of FP32 sums. Fewer than 48 additions stand between a product and its output (kernels_cuda_test.cc counts them).
// Each is wrong by at most 2^-23 of the magnitudes added so far, which are at most sum |s| (q + z) |x| <= 2 sum
// |w|max |x|. Prompt rows are multiplied by weights rounded to FP16 once.
TEST_P(CudaViews, AgreeWithHighPlanesAndRowsDoNotDependOnTheBatch) {
  Rng rng(1);
  const int64_t in = 1000, out = 300, rows = 70;
  backend_->reserve(rows, in, 128);
  std::vector<float> x(static_cast<size_t>(rows * in));
  for (int64_t i = 0; i < rows * in; ++i)
    x[static_cast<size_t>(i)] =
        std::ldexp(static_cast<float>(static_cast<int>(rng.below(2001)) - 1000), static_cast<int>(i / in % 21) - 14);
  const LinearWeight weight = random_weight(GetParam(), out, in, rng);
  const std::vector<float> decoded = decode(high_planes(weight, 4));
  const auto bias = weight.bias.as<float>();
  const std::vector<double> expected =
      ref::linear(std::vector<double>(x.begin(), x.end()), std::vector<double>(decoded.begin(), decoded.end()),
                  std::vector<double>(bias.begin(), bias.end()), rows, in, out);
  std::vector<double> magnitude(static_cast<size_t>(rows * out));
  for (int64_t o = 0; o < out; ++o) {
    double largest = 0;
    for (int64_t k = 0; k < in; ++k)
      largest = std::max(largest, std::abs(double{decoded[static_cast<size_t>(o * in + k)]}));
    for (int64_t m = 0; m < rows; ++m) {
      double inputs = 0;
      for (int64_t k = 0; k < in; ++k) inputs += std::abs(double{x[static_cast<size_t>(m * in + k)]});
      magnitude[static_cast<size_t>(m * out + o)] = std::abs(double{bias[static_cast<size_t>(o)]}) + largest * inputs;
    }
  }
  const Cuda::Linear packed = backend_->pack(weight);
  for (const auto& [kind, mode] : {std::pair{RowKind::output, Activations::a16},
                                   {RowKind::prompt, Activations::a16},
                                   {RowKind::output, Activations::f32}}) {
    const double tolerance = 2 * 48 * 0x1p-23 + (kind == RowKind::prompt && mode == Activations::a16 ? 0x1p-12 : 0);
    std::vector<float> all;
    for (int64_t n : {rows, int64_t{64}, int64_t{33}, int64_t{32}, int64_t{17}, int64_t{16}, int64_t{9}, int64_t{8},
                      int64_t{5}, int64_t{4}, int64_t{2}, int64_t{1}}) {
      SCOPED_TRACE(std::to_string(n) + " rows, " + std::string(name_of(mode)));
      const std::vector<float> got = product(packed, x, n, {mode, 4}, kind);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance * magnitude[i]) << i;
      if (all.empty()) all = got;
      ASSERT_EQ(0, std::memcmp(got.data(), all.data(), got.size() * sizeof(float)));
    }
  }
}

// There are kernels, or cuts of one, for few and for many outputs and for every number of rows. All must give a row
// the same bits.
TEST_P(CudaViews, RowsDoNotDependOnTheBatchWhateverTheWidth) {
  Rng rng(2);
  const int64_t in = 2200, rows = 40;
  backend_->reserve(rows, in, 128);
  std::vector<float> x(static_cast<size_t>(rows * in));
  for (float& v : x) v = static_cast<float>(rng.normal());
  for (int64_t out : {int64_t{1500}, int64_t{5000}, int64_t{18000}}) {
    const Cuda::Linear packed = backend_->pack(random_weight(GetParam(), out, in, rng));
    const std::vector<float> all = product(packed, x, rows, {Activations::a16, 4}, RowKind::output);
    for (int64_t n : {1, 3, 4, 7, 8, 12, 16, 31, 32}) {
      const std::vector<float> got = product(packed, x, n, {Activations::a16, 4}, RowKind::output);
      ASSERT_EQ(0, std::memcmp(got.data(), all.data(), got.size() * sizeof(float))) << out << " outputs, " << n;
    }
  }
}

// A reading asks for at most so many bits. Three and five bits mean the one cut there is, at four; as many as the
// codes have mean no cut. A weight read as its four high bits reads the bytes of a weight of 4 bits.
TEST_P(CudaViews, WhatIsReadIsWhatWasAskedFor) {
  Rng rng(3);
  const int64_t in = 520, out = 140;
  backend_->reserve(2, in, 128);
  std::vector<float> x(static_cast<size_t>(2 * in));
  for (float& v : x) v = static_cast<float>(rng.normal());
  const FormatSpec spec = parse_format(GetParam());
  const Cuda::Linear packed = backend_->pack(random_weight(GetParam(), out, in, rng));
  const auto at = [&](int high_bits) { return product(packed, x, 2, {Activations::a16, high_bits}, RowKind::output); };
  const std::vector<float> view = at(4), whole = at(0);
  EXPECT_NE(view, whole);
  EXPECT_EQ(at(3), view);
  EXPECT_EQ(at(spec.bits), whole);
  EXPECT_EQ(at(5), spec.bits > 5 ? view : whole);
  FormatSpec narrow = spec;
  narrow.bits = 4;
  const Cuda::Linear four = backend_->pack(random_weight(to_string(narrow).c_str(), out, in, rng));
  EXPECT_EQ(backend_->bytes_read(packed, {Activations::a16, 4}), four.bytes());
  EXPECT_EQ(backend_->bytes_read(packed, {}), packed.bytes());
  EXPECT_EQ(backend_->bytes_read(four, {Activations::a16, 3}), four.bytes());

  Cuda::Matrix stream = backend_->allocate(2, in), weight = backend_->allocate(1, in), y = backend_->allocate(2, out);
  backend_->upload(x, stream);
  backend_->upload(std::vector<float>(static_cast<size_t>(in), 1.0f), weight);
  const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&packed, &y}};
  std::vector<float> head[2];  // the head is read whole, whatever is asked for
  for (int high_bits : {4, 0}) {
    begin(2, {Activations::a16, high_bits}, RowKind::output);
    backend_->linear(backend_->norm_logit_rows(stream, weight, 1e-5f, 0, 2), outputs);
    std::vector<float>& got = head[high_bits == 0];
    got.resize(static_cast<size_t>(2 * out));
    backend_->download(y, 0, 2, got);
  }
  EXPECT_EQ(head[0], head[1]);
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaViews,
                         ::testing::Values("int5g32z", "int5g64zs8", "int6g128z", "int6g64zs8", "int7g64z",
                                           "int7g32zs8", "int7g128", "int8g64zs8", "int8g128z", "int8g128", "int8cz",
                                           "int8g32z"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fidelio
