// These tests run `fidelio quantize` as a user does: the effect of its steps, and calibration text that the model
// writes itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "io/checkpoint.h"
#include "io/checkpoint_write.h"
#include "io/safetensors.h"
#include "models.h"
#include "quant/quantize_model.h"

namespace fidelio {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Quantize : public testing::Test {
 protected:
  Quantize() { std::filesystem::create_symlink(source_path("models"), folder_ / "models"); }

  void run(const std::string& command) {
    const CommandResult result = run_command(folder_.path(), command);
    ASSERT_EQ(result.code, 0) << command << "\n" << result.err;
  }
  void quantize(const std::string& options, const std::string& out, int64_t tokens = 8192) {
    run(
        fmt::format("fidelio quantize models/quill-1m --format int4g64zs8 --calibration "
                    "models/data/docs-calibration.txt --calibration-tokens {} {} -o {}",
                    tokens, options, out));
  }
  double kl(const std::string& out) {
    const CommandResult result = run_command(
        folder_.path(), "fidelio eval " + out +
                            " --reference models/quill-1m --text models/data/docs-heldout.txt --context 512 --windows "
                            "8 --activations f32 --json - 2>/dev/null");
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out).at("kl").at("value");
  }
  std::string weights(const std::string& out) { return read_text_file(folder_ / out + "/model.safetensors"); }

  TestFolder folder_;
};

// This compares plain GPTQ, GPTQ with every step but feedback (which corrects the losses of earlier layers), and GPTQ
// with feedback. On 4,088 tokens each step changes KL by a fifth or so, and the interval of each is 5%.
TEST_F(Quantize, StepsBringTheModelNearer) {
  quantize("--steps none", "plain");
  quantize("--steps act-order,range-search,descent,refit", "alone");
  quantize("", "default");
  const double plain = kl("plain"), alone = kl("alone"), whole = kl("default");
  EXPECT_LT(alone, 0.95 * plain);
  EXPECT_LT(whole, 0.95 * alone);
  quantize("--steps act-order,range-search,descent,refit,feedback", "named");
  EXPECT_EQ(weights("named"), weights("default"));
}

TEST_F(Quantize, TheModelWritesTheSameCalibrationTextAgain) {
  quantize("--calibration-samples 1536", "mixed", 2048);
  quantize("--calibration-samples 1536 --threads 1", "again", 2048);
  quantize("--calibration-samples 1536 --seed 1", "other", 2048);
  quantize("--calibration-samples 2048", "alone", 2048);
  EXPECT_EQ(weights("mixed"), weights("again"));
  EXPECT_NE(weights("mixed"), weights("other"));
  EXPECT_NE(weights("mixed"), weights("alone"));
}

// Writes quill-1m with every up matrix divided by a power of two and every down matrix multiplied by it. The function
// is the same, bit for bit, and FP16 does not hold its scales.
void write_scaled(const std::string& folder, int power) {
  std::filesystem::create_directories(folder);
  const Safetensors files = Safetensors::open(source_path("models/quill-1m"));
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : files.names()) {
    OwnedTensor t = files.get(name);
    const double factor = name.find("up_proj") != std::string::npos     ? std::ldexp(1.0, -power)
                          : name.find("down_proj") != std::string::npos ? std::ldexp(1.0, power)
                                                                        : 1;
    std::vector<float> values(static_cast<size_t>(t.view.elements()));
    convert_to_float(t.view, values);
    for (float& x : values) x = static_cast<float>(x * factor);
    t = OwnedTensor::allocate(t.view.dtype, t.view.shape);
    convert_from_float(values, t.view);
    tensors.push_back(to_write(name, t));
  }
  write_safetensors(folder + "/model.safetensors", tensors);
  copy_companions(source_path("models/quill-1m"), folder);
  std::filesystem::copy_file(source_path("models/quill-1m/config.json"), folder + "/config.json");
}

TEST_F(Quantize, ScalesThatFp16DoesNotHoldAreRefusedWithAFormatThatHoldsThem) {
  write_scaled(folder_ / "scaled", 24);
  const auto refusal = [&](const std::string& options) {
    const CommandResult result = run_command(folder_.path(), "fidelio quantize scaled " + options + " -o out");
    EXPECT_EQ(result.code, 1) << options;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
    return result.err;
  };
  EXPECT_THAT(refusal("--method rtn --format int8g64"),
              AllOf(HasSubstr("layers.0.up: "), HasSubstr("as small as"), HasSubstr("int8g64s8 holds them")));
  EXPECT_THAT(refusal("--format int4c --calibration-tokens 8192"), HasSubstr("int4g128s8 holds them"));
  EXPECT_THAT(refusal("--method rtn --format vq8k12s1"), HasSubstr("int2g64s8 holds them"));
  EXPECT_THAT(refusal("--method rtn --format f16"), HasSubstr("bf16 does"));
  // A power of two changes only FP32 scales, so nothing is lost.
  run("fidelio quantize scaled --method rtn --format int8g64s8 -o wide");
  run("fidelio quantize models/quill-1m --method rtn --format int8g64s8 -o plain");
  EXPECT_NEAR(kl("wide"), kl("plain"), 1e-3 * kl("plain"));
  for (const char* to : {"gptq", "gguf"}) {
    const CommandResult result = run_command(folder_.path(), std::string("fidelio export wide --to ") + to + " -o out");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("layers.0.up (int8g64s8) cannot be exported"), HasSubstr("do not fit")));
  }
}

// compress names each offered format that does not hold every linear, once.
TEST_F(Quantize, OfferedFormatsWithTooNarrowScalesAreNamedOnce) {
  write_scaled(folder_ / "scaled", 18);
  const Checkpoint source = Checkpoint::open(folder_ / "scaled");
  const std::vector<FormatSpec> formats = {parse_format("int8g64"), parse_format("int4g64zs8"),
                                           parse_format("int4g128")};
  ThreadPool pool(2);
  EXPECT_THAT(
      beyond_half_scales(source, linears_of(source.config()), formats, pool),
      testing::ElementsAre(AllOf(HasSubstr("layers.0.up"), HasSubstr("int8g64s8"), HasSubstr("3 more linears")),
                           AllOf(HasSubstr("layers.0.up"), HasSubstr("int4g128s8"), HasSubstr("3 more linears"))));
  EXPECT_TRUE(beyond_half_scales(source, {{0, Role::q}, {3, Role::down}}, formats, pool).empty());
}

}  // namespace
}  // namespace fidelio
