// These tests use the high bits of a checkpoint's codes from the command line, as the weights of a draft inside the
// checkpoint's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models.h"

namespace fidelio {
namespace {

const std::string kQuantize = "fidelio quantize quill-1m --format ",
                  kCalibration = " --calibration data/docs-calibration.txt -o ";

double kl_of(const std::string& made, const std::string& options) {
  const CommandResult result =
      run_command(source_path("models"), "fidelio eval " + made +
                                             " --reference quill-1m --text data/docs-heldout.txt --context 256 "
                                             "--windows 4 --activations f32 --json - " +
                                             options);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out)["kl"]["value"];
}

TEST(View, IsBetterWhereItsLossCountsAndTheWholeWeightIsBetterStill) {
  const TestFolder folder;
  const std::string plain = folder / "plain", made = folder / "made";
  for (const std::string& command :
       {kQuantize + "int6g64zs8 --calibration-tokens 4096" + kCalibration + plain,
        kQuantize + "int6g64zs8 --view-bits 4 --view-weight 0.3 --calibration-tokens 4096" + kCalibration + made}) {
    const CommandResult result = run_command(source_path("models"), command);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  EXPECT_LT(kl_of(made, "--view 4"), kl_of(plain, "--view 4"));
  EXPECT_LT(kl_of(made, ""), kl_of(made, "--view 4"));
}

TEST(View, ThatIsNotThereIsRefused) {
  const TestFolder folder;
  const auto refused = [&](const std::string& command, const std::vector<std::string>& words) {
    const CommandResult result = run_command(source_path("models"), command);
    EXPECT_EQ(result.code, 1) << command;
    for (const std::string& word : words) EXPECT_THAT(result.err, testing::HasSubstr(word));
  };
  const std::string view = " --view-bits 3 --view-weight 0.1";
  refused(kQuantize + "int6g64" + view + kCalibration + folder / "a", {"--view-bits 3", "int6g64"});
  refused(kQuantize + "lut4g64" + view + kCalibration + folder / "b", {"--view-bits 3", "lut4g64"});
  refused("fidelio eval quill-1m --text data/docs-heldout.txt --view 4", {"--view 4"});
  EXPECT_TRUE(entries(folder.path()).empty());
}

}  // namespace
}  // namespace fidelio
