// This file formats and parses sizes in bytes as people write them.
#pragma once
#include <cstdint>
#include <string>

namespace fidelio {

std::string bytes_text(int64_t bytes);  // The result looks like "24.4 MB".
// Parses "1200000", "1.2MB", "800 kB" or "3MiB" and returns bytes. Units are powers of 1000, or of 1024 where they are
// written with an i. Throws Error naming what was expected.
int64_t parse_bytes(const std::string& text);

}  // namespace fidelio
