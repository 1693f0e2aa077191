// These tests are about rotation (quant/rotation.h): the same function with other weights, on models of every kind that
// can be rotated.
#include "quant/rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/thread_pool.h"
#include "models.h"
#include "quant/quantize.h"
#include "train/block.h"

namespace fidelio {
namespace {

using Ids = std::vector<int32_t>;

constexpr uint64_t kSeed = 3;

struct RotatedModels : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, RotatedModels, testing::ValuesIn(kTinyModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Families, RotatedModels,
                         testing::Values("smollm3", "smollm3_window", "ministral", "ministral3", "mistral_small",
                                         "phi3", "phi4", "granite", "granite_bias"),
                         [](const auto& i) { return i.param; });

// Each side is within 1e-5 of the exact result, norm-wise (golden_test.cc has the bound and its reasons: FP32 roundings
// of sums in some order). Rotation rounds every weight once more, and two inputs a layer, by errors of the size of the
// linears' own roundings.
TEST_P(RotatedModels, HaveTheOriginalsLogits) {
  const Ids ids = golden_json(GetParam())["ids"];
  const Checkpoint original = Checkpoint::open(tiny_model(GetParam())),
                   rotated = Checkpoint::open(open_rotated(tiny_model(GetParam()), kSeed));
  EXPECT_TRUE(rotated.config().rotated);
  RunnerOptions options = exact_options();
  options.context = 2 * static_cast<int64_t>(ids.size());
  const auto want = run_whole(*make_cpu_runner(original, options), ids, Activations::f32),
             got = run_whole(*make_cpu_runner(rotated, options), ids, Activations::f32);
  const auto v = static_cast<size_t>(original.config().v);
  for (size_t row = 0; row < ids.size(); ++row)
    ASSERT_LT(relative_distance(std::span(got).subspan(row * v, v), std::span(want).subspan(row * v, v)), 2e-5)
        << "row " << row;
}

TEST(Rotation, OtherSignsAreOtherWeightsOfTheSameFunction) {
  const LinearId gate{0, Role::gate};
  const auto values = [&](uint64_t seed) {
    return decode(Checkpoint::open(open_rotated(tiny_model("qwen3"), seed)).linear(gate));
  };
  EXPECT_EQ(values(1), values(1));
  EXPECT_GT(relative_distance(values(1), values(2)), 0.5);  // They are orthogonal to each other, or nearly.
}

// Rows of a quantised, rotated model are the same in any batch, and its 4-bit activations are transformed first.
TEST(Rotation, RowsDoNotDependOnTheBatch) {
  for (const std::string name : {"qwen2", "yarn", "smollm3_window"}) {
    const Checkpoint rotated = Checkpoint::open(open_rotated(tiny_model(name), kSeed));
    const Ids ids = golden_json(name)["ids"];
    const auto n = static_cast<int64_t>(ids.size());
    ThreadPool pool(1);
    for (const std::string& isa : isa_names()) {
      std::vector<float> whole;
      for (const int threads : {1, 3}) {
        const auto runner = make_cpu_runner(rotated, {.threads = threads, .isa = isa, .cache_tokens = 8 * kPageTokens});
        for (LinearId id : linears_of(rotated.config())) {
          LinearWeight weight = rotated.linear(id);
          OwnedTensor bias = weight.bias;
          weight = quantize_rtn(parse_format("int4g32"), decode(weight), weight.out, weight.in, {}, pool);
          weight.bias = bias;
          runner->set_linear(id, runner->pack(weight));
        }
        for (const Activations mode : {Activations::a16, Activations::a4}) {
          SCOPED_TRACE(fmt::format("{} {} {} threads {}", name, isa, threads, name_of(mode)));
          const std::vector<float> together = run_whole(*runner, ids, mode);
          const std::vector<int64_t> steps(ids.size(), 1), ragged = {1, 7, 2, n - 10};
          EXPECT_EQ(run_chunks(*runner, ids, steps, first_pages(n), mode), together);
          EXPECT_EQ(run_chunks(*runner, ids, ragged, first_pages(n), mode), together);
          if (mode == Activations::a4) continue;
          if (threads == 1) whole = together;
          EXPECT_EQ(together, whole);
        }
      }
    }
  }
}

TEST(Rotation, ACheckpointHoldsTheTurnedWeightsAndSaysSo) {
  const TestFolder folder;
  const std::string made = folder / "made", dense = folder / "dense";
  for (const std::string& command :
       {"fidelio quantize keys5 --format int4g32 --method rtn --embedding int8g32 --rotate --seed 3 -o " + made,
        "fidelio quantize keys5 --format f32 --method rtn --embedding f32 --rotate --seed 3 -o " + dense}) {
    const CommandResult result = run_command(source_path("tests/models"), command);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const Checkpoint written = Checkpoint::open(made), whole = Checkpoint::open(dense),
                   rotated = Checkpoint::open(open_rotated(tiny_model("keys5"), kSeed));
  EXPECT_TRUE(written.config().rotated && whole.config().rotated);
  EXPECT_FALSE(written.config().tie_embeddings);
  ThreadPool pool(1);
  for (LinearId id : linears_of(rotated.config())) {
    const LinearWeight weight = rotated.linear(id);
    EXPECT_EQ(decode(whole.linear(id)), decode(weight)) << to_string(id);
    const bool outer = id.role == Role::embedding || id.role == Role::head;
    const LinearWeight q = quantize_rtn(parse_format(outer ? "int8g32" : "int4g32"), decode(weight), weight.out,
                                        weight.in, {.range_search = true, .importance = {}}, pool);
    EXPECT_EQ(decode(written.linear(id)), decode(q)) << to_string(id);
  }
}

TEST(Rotation, WhatCannotBeTurnedIsRefused) {
  const auto refuses = [](const auto& what, const std::string& words) {
    try {
      what();
      ADD_FAILURE() << "nothing said about: " << words;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(words));
    }
  };
  for (const char* name : {"gemma3", "olmo2", "olmo3_keys5"})
    refuses([&] { open_rotated(tiny_model(name), kSeed); }, "cannot be rotated: it normalises what its blocks add");
  const TestFolder folder;
  const std::string made = folder / "made";
  ASSERT_EQ(run_command(source_path("tests/models"),
                        "fidelio quantize llama2 --format int4g32 --method rtn --rotate -o " + made)
                .code,
            0);
  refuses([&] { open_rotated(made, kSeed); }, "rotated already");
  refuses([&] { train::check_known(Checkpoint::open(made).config(), false); }, "a rotated model is not tuned");
  // Otherwise one cache would hold values with and without the rotation.
  const auto runner = make_cpu_runner(Checkpoint::open(tiny_model("llama2")), {.threads = 1, .isa = ""});
  refuses([&] { runner->make_draft(Checkpoint::open(made)); }, "the draft is rotated, the model is not");
  for (const char* target : {"gguf", "gptq", "compressed-tensors"}) {
    const CommandResult result =
        run_command(folder.path(), std::string("fidelio export made --to ") + target + " -o out");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, testing::HasSubstr("it is rotated"));
  }
}

}  // namespace
}  // namespace fidelio
