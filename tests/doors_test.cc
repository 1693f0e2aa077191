// These tests are about the ways by which a model leaves the program: what other programs are told about it, what an
// export costs, and what is said about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kQuill = "'" + source_path("models/quill-1m") + "'";

class Doors : public testing::Test {
 protected:
  CommandResult run(const std::string& command) const {
    CommandResult result = run_command(folder_.path(), "fidelio " + command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  }
  void quantize(const std::string& how, const std::string& out) const {
    run("quantize " + kQuill + " --method rtn " + how + " -o " + out);
  }
  TestFolder folder_;
};

// An embedding for which a GGUF file has no block becomes twice as large there. The warning names that and a remedy
// that works.
TEST_F(Doors, AnExportThatIsLargerSaysSoAndTheRemedyHelps) {
  quantize("--format int4g32 --embedding int8g64zs8", "wide");
  const CommandResult wide = run("export wide --to gguf -o wide.gguf --json wide.json");
  EXPECT_THAT(wide.err, AllOf(HasSubstr("warning: wide.gguf"), HasSubstr("is larger than wide ("),
                              HasSubstr("--embedding int8g32")));
  EXPECT_THAT(json::parse(read_text_file(folder_ / "wide.json")).at("warnings").at(0).get<std::string>(),
              HasSubstr("is larger than wide ("));
  EXPECT_GT(std::filesystem::file_size(folder_ / "wide.gguf"),
            std::filesystem::file_size(folder_ / "wide/model.safetensors"));
  quantize("--format int4g32 --embedding int8g32", "even");
  EXPECT_THAT(run("export even --to gguf -o even.gguf --json even.json").err, Not(HasSubstr("warning")));
  EXPECT_TRUE(json::parse(read_text_file(folder_ / "even.json")).at("warnings").empty());
  // The format that vLLM and transformers read has the embedding in 16 bits, whatever it was.
  EXPECT_THAT(run("export even --to compressed-tensors -o even-ct").err,
              AllOf(HasSubstr("warning: even-ct"), HasSubstr("hold them in 16 bits only"), HasSubstr("--to gguf")));
}

// A model that was made from a smaller one is compared with that, too.
TEST_F(Doors, AnExportIsComparedWithTheOriginal) {
  quantize("--format int4g32 --embedding int8g32", "four");
  run("export four --to gguf -o four.gguf");
  run("quantize four.gguf --method rtn --format int8g32 --embedding int8g32 -o eight");
  EXPECT_THAT(run("export eight --to gguf -o eight.gguf").err,
              AllOf(HasSubstr("warning: eight.gguf"), HasSubstr("larger than the model it was made of ("),
                    HasSubstr("as eight (")));
}

// A folder that fidelio writes has a card, with the command and without the paths of the user's files. The card of an
// export names the same original. A card that a user put there is left alone.
TEST_F(Doors, EveryFolderHasACard) {
  quantize("--format int4g32 --embedding int8g32", "four");
  const std::string card = read_text_file(folder_ / "four/README.md");
  EXPECT_THAT(card, AllOf(HasSubstr("base_model: \"quill-1m\""), HasSubstr("fidelio quantize quill-1m --method rtn"),
                          Not(HasSubstr(source_path("models")))));
  write_file_atomically(folder_ / "four/README.md",
                        "---\nlicense: mit\nlibrary_name: fidelio\nbase_model: a/quill\n---\n");
  run("export four --to compressed-tensors -o four-ct 2>/dev/null");
  EXPECT_THAT(
      read_text_file(folder_ / "four-ct/README.md"),
      AllOf(HasSubstr("base_model: \"a/quill\""), HasSubstr("license: \"mit\""), HasSubstr("vllm serve four-ct")));
  quantize("--format fp8", "grid");
  EXPECT_THAT(
      read_text_file(folder_ / "grid/README.md"),
      AllOf(HasSubstr("fidelio compress quill-1m --ear 0.98 --for llama.cpp"), Not(HasSubstr("fidelio export grid"))));
}

// A copied program needs no files beside it.
TEST_F(Doors, AProgramThatWasCopiedHasItsTexts) {
  std::filesystem::create_directories(folder_ / "elsewhere");
  std::filesystem::copy_file(FIDELIO_PROGRAM, folder_ / "elsewhere/fidelio");
  const CommandResult made = run_command(
      folder_.path(), "elsewhere/fidelio quantize " + kQuill + " --format int4g32 --calibration-tokens 1024 -o out");
  EXPECT_EQ(made.code, 0) << made.err;
  const CommandResult named = run_command(
      folder_.path(),
      "elsewhere/fidelio quantize " + kQuill +
          " --format int4g32 --calibration fidelio:/docs-calibration.txt --calibration-tokens 1024 -o same");
  EXPECT_EQ(named.code, 0) << named.err;
  const CommandResult file = run_command(
      folder_.path(), "elsewhere/fidelio quantize " + kQuill + " --format int4g32 --calibration '" +
                          source_path("models/data/docs-calibration.txt") + "' --calibration-tokens 1024 -o file");
  EXPECT_EQ(file.code, 0) << file.err;
  const auto weights = [&](const char* name) { return read_text_file(folder_ / name + "/model.safetensors"); };
  EXPECT_EQ(weights("out"), weights("same"));
  EXPECT_EQ(weights("out"), weights("file"));
}

}  // namespace
}  // namespace fidelio
