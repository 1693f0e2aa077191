// This file finds the nearest format of ours to the name that another program gives to a quantisation format. Messages
// show it.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// Returns, for example, "llama.cpp's Q4_K_M: 4-bit codes in groups of 32; the nearest here is int4g32zs8", or, for a
// typing error, "the nearest format is int4g128z". Returns "" where nothing is near. Case does not count.
std::string nearest_format(std::string_view name);

}  // namespace fidelio
