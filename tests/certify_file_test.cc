// These tests certify files that carry no certificate, and find the layer that is damaged in them. The layers of a
// model beside itself have no error, in every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/rng.h"
#include "eval/studies/layer_errors.h"
#include "io/gguf/blocks.h"
#include "io/gguf/file.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::vector<int32_t>> random_sequences(int64_t vocabulary) {
  Rng rng(5);
  std::vector<std::vector<int32_t>> sequences(2);
  for (auto& ids : sequences)
    for (int i = 0; i < 40; ++i) ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary))));
  return sequences;
}

struct LayersOf : testing::TestWithParam<std::string> {};
std::vector<std::string> all_models() {
  std::vector<std::string> names;
  for (const auto* list :
       {&kTinyModels, &kFamilyModels, &kExpertModels, &kDeltaModels, &kRoutedModels, &kSinkModels, &kGemma4Models})
    names.insert(names.end(), list->begin(), list->end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, LayersOf, testing::ValuesIn(all_models()), [](const auto& info) { return info.param; });

// The kernels of another instruction set add in another order, so the same weights differ by FP32's rounding alone: 80
// rows of sums of at most some hundred terms, of which a layer has ten in a row.
TEST_P(LayersOf, AModelBesideItselfHaveNoErrors) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model(GetParam()));
  RunnerOptions options = exact_options();
  const auto a = make_cpu_runner(checkpoint, options);
  options.isa = "portable";
  const auto b = make_cpu_runner(checkpoint, options);
  const LayerErrors errors = measure_layer_errors(*a, *b, random_sequences(checkpoint.config().v), Activations::f32);
  ASSERT_EQ(std::ssize(errors.layers), checkpoint.config().L);
  EXPECT_LT(errors.embedding, 1e-6);
  EXPECT_LT(errors.head, 1e-4);
  for (double error : errors.layers) EXPECT_LT(error, 1e-4);
  EXPECT_THAT(layers_that_stand_out(errors), IsEmpty());
}

TEST(LayersThatStandOut, AreFarFromTheMedian) {
  EXPECT_THAT(layers_that_stand_out({.01, {.02, .03, .025, .04, .02}, .01}), IsEmpty());
  EXPECT_THAT(layers_that_stand_out({.01, {.02, .03, .2, .04, .02}, .01}), ElementsAre(2));
  EXPECT_THAT(layers_that_stand_out({.01, {.3, .9, .4, .35, .3}, .01}), ElementsAre(1));
  EXPECT_THAT(layers_that_stand_out({.01, {.001, .001, .05, .001}, .01}), IsEmpty());  // .05 is little
  EXPECT_TRUE(embedding_stands_out({.5, {.02, .03, .025}, .01}));
  EXPECT_FALSE(head_stands_out({.5, {.02, .03, .025}, .1}));
}

// A file of quill-1m in Q8_0 that nobody certified.
class CertifyFile : public testing::Test {
 protected:
  CertifyFile() {
    write_file_atomically(folder_ / "short.txt",
                          read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 60000));
    expect_done("fidelio quantize '" + source_path("models/quill-1m") +
                "' --method rtn --format int8g32 --embedding int8g32 -o q8 --threads 2");
    expect_done("fidelio export q8 --to gguf -o q8.gguf");
  }
  CommandResult run(const std::string& command) const { return run_command(folder_.path(), command); }
  void expect_done(const std::string& command) const {
    const CommandResult result = run(command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  }
  std::string certify(const std::string& more) const {
    return "fidelio certify q8.gguf --reference '" + source_path("models/quill-1m") +
           "' --text short.txt --threads 2 " + more;
  }
  // Doubles the scales of the tensor's blocks, which are FP16 numbers at the beginning of each.
  void double_scales(const std::string& tensor) const {
    const std::string path = folder_ / "q8.gguf";
    std::string bytes = read_text_file(path);
    {
      const auto file = gguf::File::open(path);
      const gguf::StoredMatrix& m = file->tensors().at(tensor);
      ASSERT_EQ(m.type->name, "Q8_0");
      const auto first = static_cast<size_t>(m.data - file->mapped()->bytes().data());
      for (size_t at = first; at < first + static_cast<size_t>(m.bytes()); at += static_cast<size_t>(m.type->bytes))
        bytes[at + 1] = static_cast<char>(bytes[at + 1] + 4);  // the exponent begins at bit 2 of the second byte
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }
  TestFolder folder_;
};

TEST_F(CertifyFile, IsJudgedAndKeepsItsPromise) {
  const CommandResult made = run(certify("--ear 0.95 --json made.json --report page.html"));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("It carries no certificate; this is the first."));
  EXPECT_THAT(made.out, HasSubstr("Layers: no layer stands out"));
  const json report = json::parse(read_text_file(folder_ / "made.json"));
  EXPECT_TRUE(report["met"]);
  EXPECT_GT(report["measured"]["promised"]["ear"]["ci95"][0], 0.95);
  EXPECT_THAT(report["layers"]["stand_out"], IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "page.html"));
  const CommandResult missed = run(certify("--ear 0.99999"));
  EXPECT_EQ(missed.code, 1);
  EXPECT_THAT(missed.err, HasSubstr("what was asked for is not met"));
}

TEST_F(CertifyFile, ADamagedLayerIsNamed) {
  // |2 w' - w| is |w| but for the rounding of w', which is half a percent.
  double_scales("blk.2.ffn_down.weight");
  const CommandResult made = run(certify("--json made.json"));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("layer 2 stands out"));
  const std::string words = "the weights of layers.2.down differ from the source's by ";
  const size_t at = made.out.find(words);
  ASSERT_NE(at, std::string::npos) << made.out;
  EXPECT_NEAR(std::stod(made.out.substr(at + words.size())), 100, 1);
  EXPECT_THAT(json::parse(read_text_file(folder_ / "made.json"))["layers"]["stand_out"], ElementsAre(2));
}

TEST_F(CertifyFile, OfAnotherModelIsRefused) {
  const CommandResult other = run("fidelio certify q8.gguf --reference '" + tiny_model("qwen3") + "'");
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("give the model that it was quantised from"));
}

}  // namespace
}  // namespace fidelio
