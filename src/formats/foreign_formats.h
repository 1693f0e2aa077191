// Names that other programs have for what a weight is stored as, and the nearest format of ours: for messages.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// "llama.cpp's Q4_K_M: 4-bit codes in groups of 32; the nearest here is int4g32zs8", or, for a slip of the pen, "the
// nearest format is int4g128z"; "" where nothing is near. Case does not count.
std::string nearest_format(std::string_view name);

}  // namespace fidelio
