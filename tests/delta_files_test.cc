// These tests read and write files of models with delta nets, and of mixtures with other routers: our folders, and GGUF
// files as llama.cpp's own converter makes them from the tiny models (tools/make_gguf_goldens.py). A file is the same
// model as the folder it was made from, and our export holds the same tensors as the converter's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/export/export.h"
#include "io/gguf/file.h"
#include "models.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct DeltaFolders : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaFolders, testing::ValuesIn(kDeltaModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Routed, DeltaFolders, testing::ValuesIn(kRoutedModels),
                         [](const auto& info) { return info.param; });

// Unchanged weights are written once more, each under a name of its own, whatever tensors the source keeps them in.
TEST_P(DeltaFolders, WrittenAgainAreTheSameModel) {
  const Checkpoint source = Checkpoint::open(tiny_model(GetParam()));
  const TestFolder folder;
  write_checkpoint(folder / "dense", source, {}, nullptr, nlohmann::json::object());
  const Checkpoint written = Checkpoint::open(folder / "dense");
  EXPECT_THAT(written.notes(), IsEmpty());
  EXPECT_EQ(written.parameters(), source.parameters());
  const std::vector<std::string> names = Safetensors::open(folder / "dense").names();
  for (const auto& ids : {linears_of(source.config()), fixed_linears_of(source.config())})
    for (LinearId id : ids) EXPECT_THAT(names, testing::Contains(weight_name(id)));
  const auto ids = golden_json(GetParam())["ids"].get<std::vector<int32_t>>();
  EXPECT_EQ(run_whole(*make_cpu_runner(written, exact_options()), ids, Activations::f32),
            run_whole(*make_cpu_runner(source, exact_options()), ids, Activations::f32));
}

// The block that predicts one token more is opened with the model, runs, and is written with it as it is.
TEST(DeltaPredictor, TravelsWithTheModel) {
  const Checkpoint source = Checkpoint::open(tiny_model("qwen3_5_moe_mtp"));
  ASSERT_TRUE(source.config().predictor);
  EXPECT_THAT(source.notes(), IsEmpty());
  RunnerOptions options = exact_options();
  options.predictor = true;
  EXPECT_NE(make_cpu_runner(source, options)->make_predictor(source), nullptr);
  const TestFolder folder;
  write_checkpoint(folder / "dense", source, {}, nullptr, nlohmann::json::object());
  const Checkpoint written = Checkpoint::open(folder / "dense");
  ASSERT_TRUE(written.config().predictor);
  for (LinearId id : predictor_linears_of(source.config()))
    EXPECT_EQ(decode(written.linear(id)), decode(source.linear(id))) << to_string(id);
  for (const Norm which : {Norm::attn, Norm::q, Norm::token, Norm::before, Norm::predicted})
    EXPECT_EQ(written.norm(kPredictorLayer, which), source.norm(kPredictorLayer, which));
  // These files have a part of such a block, which is left out.
  EXPECT_FALSE(Checkpoint::open(tiny_model("qwen3_5_image")).config().predictor);
}

// Copies a tiny model, which has no tokenizer, with any that fits.
std::string with_tokenizer(const std::string& name, const std::string& folder) {
  copy_model(tiny_model(name), folder);
  std::ofstream(folder + "/tokenizer.json") << R"({"version":"1.0","added_tokens":[],"decoder":{"type":"ByteLevel"},
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})";
  return folder;
}

class GgufDelta : public testing::TestWithParam<std::string> {
 protected:
  std::string golden() const { return source_path("tests/golden/gguf/" + GetParam() + ".gguf"); }
};
INSTANTIATE_TEST_SUITE_P(All, GgufDelta, testing::Values("qwen3_5", "qwen3_5_moe_image", "qwen3_next"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Routed, GgufDelta, testing::Values("qwen2_moe", "glm4_moe", "minimax_m2"),
                         [](const auto& info) { return info.param; });

// The weights are those of the folder bit for bit, in our order of heads. The file holds -e^x for the logarithm x of
// the decay's rate: e^x is rounded to 2^-24 of its size and its logarithm, which is below 5 in size, to 2^-22, so x
// moves by less than 2^-21. Logits have the tolerance of golden_test.cc.
TEST_P(GgufDelta, IsTheModelOfTheFolder) {
  const Checkpoint ours = Checkpoint::open(tiny_model(GetParam())), read = Checkpoint::open(golden());
  ASSERT_EQ(linears_of(read.config()), linears_of(ours.config()));
  EXPECT_EQ(read.config().kinds, ours.config().kinds);
  EXPECT_EQ(rotary_columns(read.config()), rotary_columns(ours.config()));
  EXPECT_EQ(read.config().router, ours.config().router);
  EXPECT_EQ(read.config().renormalised, ours.config().renormalised);
  for (LinearId id : linears_of(ours.config()))
    EXPECT_EQ(decode(read.linear(id)), decode(ours.linear(id))) << to_string(id);
  for (LinearId id : fixed_linears_of(ours.config()))
    EXPECT_EQ(decode(read.linear(id)), decode(ours.linear(id))) << to_string(id);
  for (const int layer : routed_layers(ours.config()))
    for (const RouterTensor which : router_tensors(ours.config()))
      EXPECT_EQ(read.router(layer, which), ours.router(layer, which)) << router_name(ours.config(), layer, which);
  for (const int layer : delta_layers(ours.config()))
    for (const DeltaTensor which : kDeltaTensors) {
      const std::vector<float> a = read.delta(layer, which), b = ours.delta(layer, which);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], which == DeltaTensor::log_rate ? 0x1p-21 : 0) << delta_name(layer, which);
    }
  EXPECT_THAT(read.notes(), IsEmpty());
  const std::vector<float> expected = golden_logits(GetParam());
  const auto runner = make_cpu_runner(read, exact_options());
  const std::vector<float> logits =
      run_whole(*runner, golden_json(GetParam())["ids"].get<std::vector<int32_t>>(), Activations::f32);
  ASSERT_EQ(logits.size(), expected.size());
  const auto v = static_cast<size_t>(read.config().v);
  for (size_t row = 0; row < logits.size() / v; ++row)
    EXPECT_LE(relative_distance(std::span(logits).subspan(row * v, v), std::span(expected).subspan(row * v, v)), 1e-5);
}

// The converter's file has a predictor that was made of the model's last layer and its final norm.
TEST(GgufPredictor, IsReadFromTheConvertersFile) {
  const Checkpoint read = Checkpoint::open(source_path("tests/golden/gguf/qwen3_5.gguf"));
  ASSERT_TRUE(read.config().predictor);
  const int last = read.config().L - 1;
  for (LinearId id : predictor_linears_of(read.config())) {
    if (id.role == Role::join) continue;
    EXPECT_EQ(decode(read.linear(id)), decode(read.linear({last, id.role}))) << to_string(id);
  }
  for (const Norm which : {Norm::attn, Norm::mlp, Norm::q, Norm::k})
    EXPECT_EQ(read.norm(kPredictorLayer, which), read.norm(last, which));
  for (const Norm which : {Norm::token, Norm::before, Norm::predicted})
    EXPECT_EQ(read.norm(-1, which), read.norm(-1, Norm::final));
}

// Our file has the predictor's tensors under the names that the converter gives them, and is read as the same block.
TEST(GgufPredictor, IsWrittenAsTheConverterDoes) {
  const TestFolder folder;
  for (const std::string name : {"qwen3_5_mtp", "qwen3_5_moe_mtp"}) {
    SCOPED_TRACE(name);
    const Checkpoint source = Checkpoint::open(with_tokenizer(name, folder / name));
    export_gguf(source, folder / (name + ".gguf"), true);
    const Checkpoint again = Checkpoint::open(folder / (name + ".gguf"));
    ASSERT_TRUE(again.config().predictor);
    for (LinearId id : predictor_linears_of(source.config()))
      EXPECT_EQ(decode(again.linear(id)), decode(source.linear(id))) << to_string(id);
    for (const auto& [layer, norm] : predictor_norms_of(source.config()))
      EXPECT_EQ(again.norm(layer, norm), source.norm(layer, norm));
  }
  const auto theirs = gguf::File::open(source_path("tests/golden/gguf/qwen3_5.gguf")),
             ours = gguf::File::open(folder / "qwen3_5_mtp.gguf");
  for (const auto& [name, tensor] : theirs->tensors()) EXPECT_TRUE(ours->tensors().contains(name)) << name;
  EXPECT_EQ(ours->tensors().size(), theirs->tensors().size());
  for (const char* key : {"qwen35.block_count", "qwen35.nextn_predict_layers"})
    EXPECT_EQ(ours->integer(key), theirs->integer(key)) << key;
}

std::vector<float> values_of(const gguf::StoredMatrix& m) {
  std::vector<float> values(static_cast<size_t>(m.rows * m.columns));
  for (int64_t r = 0; r < m.rows; ++r)
    decode_row(*m.type, m.row(r),
               std::span(values).subspan(static_cast<size_t>(r * m.columns), static_cast<size_t>(m.columns)));
  return values;
}

// torch's exponential and ours may differ in their last bits.
TEST_P(GgufDelta, ExportsHoldWhatTheConverterWrites) {
  const TestFolder folder;
  const Checkpoint model = Checkpoint::open(with_tokenizer(GetParam(), folder / "model"));
  export_gguf(model, folder / "out.gguf", true);
  const auto converted = gguf::File::open(golden()), ours = gguf::File::open(folder / "out.gguf");
  size_t compared = 0;
  for (const auto& [name, theirs] : converted->tensors()) {
    if (name.starts_with(fmt::format("blk.{}.", model.config().L))) continue;  // These predict further tokens.
    SCOPED_TRACE(name);
    ASSERT_TRUE(ours->tensors().contains(name));
    const gguf::StoredMatrix& mine = ours->tensors().find(name)->second;
    EXPECT_EQ(mine.dimensions, theirs.dimensions);
    EXPECT_EQ(std::tie(mine.rows, mine.columns, mine.rows_each),
              std::tie(theirs.rows, theirs.columns, theirs.rows_each));
    const std::vector<float> a = values_of(mine), b = values_of(theirs);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i], b[i], name.ends_with("ssm_a") ? 0x1p-22 * std::abs(b[i]) : 0);
    ++compared;
  }
  EXPECT_EQ(compared, ours->tensors().size());
  for (const std::string& key : converted->keys_under(std::string(*converted->text("general.architecture")) + "."))
    EXPECT_TRUE(ours->has(key) || key.ends_with("full_attention_interval") || key.ends_with("nextn_predict_layers"))
        << key;
  const Checkpoint again = Checkpoint::open(folder / "out.gguf");
  EXPECT_EQ(again.config().kinds, model.config().kinds);
  EXPECT_EQ(again.parameters(), model.parameters());
}

}  // namespace
}  // namespace fidelio
