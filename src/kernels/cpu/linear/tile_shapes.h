// This file has what AMX's LDTILECFG reads: how many rows each of eight tiles has, and how many bytes a row. It is
// plain data, since files compiled for AMX include it. It must be given as a constant: g++ 12 takes
// _tile_loadconfig() to read only 8 bytes of it, and would leave the rest of one on the stack unwritten.
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
