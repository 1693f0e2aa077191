// For tests of hostile input: what reading something cost.
#pragma once
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <string>

#include "core/error.h"

namespace fidelio {

// Kilobytes after `name` in /proc/self/status.
inline int64_t status_kilobytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  return 0;
}

inline double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Runs `read` on something of `input_bytes` and returns the message of its Error, "" if it finished. Whichever it was,
// it took at most 2 s of the processor and 256 MB beyond the input: the promise of core/foreign/limits.h. (Under a sanitizer,
// which takes several times as much of both, only that it ends.)
template <typename Read>
std::string message_of_hostile([[maybe_unused]] size_t input_bytes, Read&& read) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak of resident memory begins anew
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
  EXPECT_LE(processor_seconds() - start, 2.0) << message;
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
