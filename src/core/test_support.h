// This file helps tests: it makes scratch folders and measures what reading hostile input cost.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "core/error.h"

namespace fidelio {

// Returns the kilobytes that follow `name` in /proc/self/status.
inline int64_t status_kilobytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  return 0;
}

// This is a folder for one test alone, within the system's folder for temporary files, whoever runs the test.
class ScratchFolder {
 public:
  ScratchFolder() : path_((std::filesystem::temp_directory_path() / "fidelio-test-XXXXXX").string()) {
    check(::mkdtemp(path_.data()) != nullptr, "cannot make a folder like {}", path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Returns the processor seconds that a fixed piece of work takes now. The work is like that of parsers: steps,
// comparisons and memory.
inline double yardstick_seconds() {
  const double start = processor_seconds();
  std::map<uint64_t, std::string> tree;
  for (uint64_t i = 0, x = 1; i < 20'000; ++i) {
    x = x * 6364136223846793005 + 1442695040888963407;
    tree[x >> 40] += 'a';
  }
  EXPECT_GT(tree.size(), 10'000u);
  return processor_seconds() - start;
}

// Returns two seconds of an undisturbed processor, counted in work, as a shared processor takes longer for the same
// work. The yardstick took 4.3 ms on the machine where the promise of core/foreign/limits.h was measured.
inline double two_seconds() { return std::max(2.0, 2.0 / 4.3e-3 * yardstick_seconds()); }

// Runs `read` on something of `input_bytes` and returns the message of its Error, or "" if it finished. It checks that
// either way this took at most 2 s of the processor and 256 MB beyond the input, as core/foreign/limits.h promises.
// Under a sanitizer, which takes several times as much of both, it only checks that `read` ends.
template <typename Read>
std::string message_of_hostile([[maybe_unused]] size_t input_bytes, Read&& read) {
  std::ofstream("/proc/self/clear_refs") << "5";  // This resets the recorded peak of resident memory.
  const int64_t before = status_kilobytes("VmRSS");
  const double start = processor_seconds();
  std::string message;
  try {
    read();
  } catch (const Error& error) {
    message = error.what();
    EXPECT_LE(message.size(), 4000u);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const double seconds = processor_seconds() - start;
  EXPECT_TRUE(seconds <= 2.0 || seconds <= two_seconds()) << seconds << " s: " << message;
  EXPECT_LE((status_kilobytes("VmHWM") - before) * 1024, (int64_t{256} << 20) + static_cast<int64_t>(input_bytes))
      << message;
#else
  EXPECT_GE(processor_seconds() - start, 0.0);
  EXPECT_GE(before, 0);
#endif
  return message;
}

inline std::string repeated(const std::string& part, size_t times) {
  std::string out;
  out.reserve(part.size() * times);
  for (size_t i = 0; i < times; ++i) out += part;
  return out;
}

}  // namespace fidelio
