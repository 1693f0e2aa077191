// These tests make and run models with kept columns on the GPU and compare them with the CPU. Without a GPU each test
// is skipped by name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/file.h"
#include "eval/studies/compare.h"
#include "io/checkpoint_write.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/test_device.h"
#include "quant/quantize_model.h"
#include "runtime/page_table.h"

namespace fidelio {
namespace {

const std::string kModels = std::string(FIDELIO_SOURCE_DIR) + "/models/";

RunnerOptions options_for(Activations mode) {
  RunnerOptions o;
  o.mode = mode;
  o.kv = mode == Activations::f32 ? KvFormat::f32 : KvFormat::f16;
  o.max_rows = 2048;
  o.cache_tokens = 4096;
  return o;
}

class CudaAtom : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    folder_ = std::filesystem::temp_directory_path() / ("fidelio-atom-" + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Quantises quill-1m to int4g32 with kept columns, on the GPU or on the CPU.
  Checkpoint make(bool gpu) {
    const Checkpoint source = Checkpoint::open(kModels + "quill-1m");
    const Tokenizer tokenizer = Tokenizer::load(source.texts());
    const Dataset data = read_dataset({kModels + "data/docs-calibration.txt"}, tokenizer, nullptr, {512, 16384});
    const auto make_runner = gpu ? make_cuda_runner : make_cpu_runner;
    const auto runner = make_runner(source, options_for(Activations::f32)),
               original = make_runner(source, options_for(Activations::f32));
    KeptColumns kept{32, {}};
    std::map<LinearId, FormatSpec> formats;
    for (LinearId id : linears_of(source.config()))
      if (id.layer >= 0) formats[id] = parse_format("int4g32");
    ModelQuantizer how;
    how.formats = one_format_each(formats);
    how.original = original.get();
    how.kept = &kept;
    std::map<LinearId, LinearWeight> weights;
    quantize_model_gptq(*runner, source, data, how, pool_,
                        [&](QuantizedLinear q) { weights[q.id] = std::move(q.weight); });
    const std::string path = (folder_ / (gpu ? "gpu" : "cpu")).string();
    write_checkpoint(
        path, source, formats, [&](LinearId id) { return weights.at(id); }, nlohmann::json::object(), {}, kept);
    return Checkpoint::open(path);
  }

  std::filesystem::path folder_;
  ThreadPool pool_{2};
};

// Each model is quantised on one device and run on both, with activations of 16 and of 4 bits. The intervals of the
// KL must meet, and the KL of one model on the GPU must lie within its interval on the CPU.
TEST_F(CudaAtom, ModelsAreEquallyGoodOnBoth) {
  const Checkpoint source = Checkpoint::open(kModels + "quill-1m");
  const EvalText held{"held out", "",
                      Tokenizer::load(source.texts()).encode(read_text_file(kModels + "data/docs-heldout.txt"), false)};
  const auto exact = make_cpu_runner(source, options_for(Activations::f32));
  std::map<Activations, std::vector<Estimate>> first;
  for (const bool made_on_gpu : {false, true}) {
    const Checkpoint model = make(made_on_gpu);
    for (const Activations mode : {Activations::a16, Activations::a4}) {
      SCOPED_TRACE(name_of(mode));
      std::vector<Estimate> kl;
      for (const bool gpu : {false, true}) {
        const auto served = (gpu ? make_cuda_runner : make_cpu_runner)(model, options_for(mode));
        kl.push_back(compare_models(*exact, *served, {&held, 1},
                                    {.windows = {.context = 512, .windows = 10},
                                     .reference_mode = Activations::f32,
                                     .candidate_mode = mode,
                                     .top_k = 10,
                                     .bootstrap = {}},
                                    pool_)
                         .kl());
      }
      std::printf("quill-1m int4g32 with 32 columns kept, made on the %s, %s: KL %.6f on the CPU, %.6f on the GPU\n",
                  made_on_gpu ? "GPU" : "CPU", std::string(name_of(mode)).c_str(), kl[0].value, kl[1].value);
      EXPECT_GT(kl[1].value, kl[0].ci95.low);
      EXPECT_LT(kl[1].value, kl[0].ci95.high);
      if (!made_on_gpu) {
        first[mode] = kl;
        continue;
      }
      EXPECT_GT(kl[0].ci95.high, first[mode][0].ci95.low);
      EXPECT_LT(kl[0].ci95.low, first[mode][0].ci95.high);
    }
  }
}

// This also holds where steps are recorded and replayed as CUDA graphs.
TEST_F(CudaAtom, RowsDoNotDependOnTheBatch) {
  const Checkpoint model = make(false);
  for (const Activations mode : {Activations::a16, Activations::a4}) {
    const auto runner = make_cuda_runner(model, options_for(mode));
    const auto logits = [&](int chunk) {
      std::vector<int32_t> ids(120), pages(static_cast<size_t>(PageTable::pages_for(120)));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 37 + i * i * 11) % 2048);
      std::iota(pages.rbegin(), pages.rend(), 0);
      std::vector<float> all;
      for (int start = 0; start < 120; start += chunk) {
        Batch batch;
        batch.append(std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(chunk)), start, pages,
                     chunk, RowKind::output);
        const auto part = runner->step(batch, mode);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    };
    const std::vector<float> together = logits(30);
    EXPECT_EQ(logits(1), together) << name_of(mode);
    EXPECT_EQ(logits(4), together) << name_of(mode);
  }
}

}  // namespace
}  // namespace fidelio
