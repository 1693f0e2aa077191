// These tests compare vector codes made by the GPU with the host's. Without a GPU each test is skipped by name.
#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "kernels/cuda/test_device.h"
#include "quant/device/vectors_cuda.h"
#include "quant/device/workbench.h"
#include "quant/device/workbench_test_inputs.h"

namespace fidelio {
namespace {

class CudaVectorCodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
  }
  ThreadPool pool_{4};
};

// Benches are a host and a device workbench with the same inputs and weight.
struct Benches {
  std::unique_ptr<Workbench> host, device;
  Hessian hessian;
  std::vector<float> w;
  LinearWeight original;

  Benches(std::vector<float> weights, const std::vector<float>& x, int64_t out, int64_t in, ThreadPool& pool)
      : host(make_host_workbench(pool)),
        device(make_cuda_workbench(0, pool)),
        hessian(in),
        w(std::move(weights)),
        original(dense(w, out, in)) {
    hessian.add(x, pool);
    for (Workbench* bench : {host.get(), device.get()}) {
      bench->begin(in);
      bench->add(x);
      bench->factorize(0.01, true);
      bench->load(original);
    }
  }
  double loss(const GptqResult& made) const {
    return proxy_loss(w, decode(made.weight), original.out, original.in, hessian);
  }
};

int64_t different_codes(const LinearWeight& a, const LinearWeight& b) {
  const auto &x = std::get<SignedVectors>(a.main), &y = std::get<SignedVectors>(b.main);
  int64_t different = 0;
  for (int64_t r = 0; r < x.shape.out; ++r)
    for (int64_t v = 0; v < x.shape.vectors; ++v) different += !(get_vector(x, r, v) == get_vector(y, r, v));
  return different;
}

// Both use the same vectors, metrics and random numbers. The distances by which seeds are drawn are double on both,
// and an assignment differs only where the FP32 scores of two centroids are within their rounding. A twentieth of the
// entries may differ.
TEST_F(CudaVectorCodes, KMeansIsTheHosts) {
  const int64_t out = 96, in = 320;
  const std::vector<float> w = weights(out * in, 1);
  const cuda::Stream stream = cuda::make_stream();
  {
    const cuda::DeviceBuffer values(w.size() * 4);
    cuda::to_device(stream, values.data(), w.data(), values.size());
    cuda::SecondOrder order(stream), ordered(stream);
    order.begin(in);
    order.add(activations(in, 2));
    std::vector<int32_t> columns;
    for (int32_t c = 0; c < in; ++c) columns.push_back(c);
    ordered.take(order, columns);
    ordered.factorize(0.01, false);
    for (const char* text : {"vq8k9s1", "vq8k12s4", "vq8k16s8"}) {
      SCOPED_TRACE(text);
      const VectorShape shape = vector_shape(parse_format(text), out, in);
      cuda::Vectors device(stream);
      device.begin(shape, ordered, columns, values.as<float>());
      const std::vector<float> row = device.normalise(), metrics = device.metrics();
      const std::vector<uint8_t> corrected(static_cast<size_t>(out * shape.vectors));
      const std::vector<int32_t> which = sample_vectors(shape, 0, row, corrected);
      VectorSamples samples;
      samples.x = device.values_of(which);
      samples.metrics = metrics;
      for (const int32_t v : which) {
        samples.weight.push_back(row[v / shape.vectors] * row[v / shape.vectors]);
        samples.place.push_back(static_cast<int32_t>(v % shape.vectors));
      }
      float scale = 1;
      const VectorBook host = fit_vector_book(samples, shape.entries, shape.signs, pool_, &scale);
      device.fit_books({which});
      const std::vector<float> book = device.collect().book;
      int64_t different = 0;
      for (size_t i = 0; i < book.size(); ++i)
        different += std::fabs(book[i] - host.at(static_cast<int64_t>(i) / 8, static_cast<int64_t>(i) % 8)) > 1;
      EXPECT_LE(different, static_cast<int64_t>(book.size()) / 20);
      RecordProperty(std::string(text), std::to_string(different));
    }
  }
  cuda::destroy_stream(stream);
}

// Both are given the same codebook. Codes with feedback then differ where FP32 sums of 300 products decide between
// centroids that are equally near, and from there to the end of their row; a quarter of them may. Descent also rounds
// column scales to FP16, which are found from sums in another order.
TEST_F(CudaVectorCodes, CodesAgreeUpToTies) {
  const int64_t out = 150, in = 304;
  const Benches benches(weights(out * in, 3), activations(in, 4), out, in, pool_);
  for (const char* text : {"vq8k12s1m", "vq8k16s4m", "vq8k16s8m", "vq8k16s8m+r2.0"})
    for (int passes : {0, 4}) {
      SCOPED_TRACE(std::string(text) + " " + std::to_string(passes));
      const FormatSpec spec = parse_format(text);
      Rng rng(5);
      OwnedTensor codebook = OwnedTensor::allocate(DType::i8, {int64_t{1} << (spec.bits - spec.signs), kVectorDim});
      for (int8_t& v : codebook.as<int8_t>()) v = static_cast<int8_t>(std::clamp(30 * rng.normal(), -127.0, 127.0));
      const SharedCodebooks codebooks = {{shared_name(spec), codebook}};
      GptqOptions options;
      options.descent_passes = passes;
      options.codebooks = &codebooks;
      const GptqResult expected = benches.host->quantize(spec, options), got = benches.device->quantize(spec, options);
      check_codes(got.weight);
      const int64_t different = different_codes(expected.weight, got.weight);
      EXPECT_LE(different, out * (in / 8) / 4);
      EXPECT_NEAR(benches.loss(got), benches.loss(expected), 0.02 * benches.loss(expected));
      RecordProperty(std::string(text) + "_" + std::to_string(passes), std::to_string(different));
    }
}

// If each result makes its own codebooks, the two diverge from the first tie in k-means on. They must be equally
// good, and what is reported must be the loss of what is stored. Rows and columns are no multiples of anything.
TEST_F(CudaVectorCodes, MatricesAreAsGood) {
  const std::pair<int64_t, int64_t> sizes[] = {{40, 64}, {3, 61}, {150, 300}, {1600, 1024}};
  for (const auto& [out, in] : sizes) {
    const Benches benches(weights(out * in, 6), activations(in, 7), out, in, pool_);
    for (const char* text : {"vq8k9s1", "vq8k12s4+r3.0", "vq8k16s8+r0.5"}) {
      SCOPED_TRACE(std::string(text) + " " + std::to_string(out) + " x " + std::to_string(in));
      const FormatSpec spec = parse_format(text);
      const GptqResult expected = benches.host->quantize(spec, {}), got = benches.device->quantize(spec, {});
      check_codes(got.weight);
      const double loss = benches.loss(got);
      EXPECT_NEAR(loss, benches.loss(expected), 0.04 * benches.loss(expected) + 5e-4 * expected.report.energy);
      // The bound is for FP32 products with H; quant/vectors/vectors_test.cc derives it.
      EXPECT_NEAR(got.report.loss, loss, static_cast<double>(2 * in * in) * 0x1p-24 * expected.report.energy);
      EXPECT_LE(got.report.loss, got.report.loss_gptq);
      EXPECT_NEAR(got.report.energy, expected.report.energy, 1e-5 * expected.report.energy);
      // The result is the same in every run.
      EXPECT_EQ(decode(benches.device->quantize(spec, {}).weight), decode(got.weight));
    }
  }
}

TEST_F(CudaVectorCodes, ZerosAndDeadColumns) {
  const int64_t out = 40, in = 96;
  std::vector<float> x = activations(in, 8), w = weights(out * in, 9);
  for (int64_t t = 0; t < kTokens; ++t) x[static_cast<size_t>(t * in + 5)] = 0;
  std::fill_n(w.begin() + 3 * in, in, 0.0f);
  const Benches benches(w, x, out, in, pool_);
  const FormatSpec spec = parse_format("vq8k16s8+r1.0");
  const GptqResult made = benches.device->quantize(spec, {});
  const std::vector<float> q = decode(made.weight);
  for (int64_t i = 0; i < in; ++i) EXPECT_EQ(q[static_cast<size_t>(3 * in + i)], 0.0f);
  EXPECT_EQ(made.report.dead_columns, 1);
  EXPECT_LT(made.report.relative_loss(), 0.5);
  const std::vector<float> nothing(w.size());
  const Benches empty(nothing, x, out, in, pool_);
  EXPECT_EQ(decode(empty.device->quantize(spec, {}).weight), nothing);
}

}  // namespace
}  // namespace fidelio
