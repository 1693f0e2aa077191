// This test shares a tuning between two GPUs, one for each rank. With fewer GPUs it is skipped by name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "io/checkpoint.h"
#include "quant/quantize.h"
#include "ranks/thread_ranks_fixture.h"
#include "train/cuda/gpu.h"
#include "train/tune/tuner.h"

namespace fidelio::train {
namespace {

bool has_gpu(int gpu) {
  try {
    const Gpu one(gpu);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TuneData random_windows(int32_t vocabulary) {
  TuneData data;
  Rng rng(8);
  for (int i = 0; i < 20; ++i) {
    std::vector<int32_t> window(static_cast<size_t>(16 + rng.below(17)));
    for (int32_t& id : window) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary)));
    (i % 5 == 4 ? data.held : data.windows).push_back(std::move(window));
  }
  return data;
}

void expect_same(const TuneResult& one, const TuneResult& other, const char* who) {
  for (const auto& [id, weight] : one.weights.linears) {
    const auto a = stored_tensors(weight), b = stored_tensors(other.weights.linears.at(id));
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(std::memcmp(a[i].tensor.data, b[i].tensor.data, static_cast<size_t>(a[i].tensor.bytes())), 0)
          << who << ": " << to_string(id) << a[i].suffix;
  }
  for (const auto& [name, tensor] : one.weights.tensors) {
    const Tensor& a = tensor.view;
    EXPECT_EQ(std::memcmp(a.data, other.weights.tensors.at(name).view.data, static_cast<size_t>(a.bytes())), 0) << name;
  }
  ASSERT_EQ(one.report.evaluations.size(), other.report.evaluations.size());
  for (size_t i = 0; i < one.report.evaluations.size(); ++i)
    EXPECT_EQ(one.report.evaluations[i].kl, other.report.evaluations[i].kl) << who;
  EXPECT_EQ(one.report.layer_after, other.report.layer_after) << who;
}

// Both stages run for two families, in integers with zero points and in a grid. Every tensor and every measurement
// must be the same, bit for bit, on both ranks.
TEST(TuneCuda, TwoGpusGiveTheBytesOfOne) {
  if (!has_gpu(1)) GTEST_SKIP() << "SKIPPED: no GPU 1 beside GPU 0: that two give the bytes of one is NOT tested";
  ThreadPool pool(4);
  for (const auto& [name, format] : {std::pair{"llama2", "int3g16zs8"}, {"qwen3", "lut2g16"}}) {
    const Checkpoint source = Checkpoint::open(std::string(FIDELIO_SOURCE_DIR "/tests/models/") + name);
    char folder[] = "/tmp/fidelio-ranks-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    const std::string quantised = std::string(folder) + "/model";
    std::map<LinearId, FormatSpec> formats;
    for (LinearId id : linears_of(source.config())) formats[id] = parse_format(format);
    write_checkpoint(
        quantised, source, formats,
        [&](LinearId id) {
          const LinearWeight w = source.linear(id);
          return quantize_rtn(formats.at(id), decode(w), w.out, w.in, {}, pool);
        },
        nlohmann::json::object());
    const Checkpoint model = Checkpoint::open(quantised);
    const TuneData data = random_windows(source.config().v);
    TuneOptions options;
    options.rates[static_cast<size_t>(Share::codes)] = 0.06;  // codes change within these few steps
    options.layer_steps = 3, options.steps = 4, options.evaluate_every = 2, options.windows = 7, options.rows = 64;
    const TuneResult alone = tune_on_gpu(model, source, data, options, 0, {});
    EXPECT_LT(alone.report.kl_after, alone.report.kl_before);
    EXPECT_GT(alone.report.moved, 0);
    std::vector<TuneResult> both(2);
    ThreadRanks(2).run([&](const Ranks& ranks) {
      both[static_cast<size_t>(ranks.rank())] = tune_on_gpu(model, source, data, options, ranks.rank(), {}, ranks);
    });
    expect_same(alone, both[0], "rank 0"), expect_same(alone, both[1], "rank 1");
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace fidelio::train
