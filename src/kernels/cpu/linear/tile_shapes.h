// This file has what AMX's LDTILECFG reads (how many rows each of eight tiles has, and how many bytes a row), and how
// the rows of a batch are cut into tiles. It is plain data, since files compiled for AMX include it. TileShapes must be
// given as a constant: g++ 12 takes _tile_loadconfig() to read only 8 bytes of it, and would leave the rest of one on
// the stack unwritten.
#pragma once
#include <cstdint>

namespace fidelio::cpu {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

constexpr int kTileRows = 16;

// Tiles of rows end with the batch: the last one begins early, and the rows that it shares with the one before are
// not stored.
struct TileRows {
  int64_t begin, end, all;
  int64_t tiles() const { return (end - begin + kTileRows - 1) / kTileRows; }
  int64_t first_of(int64_t tile) const {
    const int64_t first = begin + tile * kTileRows;
    return first + kTileRows <= all ? first : all - kTileRows;
  }
};

}  // namespace fidelio::cpu
