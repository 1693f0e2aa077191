// This file declares the grid points of GGUF's IQ types. A point is a word of two bits a value, or of three (kGrid3..),
// with the first value in the lowest bits.
#pragma once
#include <array>
#include <cstdint>

namespace fidelio::gguf {

// These points have eight values, where 0 to 2 stand for 8, 25 and 43.
extern const std::array<uint16_t, 256> kGrid2xxs;
extern const std::array<uint16_t, 512> kGrid2xs;
extern const std::array<uint16_t, 1024> kGrid2s;
// These points have four values from 0 to 7, which stand for 4, 12, .., 52 and 62 in the first and for 1, 3, .., 15 in
// the second.
extern const std::array<uint16_t, 256> kGrid3xxs;
extern const std::array<uint16_t, 512> kGrid3s;
// These points have eight values, where 0 to 2 stand for -1, 0 and 1.
extern const std::array<uint16_t, 2048> kGrid1;

}  // namespace fidelio::gguf
