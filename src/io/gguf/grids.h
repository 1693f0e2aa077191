// The points of GGUF's IQ types: a word of two bits a value, or of three (kGrid3..), the first in the lowest.
#pragma once
#include <array>
#include <cstdint>

namespace fidelio::gguf {

// Eight values, 0 to 2 for 8, 25 and 43.
extern const std::array<uint16_t, 256> kGrid2xxs;
extern const std::array<uint16_t, 512> kGrid2xs;
extern const std::array<uint16_t, 1024> kGrid2s;
// Four values, 0 to 7: for 4, 12, .., 52 and 62; for 1, 3, .., 15.
extern const std::array<uint16_t, 256> kGrid3xxs;
extern const std::array<uint16_t, 512> kGrid3s;
// Eight values, 0 to 2 for -1, 0 and 1.
extern const std::array<uint16_t, 2048> kGrid1;

}  // namespace fidelio::gguf
