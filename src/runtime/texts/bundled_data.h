// This file declares the bundled texts as they lie in the program, as files of gzip. The build writes the source that
// holds them.
#pragma once
#include <span>
#include <string_view>

namespace fidelio {

struct BundledData {
  std::string_view name;
  const unsigned char *begin, *end;
};
std::span<const BundledData> bundled_data();

}  // namespace fidelio
