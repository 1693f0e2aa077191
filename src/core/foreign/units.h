// Sizes in bytes, as people read and write them.
#pragma once
#include <cstdint>
#include <string>

namespace fidelio {

std::string bytes_text(int64_t bytes);  // "24.4 MB"
// "1200000", "1.2MB", "800 kB", "3MiB": units of 1000, or of 1024 where they are written with an i. Throws Error naming
// what was expected.
int64_t parse_bytes(const std::string& text);

}  // namespace fidelio
