// These tests measure the memory of a served model. The pages of the file are released as its weights are packed, so
// the resident set is the packed weights, the cache and the program itself.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "models.h"

extern char** environ;

namespace fidelio {
namespace {

// Returns the largest resident set of a process while it ran, in bytes: the kernel's own mark, read until the process
// ends.
int64_t peak_of(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  check(::posix_spawn(&child, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0, "cannot start {}",
        command[0]);
  int64_t peak = 0;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    std::ifstream file(fmt::format("/proc/{}/status", child));
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("VmHWM:")) peak = std::max<int64_t>(peak, 1024 * std::stoll(line.substr(6)));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(status, 0);
  return peak;
}

TEST(Memory, AServedModelTakesItsFileItsCacheFivePercentAndTheProgram) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  const TestFolder folder;
  const std::string made = folder / "made";
  const CommandResult result = run_command(
      source_path("models"), "fidelio quantize quill-26m --format int4g64 --embedding int4g64 --method rtn -o " + made);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto file = static_cast<int64_t>(std::filesystem::file_size(made + "/model.safetensors"));
  // The cache has 1024 positions of 8 layers, 4 heads of 64, keys and values of 2 bytes.
  const int64_t cache = int64_t{1024} * 8 * 4 * 64 * 2 * 2;
  // This is code and libraries (16 MB), tokenizer, and the workspace of batches of 512 rows, which is the same for a
  // model of any size except for its widths. The slack in it is less than the 15 MB that the pages of the file would
  // add if they were still resident.
  const int64_t program = 32 << 20;
  const int64_t peak = peak_of(
      {FIDELIO_PROGRAM, "generate", made, "--prompt", "Kira has 5 books.", "--max-tokens", "16", "--threads", "2"});
  EXPECT_GT(peak, file);
  EXPECT_LE(peak, file + file / 20 + cache + program);
}

}  // namespace
}  // namespace fidelio
