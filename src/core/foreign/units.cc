#include "core/foreign/units.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/error.h"

namespace fidelio {

std::string bytes_text(int64_t bytes) {
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
}

int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},    {"b", 1},    {"k", 1e3},  {"kb", 1e3},  {"kib", 0x1p10}, {"m", 1e6},      {"mb", 1e6},
      {"g", 1e9}, {"gb", 1e9}, {"t", 1e12}, {"tb", 1e12}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit;
  for (const char* c = end; *c != '\0'; ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  const auto found = kUnits.find(unit);
  const bool number_of_unit = end != text.c_str() && found != kUnits.end();
  const double bytes = number_of_unit ? number * found->second : 0;
  check(std::isfinite(bytes) && bytes >= 1 && bytes < 9e18,
        "\"{}\" is not a size: expected a number of bytes from 1, such as 1200000, 1.2MB (1000 kB of 1000 bytes) or "
        "1.2MiB (1024 KiB of 1024 bytes)",
        text);
  return static_cast<int64_t>(bytes);
}

}  // namespace fidelio
