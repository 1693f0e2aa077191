// These tests keep quality from decaying: KL and EAR of quantised models lie in bands that were measured once. The
// bands are as wide as other calibration text makes them (tools/quality_bands.py, tests/golden/quality_bands.json).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;

struct Measured {
  double kl, ear;
};

class Quality : public testing::Test {
 protected:
  Quality() { std::filesystem::create_symlink(source_path("models"), folder_ / "models"); }

  json run(const std::string& command) {
    const CommandResult result = run_command(folder_.path(), "fidelio " + command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return json::parse(result.out, nullptr, false);
  }
  Measured measure(const std::string& format, const std::string& device) {
    const std::string out = "q-" + format, on = " --device " + device;
    run("quantize models/quill-1m --format " + format +
        " --calibration models/data/docs-calibration.txt --calibration-tokens 8192 -o " + out + on);
    const json report =
        run("eval " + out +
            " --reference models/quill-1m --text models/data/docs-heldout.txt --context 512 --windows 8 "
            "--activations f32 --json -" +
            on);
    if (!report.contains("kl")) return {NAN, NAN};
    return {report["kl"]["value"], report["ear"]["value"]};
  }

  void check(const std::string& device) {
    const json golden = golden_json("quality_bands");
    std::map<std::string, Measured> measured;
    for (const std::string format : golden.at("formats")) measured[format] = measure(format, device);
    for (const auto& [name, band] : golden.at("bands").items()) {
      std::istringstream words(name);
      std::string what, format, other;
      words >> what >> format;
      if (format == "ratio") words >> format >> other;
      const Measured m = measured.at(format);
      const double value = what == "constant" ? (1 - m.ear) / std::sqrt(m.kl)
                           : other.empty()    ? m.kl
                                              : m.kl / measured.at(other).kl;
      const double from = band.at(0), to = band.at(1);
      EXPECT_TRUE(from <= value && value <= to)
          << name << " is " << value << ", not in [" << from << ", " << to
          << "]: if a quantiser was changed for the better, run tools/quality_bands.py again";
    }
  }

  TestFolder folder_;
};

TEST_F(Quality, LiesInItsBands) { check("cpu"); }

using QualityOnGpu = Quality;  // Its label is gpu.
TEST_F(QualityOnGpu, LiesInItsBands) {
  std::ofstream(folder_.path() + "/ids.json") << "[5]";
  const CommandResult probe =
      run_command(folder_.path(), "fidelio logits models/quill-1m --ids ids.json -o logits.npy --device cuda");
  if (probe.code != 0) {
    // This is the remedy where there is no GPU.
    ASSERT_NE(probe.err.find("--device cpu"), std::string::npos) << probe.err;
    GTEST_SKIP() << "no GPU: " << probe.err;
  }
  check("cuda");
}

}  // namespace
}  // namespace fidelio
