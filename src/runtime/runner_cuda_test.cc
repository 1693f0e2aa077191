// These tests compare the bundled models on a GPU with the CPU. Without a GPU they are skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/test_device.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"

namespace fidelio {
namespace {

class CudaRunnerTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    checkpoint_ =
        std::make_unique<Checkpoint>(Checkpoint::open(std::string(FIDELIO_SOURCE_DIR) + "/models/" + GetParam()));
  }
  RunnerOptions options(Activations mode, KvFormat kv) const {
    RunnerOptions o;
    o.mode = mode;
    o.kv = kv;
    o.max_rows = 160;
    o.max_logit_rows = 160;
    o.cache_tokens = 192;
    return o;
  }
  int32_t token(int32_t i) const { return token(i, checkpoint_->config().v); }
  static int32_t token(int64_t i, int64_t v) { return static_cast<int32_t>((i * 37 + i * i * 11) % v); }
  // Returns the logits of all rows of 150 ids, run in chunks of `chunk`.
  static std::vector<float> logits(Runner& runner, Activations mode, int chunk) {
    std::vector<int32_t> ids(150), pages(6);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = token(static_cast<int64_t>(i), runner.config().v);
    std::iota(pages.rbegin(), pages.rend(), 0);
    std::vector<float> all;
    for (int start = 0; start < 150; start += chunk) {
      Batch batch;
      const int n = std::min(chunk, 150 - start);
      batch.append(std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(n)), start, pages, n,
                   RowKind::output);
      const auto part = runner.step(batch, mode);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::unique_ptr<Checkpoint> checkpoint_;
};

// Returns the expected acceptance rate (EAR) of two rows of logits.
double acceptance(std::span<const float> a, std::span<const float> b) {
  const auto softmax = [](std::span<const float> x) {
    std::vector<double> p(x.begin(), x.end());
    const double most = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - most);
    for (double& v : p) v /= sum;
    return p;
  };
  const auto p = softmax(a), q = softmax(b);
  double ear = 0;
  for (size_t i = 0; i < p.size(); ++i) ear += std::min(p[i], q[i]);
  return ear;
}

TEST_P(CudaRunnerTest, LogitsInF32EqualTheCpus) {
  const auto cpu = make_cpu_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  const auto gpu = make_cuda_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  const auto expected = logits(*cpu, Activations::f32, 150), got = logits(*gpu, Activations::f32, 150);
  // Both backends sum the same FP32 products in different orders, layer after layer. Each may be off by 1e-5 of the
  // largest logit, so the two may differ by twice that.
  float largest = 0;
  for (float v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5f * largest) << i;
}

TEST_P(CudaRunnerTest, ServedLogitsAcceptNearlyAlways) {
  const auto cpu = make_cpu_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  const auto gpu = make_cuda_runner(*checkpoint_, options(Activations::a16, KvFormat::f16));
  const auto expected = logits(*cpu, Activations::f32, 150), got = logits(*gpu, Activations::a16, 150);
  const auto v = static_cast<size_t>(gpu->config().v);
  double ear = 0;
  for (size_t row = 0; row < 150; ++row)
    ear += acceptance(std::span(expected).subspan(row * v, v), std::span(got).subspan(row * v, v)) / 150;
  EXPECT_GT(ear, 0.999);  // measured with torch: .9998 with FP16 inputs, .9999 with an FP16 cache
}

TEST_P(CudaRunnerTest, OneByOneEqualsTogetherBitForBit) {
  const auto gpu = make_cuda_runner(*checkpoint_, options(Activations::a16, KvFormat::f16));
  EXPECT_EQ(logits(*gpu, Activations::a16, 30), logits(*gpu, Activations::a16, 1));
}

// Decoding steps of one shape are recorded the second time and replayed from then on, with other shapes in between.
// Every step's logits must be those of the prefix run in long chunks.
TEST_P(CudaRunnerTest, ReplayedStepsEqualTheWholePrefix) {
  const auto gpu = make_cuda_runner(*checkpoint_, options(Activations::a16, KvFormat::f16));
  const auto v = static_cast<size_t>(gpu->config().v);
  const std::vector<float> whole = logits(*gpu, Activations::a16, 30);
  std::vector<int32_t> pages[2] = {{0, 1}, {2, 3}};
  for (int32_t position = 0; position < 40; ++position) {
    Batch batch;
    const int sequences = position % 5 == 4 ? 1 : 2;  // the second sequence falls behind, so positions differ too
    for (int s = 0; s < sequences; ++s) {
      const int32_t at = s == 0 ? position : position - position / 5, id = token(at);
      batch.append({&id, 1}, at, pages[s], 1, RowKind::output);
    }
    const auto got = gpu->step(batch, Activations::a16);
    for (size_t s = 0; s < static_cast<size_t>(sequences); ++s) {
      const auto at = static_cast<size_t>(batch.segments[s].position);
      ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(s * v),
                             got.begin() + static_cast<std::ptrdiff_t>((s + 1) * v),
                             whole.begin() + static_cast<std::ptrdiff_t>(at * v)))
          << "sequence " << s << " position " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BundledModels, CudaRunnerTest, ::testing::Values("quill-1m", "quill-26m"));

}  // namespace
}  // namespace fidelio
