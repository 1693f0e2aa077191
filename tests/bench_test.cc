// These tests check that the reports of `bench` are consistent in themselves. Speeds are not judged here, as a test
// machine is never quiet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models.h"

namespace fidelio {
namespace {

const std::string kQuick = " --seconds 0 --megabytes 0.1 --threads 2";

nlohmann::json bench(const std::string& options) {
  const TestFolder folder;
  const CommandResult result = run_command(folder.path(), "fidelio bench linear" + kQuick + " --json - " + options);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(BenchLinear, HasARowForEveryFormatModeAndNumberOfRows) {
  const nlohmann::json report =
      bench("--formats bf16,int4g64zs8,lut3g32,fp4g16z,fp8 --rows 1,3 --activations f32,a16,a8 --shapes 48x128,16x64");
  ASSERT_EQ(report["rows"].size(), 5u * 2 * 3 * 2);
  EXPECT_GT(report["read_bandwidth_gbs"], 0);
  EXPECT_EQ(report["threads"], 2);
  for (const auto& row : report["rows"]) {
    SCOPED_TRACE(row.dump());
    const double us = row["microseconds"], weights = row["out"].get<double>() * row["in"].get<double>();
    EXPECT_GT(us, 0);
    EXPECT_GT(row["of_bandwidth"], 0);
    EXPECT_NEAR(row["gbs"].get<double>() * us * 1e3 / row["bytes"].get<double>(), 1, 1e-9);
    EXPECT_NEAR(row["gweights_per_second"].get<double>() * us * 1e3 / weights, 1, 1e-9);
    // Two planes of A16 are twice the products. The other kernels do not multiply integers.
    const bool integer = row["kernel"].get<std::string>().starts_with("lowbit") && row["activations"] != "f32";
    const double planes = !integer || row["int8_gmacs"] == 0 ? 0 : row["activations"] == "a16" ? 2 : 1;
    EXPECT_NEAR(row["of_int8_rate"].get<double>() * row["int8_gmacs"].get<double>(),
                planes * row["rows"].get<double>() * row["gweights_per_second"].get<double>(), 1e-6);
  }
}

TEST(BenchLinear, NamesTheMatricesOfAModel) {
  const nlohmann::json report = bench("--formats int2g64zs8 --rows 1 --activations a8 --shapes tinyllama-1.1b");
  std::vector<std::string> shapes;
  for (const auto& row : report["rows"])
    shapes.push_back(
        fmt::format("{} {}x{}", row["shape"].get<std::string>(), row["out"].get<int>(), row["in"].get<int>()));
  EXPECT_THAT(shapes, testing::ElementsAre("tinyllama-1.1b q 2048x2048", "tinyllama-1.1b k, v 256x2048",
                                           "tinyllama-1.1b o 2048x2048", "tinyllama-1.1b gate, up 5632x2048",
                                           "tinyllama-1.1b down 2048x5632", "tinyllama-1.1b head 32000x2048"));
}

TEST(BenchLinear, RunsTheKernelsAskedFor) {
  for (const std::string& isa : isa_names()) {
    const nlohmann::json report = bench("--formats int4g64 --rows 1 --activations a16 --shapes 16x64 --isa " + isa);
    EXPECT_EQ(report["rows"][0]["kernel"], "lowbit a16 " + isa);
    EXPECT_EQ(report["isa"], isa);
    EXPECT_EQ(report["int8_gmacs"] > 0, isa != "portable");
  }
}

TEST(BenchLinear, RefusesAShapeItDoesNotKnow) {
  const TestFolder folder;
  for (const std::string shape : {"llama-9", "16x", "0x16", "16x16x16"}) {
    const CommandResult result = run_command(folder.path(), "fidelio bench linear --shapes " + shape);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, testing::AllOf(testing::HasSubstr(shape), testing::HasSubstr("tinyllama-1.1b")));
  }
}

TEST(BenchSampling, ComparesEitherChoiceInAModelsSteps) {
  const TestFolder folder;
  const CommandResult result = run_command(folder.path(), "fidelio bench sampling " + source_path("models/quill-1m") +
                                                              " --batch 1,3 --tokens 24 --threads 2 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json rows = nlohmann::json::parse(result.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["sequences"], 3);
  for (const auto& row : rows)
    EXPECT_NEAR(row["greedy_tokens_per_second"].get<double>() / row["sampled_tokens_per_second"].get<double>() - 1,
                row["cost"].get<double>(), 1e-9);
  EXPECT_THAT(
      run_command(folder.path(), "fidelio bench sampling " + source_path("models/quill-1m") + " --tokens 5000").err,
      testing::HasSubstr("longer than the model's context"));
}

// The longest possible answer is as long as the context, however large the requested number is.
TEST(BenchSpeculate, HasACacheForTheLongestAnswers) {
  const TestFolder folder;
  write_file_atomically(folder / "prompts.txt", "The package\nWhat is\n");
  const auto tokens = [&](const std::string& most) {
    const CommandResult result = run_command(
        folder.path(), "fidelio bench speculate " + source_path("models/quill-1m") +
                           " --prompts prompts.txt --draft lookup --batch 2 --acceptance 1 -r 1 --threads 2 "
                           "--json - --max-tokens " +
                           most);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["rows"][0]["tokens"].get<int64_t>();
  };
  EXPECT_EQ(tokens("512"), tokens("9223372036854775807"));
}

}  // namespace
}  // namespace fidelio
