// The program of every test model is the text in tests/golden/programs (tools/make_program_goldens.sh), so a change of
// what a step computes is seen model by model and operation by operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/checkpoint.h"
#include "models.h"
#include "step/build.h"

namespace fidelio {
namespace {

const std::string kPrograms = source_path("tests/golden/programs");

class ProgramText : public testing::TestWithParam<std::string> {};

TEST_P(ProgramText, IsTheGolden) {
  const ModelConfig config = Checkpoint::open(tiny_model(GetParam())).config();
  EXPECT_EQ(to_text(build_program(config, config.max_positions)), read_text_file(kPrograms + "/" + GetParam() + ".txt"))
      << "if this change is meant, run tools/make_program_goldens.sh and read the difference";
}
INSTANTIATE_TEST_SUITE_P(Tiny, ProgramText, testing::ValuesIn(kTinyModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Families, ProgramText, testing::ValuesIn(kFamilyModels),
                         [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Experts, ProgramText, testing::ValuesIn(kExpertModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Delta, ProgramText, testing::ValuesIn(kDeltaModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Routed, ProgramText, testing::ValuesIn(kRoutedModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Sinks, ProgramText, testing::ValuesIn(kSinkModels), [](const auto& i) { return i.param; });
INSTANTIATE_TEST_SUITE_P(Gemma4, ProgramText, testing::ValuesIn(kGemma4Models), [](const auto& i) { return i.param; });

// No golden is left of a model that is gone.
TEST(ProgramTexts, AreThoseOfTheTestModels) {
  std::vector<std::string> expected;
  for (const auto* models :
       {&kTinyModels, &kFamilyModels, &kExpertModels, &kDeltaModels, &kRoutedModels, &kSinkModels, &kGemma4Models})
    for (const std::string& name : *models) expected.push_back(name + ".txt");
  EXPECT_THAT(entries(kPrograms), testing::UnorderedElementsAreArray(expected));
}

TEST(ProgramTexts, ArePrintedByInspect) {
  const TestFolder folder;
  const CommandResult shown = run_command(folder.path(), "fidelio inspect " + tiny_model("qwen3") + " --program");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.out, read_text_file(kPrograms + "/qwen3.txt"));
}

}  // namespace
}  // namespace fidelio
