// This file turns codes into the packed planes of lowbit.h and back.
#include <cstring>

#include "kernels/cpu/linear/lowbit_linear.h"

namespace fidelio::cpu {
namespace {

using lowbit::kBlock;
using lowbit::kSpan;
using lowbit::Layout;

// A Place is the byte, within a span of a plane, that holds row r, column c (0..31) of a block, and the bit where the
// field begins.
struct Place {
  int64_t byte;
  int shift;
};
Place place_of(int width, int r, int c) {
  const int quads = 8 / width, quad = c / 4;  // quads that a vector holds
  return {64 * (quad / quads) + 4 * r + c % 4, lowbit::field_shift(width, quad % quads)};
}

// Returns the four codes of the quad at column c (a multiple of 4) of a plane's row, one in each byte. Codes past the
// row's end are whatever its last byte holds: they only ever meet activations that are zero.
template <int kWidth>
uint32_t quad_of(const uint8_t* row, int64_t row_bytes, int64_t c) {
  const int64_t at = c * kWidth / 8;
  uint32_t x = row[at];
  if constexpr (kWidth == 4) {
    if (at + 1 < row_bytes) x |= uint32_t{row[at + 1]} << 8;
    x = (x | x << 8) & 0x00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0fu;
  }
  if constexpr (kWidth == 2) {
    x = (x | x << 12) & 0x000f000fu;
    return (x | x << 6) & 0x03030303u;
  }
  x = (x >> (c % 8)) & 15u;
  x = (x | x << 14) & 0x00030003u;
  return (x | x << 7) & 0x01010101u;
}

template <int kWidth>
void pack_plane(const uint8_t* row, int64_t row_bytes, int r, int64_t columns, uint8_t* plane) {
  constexpr int64_t kQuads = 8 / kWidth;  // quads of a vector
  for (int64_t quad = 0; 4 * quad < columns; ++quad) {
    uint8_t* at = plane + quad / kQuads * 64 + 4 * r;
    uint32_t fields;
    std::memcpy(&fields, at, 4);
    fields |= quad_of<kWidth>(row, row_bytes, 4 * quad) << lowbit::field_shift(kWidth, static_cast<int>(quad % kQuads));
    std::memcpy(at, &fields, 4);
  }
}

}  // namespace

void place_planes(Layout& l, int bits, int64_t end) {
  int64_t at = (end + 63) / 64 * 64;
  const auto widths = plane_widths(bits);
  for (size_t i = 0; i < widths.size(); ++i) {
    l.plane_offset[i] = at;
    at += l.spans * 64 * widths[i];
  }
  l.block_bytes = at;
}

void pack_codes(const Codes& codes, const Layout& l, int64_t block, uint8_t* base) {
  const auto widths = plane_widths(codes.bits);
  for (size_t p = 0; p < widths.size(); ++p) {
    const auto pack_row = widths[p] == 4 ? pack_plane<4> : widths[p] == 2 ? pack_plane<2> : pack_plane<1>;
    const int64_t row_bytes = codes.planes[p].view.shape[1];
    const auto* rows = codes.planes[p].as<const uint8_t>().data();
    for (int r = 0; r < kBlock && block * kBlock + r < l.out; ++r)
      pack_row(rows + (block * kBlock + r) * row_bytes, row_bytes, r, l.in, base + l.plane_offset[p]);
  }
}

void pack_groups(const Tensor& scale, const Layout& l, int64_t block, uint8_t* to) {
  const int64_t size = size_of(scale.dtype), groups = scale.shape[1];
  const auto* from = reinterpret_cast<const uint8_t*>(scale.data);
  for (int64_t r = 0; r < kBlock && block * kBlock + r < l.out; ++r)
    for (int64_t g = 0; g < groups; ++g)
      std::memcpy(to + (g * kBlock + r) * size, from + ((block * kBlock + r) * groups + g) * size, size);
}

void read_codes(const lowbit::PlaneList& planes, const uint8_t* base, int r, std::span<uint8_t> codes) {
  Place places[lowbit::PlaneList::kMost][kSpan];
  for (int p = 0; p < planes.count; ++p)
    for (int c = 0; c < kSpan; ++c) places[p][c] = place_of(planes.width[p], r, c);
  for (size_t c = 0; c < codes.size(); ++c) {
    const size_t s = c / kSpan;
    int code = 0;
    for (int p = 0; p < planes.count; ++p) {
      const int width = planes.width[p];
      const Place& place = places[p][c % kSpan];
      const uint8_t byte = base[planes.offset[p] + static_cast<int64_t>(s) * 64 * width + place.byte];
      code = code << width | ((byte >> place.shift) & ((1 << width) - 1));
    }
    codes[c] = static_cast<uint8_t>(code);
  }
}

}  // namespace fidelio::cpu
