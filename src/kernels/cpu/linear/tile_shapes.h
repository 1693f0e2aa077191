// What AMX's LDTILECFG reads: how many bytes the rows of each of eight tiles have, and how many rows. Plain data: files
// compiled for AMX include it. To be given as a constant: g++ 12 takes _tile_loadconfig to read 8 bytes of it, and
// would leave the rest of one on the stack unwritten.
#pragma once
#include <cstdint>

namespace fidelio::cpu {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace fidelio::cpu
