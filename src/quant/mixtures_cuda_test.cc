// These tests run whole mixture-of-experts models on a GPU. Without a GPU each test is skipped by name.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "core/thread_pool.h"
#include "io/checkpoint_write.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/test_device.h"
#include "quant/quantize.h"
#include "runtime/taps.h"

namespace fidelio {
namespace {

class CudaMixtures : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    checkpoint_ =
        std::make_unique<Checkpoint>(Checkpoint::open(std::string(FIDELIO_SOURCE_DIR) + "/tests/models/" + GetParam()));
    for (int32_t i = 0; i < 90; ++i) ids_.push_back((i * 37 + i * i * 11) % checkpoint_->config().v);
  }
  static RunnerOptions options(Activations mode, KvFormat kv) {
    RunnerOptions o;
    o.mode = mode;
    o.kv = kv;
    o.max_rows = 96, o.max_logit_rows = 96, o.cache_tokens = 96;
    return o;
  }
  // Returns the logits of the last row of each chunk, or of all rows.
  std::vector<float> logits(Runner& runner, Reading reading, const std::vector<int>& chunks, RowKind kind) const {
    std::vector<float> all;
    std::vector<int32_t> pages = {2, 0, 1};
    int start = 0;
    for (const int n : chunks) {
      Batch batch;
      batch.append(std::span(ids_).subspan(static_cast<size_t>(start), static_cast<size_t>(n)), start, pages, n, kind);
      const auto part = runner.step(batch, reading);
      all.insert(all.end(), part.begin(), part.end());
      start += n;
    }
    return all;
  }
  // Rounds all layers to nearest in one format and writes the checkpoint.
  void quantise(const std::string& folder, const std::string& format) const {
    const FormatSpec spec = parse_format(format);
    std::map<LinearId, FormatSpec> formats;
    for (LinearId id : linears_of(checkpoint_->config()))
      if (id.layer >= 0) formats[id] = spec;
    std::filesystem::remove_all(folder);
    ThreadPool pool(2);
    write_checkpoint(folder, *checkpoint_, formats,
                     [&](LinearId id) {
                       const LinearWeight original = checkpoint_->linear(id);
                       LinearWeight made = quantize_rtn(spec, decode(original), original.out, original.in, {}, pool);
                       made.bias = original.bias;
                       return made;
                     },
                     {});
  }
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> ids_;
};
INSTANTIATE_TEST_SUITE_P(All, CudaMixtures,
                         testing::Values("mixtral", "olmoe", "qwen3_moe", "granitemoe", "qwen2_moe", "glm4_moe",
                                         "minimax_m2"),
                         [](const auto& info) { return std::string(info.param); });

// This is the test CudaRunnerTest.LogitsInF32EqualTheCpus for mixtures, with rows of either kind.
TEST_P(CudaMixtures, LogitsInF32EqualTheCpus) {
  const auto cpu = make_cpu_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  const auto gpu = make_cuda_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  const auto expected = logits(*cpu, Activations::f32, {90}, RowKind::output);
  float largest = 0;
  for (float v : expected) largest = std::max(largest, std::abs(v));
  for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
    const auto got = logits(*gpu, Activations::f32, {90}, kind);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5f * largest) << i;
  }
}

// Rows run by themselves (recorded as a graph from the second step on), a few together, and all at once (where the
// host groups them by expert). The weights are codes, the high bits of codes, and the source's own.
TEST_P(CudaMixtures, ARowHasTheSameBitsInEveryBatch) {
  const std::string folder = testing::TempDir() + "/mixture";
  quantise(folder, "int8g32");
  const Checkpoint coded = Checkpoint::open(folder);
  for (const Checkpoint* checkpoint : std::initializer_list<const Checkpoint*>{&coded, checkpoint_.get()})
    for (const int high_bits : {0, 4}) {
      const auto gpu = make_cuda_runner(*checkpoint, options(Activations::a16, KvFormat::f16));
      const Reading reading(Activations::a16, high_bits);
      const auto whole = logits(*gpu, reading, {90}, RowKind::output);
      std::vector<int> singly(90, 1);
      EXPECT_EQ(logits(*gpu, reading, singly, RowKind::output), whole);
      EXPECT_EQ(logits(*gpu, reading, {2, 3, 1, 5, 40, 1, 38}, RowKind::output), whole);
      const auto prompt = logits(*gpu, reading, {90}, RowKind::prompt);
      EXPECT_EQ(logits(*gpu, reading, {1, 33, 7, 49}, RowKind::prompt), prompt);
    }
  std::filesystem::remove_all(folder);
}

// Calibration, which walks through a layer in parts, computes what the layer computes.
TEST_P(CudaMixtures, CalibrationWalksTheModelThatRuns) {
  const ModelConfig& c = checkpoint_->config();
  if (c.shared_f > 0) GTEST_SKIP() << "tests/families_test.cc walks through shared experts";
  const auto whole = make_cuda_runner(*checkpoint_, options(Activations::f32, KvFormat::f32)),
             walked = make_cuda_runner(*checkpoint_, options(Activations::f32, KvFormat::f32));
  Batch batch;
  const std::vector<int32_t> pages = {0, 1, 2};
  batch.append(ids_, 0, pages, 1, RowKind::prompt);
  std::vector<float> heads(ids_.size() * static_cast<size_t>(c.h * c.e));
  std::vector<float> one(ids_.size() * static_cast<size_t>(c.d)), other(one), taken(3 * static_cast<size_t>(c.d));
  for (Runner* runner : {whole.get(), walked.get()}) {
    runner->begin(batch, Activations::f32);
    runner->embed();
  }
  for (int layer = 0; layer < c.L; ++layer) {
    whole->layers(layer, layer + 1);
    read_input(*walked, layer, "o", heads);
    walked->read_stream(other);
    add_output(*walked, layer, "o", heads, other);
    walked->read_stream(one);
    const Routes routes = choose_experts(*walked, layer);
    read_input(*walked, layer, "gate_up", other);
    const std::vector<int32_t> some = {5, 0, 88};
    take_rows(*walked, layer, other, some, taken);
    for (size_t i = 0; i < some.size(); ++i)
      EXPECT_TRUE(std::equal(taken.begin() + static_cast<std::ptrdiff_t>(i * static_cast<size_t>(c.d)),
                             taken.begin() + static_cast<std::ptrdiff_t>((i + 1) * static_cast<size_t>(c.d)),
                             other.begin() + some[i] * c.d));
    std::vector<float> inputs(static_cast<size_t>(routes.count() * c.f));
    read_expert_input(*walked, layer, routes, inputs);
    add_experts(*walked, layer, routes, inputs, one);
    whole->read_stream(one);
    walked->read_stream(other);
    EXPECT_EQ(one, other) << "layer " << layer;
  }
}

}  // namespace
}  // namespace fidelio
