// This file has the parts that the fuzzers share. An input may end in text or in an Error; anything else is a finding.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

// A millisecond per input was spent on the stacks of allocations and on memory in quarantine. A finding is run again
// with ASAN_OPTIONS=malloc_context_size=30 to see where its memory came from.
extern "C" const char* __asan_default_options() { return "malloc_context_size=2:quarantine_size_mb=8"; }

namespace fidelio::fuzzing {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs `read` and accepts an Error as well as an end.
template <typename Read>
void try_to(Read&& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

// This is a file in memory that readers can open by its name.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    check(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "no memory for a file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace fidelio::fuzzing
