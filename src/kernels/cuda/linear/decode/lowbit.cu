// This file packs weights, prepares activations, and chooses a kernel for a product.
#include <algorithm>

#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/decode/lowbit_launch.cuh"
#include "kernels/cuda/linear/decode/lowbit_routed.h"
#include "kernels/cuda/linear/layout/lowbit_codes.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {
namespace {

// ---- Packing. One thread writes the words of one lane for one tile of one block (lowbit_codes.cuh).

struct PackArguments {
  LowbitShape shape;
  CanonicalWeight from;
  int widths[3], planes;
};

__device__ uint32_t canonical_code(const PackArguments& p, int64_t row, int64_t column) {
  if (row >= p.shape.out || column >= p.shape.in) return 0;
  uint32_t code = 0;
  for (int i = 0; i < p.planes; ++i) {
    const int w = p.widths[i];
    const int64_t row_bytes = (p.shape.in * w + 7) / 8;
    const uint32_t byte = p.from.planes[i][row * row_bytes + column * w / 8];
    code = code << w | ((byte >> (column * w % 8)) & ((1u << w) - 1));
  }
  return code;
}

struct PackedLane {
  // The 4-bit plane, the second one of 8 bits, the 2-bit plane and the 1-bit plane.
  uint32_t high[8] = {}, low[8] = {}, two[4] = {}, one[2] = {};
};

__device__ void put(uint32_t& word, uint32_t bits, int width, int at) {  // `at` is taken modulo 32
  for (int i = 0; i < width; ++i) word |= ((bits >> i) & 1) << ((at + i) & 31);
}

__device__ void place(PackedLane& lane, CodeKind kind, int bits, int c, int h, int r, int pair, uint32_t q) {
  const int word4 = (c / 2) * 4 + 2 * (c % 2) + h, nibble = nibble_of(kind, r, pair), byte = 16 * pair + 8 * (r / 2),
            odd = r % 2;
  if (kind == CodeKind::grid && bits >= 4) {
    put(lane.high[word4], q & 7, 3, nibble), put(lane.high[word4], q >> 3 & 1, 1, high_bit_of(r, pair));
    if (bits == 5) put(lane.one[c / 2], q >> 4, 1, byte + 4 * (c % 2) + 2 * h + odd);
    if (bits == 6) put(lane.two[c], q >> 4, 2, byte + 2 * (2 * h + odd));
    return;
  }
  if (bits >= 4) put(lane.high[word4], q >> (bits - 4), 4, nibble);
  if (bits == 8) put(lane.low[word4], q & 15, 4, nibble);
  if (bits == 7) put(lane.two[c], (q >> 1) & 3, 2, byte + 2 * (2 * h + odd));
  if (bits == 6) put(lane.two[c], q & 3, 2, byte + 2 * (2 * h + odd));
  if (bits == 7 || bits == 5) put(lane.one[c / 2], q & 1, 1, byte + 4 * (c % 2) + 2 * h + odd);
  if (bits == 3)
    put(lane.two[c], q >> 1, 2, nibble + 1 + 2 * h), put(lane.one[c / 2], q & 1, 1, nibble + 2 * (c % 2) + h);
  if (bits == 2) put(lane.two[c], q, 2, nibble + 2 * h);
}

__global__ void pack_codes(PackArguments p, uint8_t* blocks) {
  const int64_t column_blocks = p.shape.column_blocks(), block = blockIdx.x;
  const int tile = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, bits = p.shape.bits;
  const int64_t row0 = block / column_blocks * kBlockRows + tile * 16, column0 = block % column_blocks * kBlockColumns;
  PackedLane packed;
  for (int c = 0; c < 4; ++c)
    for (int h = 0; h < 2; ++h)
      for (int r = 0; r < 4; ++r)
        for (int pair = 0; pair < 2; ++pair) {
          const int64_t row = row0 + g + (r & 1 ? 8 : 0),
                        column = column0 + 32 * c + 8 * t + 4 * h + (r & 2 ? 2 : 0) + pair;
          place(packed, p.shape.kind, bits, c, h, r, pair, canonical_code(p, row, column));
        }
  uint8_t* to = blocks + block * p.shape.block_bytes();
  const auto store4 = [&](const uint32_t* words) {
    for (int i = 0; i < 8; ++i)
      reinterpret_cast<uint32_t*>(to + tile * 1024 + i / 4 * 512 + lane * 16)[i % 4] = words[i];
    to += 8192;
  };
  if (has_plane4(bits)) store4(packed.high);
  if (bits == 8) store4(packed.low);
  if (has_plane2(bits)) {
    for (int i = 0; i < 4; ++i) reinterpret_cast<uint32_t*>(to + tile * 512 + lane * 16)[i] = packed.two[i];
    to += 4096;
  }
  if (has_plane1(bits))
    for (int i = 0; i < 2; ++i) reinterpret_cast<uint32_t*>(to + tile * 256 + lane * 8)[i] = packed.one[i];
}

__global__ void pack_scales(PackArguments p, uint8_t* blocks) {
  const int64_t column_blocks = p.shape.column_blocks(), block = blockIdx.x;
  const int bits = p.shape.bits, groups_here = p.shape.groups_per_block();
  for (int group = 0; group < groups_here; ++group) {
    const int i = threadIdx.x, tile = i / 16, g = i % 16 / 2, upper = i % 2;
    uint8_t* scale = blocks + block * p.shape.block_bytes() + p.shape.code_bytes() +
                     group * (p.shape.scale_bytes() + p.shape.zero_bytes());
    uint8_t* zero = scale + p.shape.scale_bytes();
    const int64_t row = block / column_blocks * kBlockRows + tile * 16 + g + 8 * upper;
    const int64_t column = block % column_blocks * kBlockColumns + group * p.shape.group;
    const bool there = row < p.shape.out && column < p.shape.in;
    const int64_t at = there ? row * p.from.groups + column / p.from.group_columns : 0;
    if (p.shape.kind == CodeKind::integer && !p.shape.byte_scale)
      reinterpret_cast<uint16_t*>(scale)[i] = there ? static_cast<const uint16_t*>(p.from.scale)[at] : uint16_t{0};
    else
      scale[i] = there ? static_cast<const uint8_t*>(p.from.scale)[at] : uint8_t{0};
    if (has_entries(p.shape.kind)) continue;
    int z = 1 << (bits - 1);
    if (p.from.zero && there) {
      z = 0;
      const uint8_t* bytes = p.from.zero + row * ((p.from.groups * bits + 7) / 8);
      const int64_t bit0 = column / p.from.group_columns * bits;
      for (int j = 0; j < bits; ++j) z |= ((bytes[(bit0 + j) / 8] >> ((bit0 + j) % 8)) & 1) << j;
    }
    zero[i] = static_cast<uint8_t>(z << code_shift(p.shape.kind, bits, upper));
  }
}

// ---- Activations. Thread block (m, i) prepares blocks 8 i .. 8 i + 7 of row m, one for each warp.
__global__ void __launch_bounds__(256) prepare(const float* x, int columns, PreparedRows to) {
  begin_kernel();
  const int m = blockIdx.x, column_blocks = (columns + kBlockColumns - 1) / kBlockColumns,
            block = blockIdx.y * 8 + threadIdx.x / 32;
  if (block >= column_blocks) return;
  prepare_block(load4(x + m * int64_t{columns}, block * kBlockColumns + threadIdx.x % 32 * 4, columns), m, gridDim.x,
                block, column_blocks, to);
}

constexpr int kPlaneWidths[9][3] = {{}, {}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {4, 4}};

}  // namespace

void pack_lowbit(Stream stream, const LowbitShape& shape, const CanonicalWeight& from, uint8_t* blocks) {
  PackArguments p{shape, from, {}, 0};
  for (int i = 0; i < 3 && kPlaneWidths[shape.bits][i] > 0; ++i) p.widths[p.planes++] = kPlaneWidths[shape.bits][i];
  const unsigned count = static_cast<unsigned>(shape.row_blocks() * shape.column_blocks());
  pack_codes<<<count, 256, 0, stream>>>(p, blocks);
  pack_scales<<<count, kBlockRows, 0, stream>>>(p, blocks);
  cuda_check(cudaGetLastError(), "packing a weight");
}

void prepare_input(Stream stream, const float* x, int64_t rows, int64_t columns, const PreparedRows& to) {
  const int64_t column_blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  launch("preparing activations", stream,
         dim3(static_cast<unsigned>(rows), static_cast<unsigned>((column_blocks + 7) / 8)), 256, 0, prepare, x,
         static_cast<int>(columns), to);
}

namespace {

// Launchers are the functions that launch the kernels of one kind of code: for rows, and for the slots of experts.
struct Launchers {
  LowbitLauncher rows;
  RoutedLauncher routed;
  TiledLauncher tiled;
};
template <CodeKind kind, int bits, bool byte_scale>
struct Launching {
  static constexpr Launchers launchers{launch_lowbit_rows<kind, bits, byte_scale>,
                                       launch_lowbit_routed<kind, bits, byte_scale>,
                                       launch_lowbit_tiled<kind, bits, byte_scale>};
};

Launchers launchers_of(const LowbitShape& s) {
  if (s.kind == CodeKind::half) return {launch_lowbit_rows<CodeKind::half, 16, false>, nullptr, nullptr};
  if (s.below > 0)
    return s.byte_scale ? Launching<CodeKind::high, 4, true>::launchers
                        : Launching<CodeKind::high, 4, false>::launchers;
  return launchers_of<Launching>(s);
}

LowbitTarget target_of(const LowbitWeight& w, float* y, int first_row_block) {
  return {w.blocks, w.row_factor, w.bias, w.grid, y, static_cast<int>(w.shape.out), first_row_block, w.factor};
}
void tell_shape(const LowbitShape& shape, LowbitArguments& p) {
  p.column_blocks = static_cast<int>(shape.column_blocks());
  p.block_bytes = static_cast<int>(shape.block_bytes());
  p.scales_at = static_cast<int>(shape.code_bytes());
  p.twice_middle = shape.twice_middle();
  p.unit = 0.5f * code_unit(shape.kind, shape.bits, false);
  p.columns = static_cast<int>(shape.in);
  p.group_chunks = shape.group / 32;
}

// Returns how many rows are multiplied while a weight is read once. It is two chunks where the kernels for 64 rows
// can be used.
int rows_at_once(const LowbitShape& shape) {
  return is_hopper() && shape.kind != CodeKind::half && shape.group >= 64 ? 2 * kMaxRows : kMaxRows;
}

}  // namespace

bool joins(std::span<const LowbitOutput> outputs, LowbitJoin::Kind kind, int rows) {
  const bool gate = kind == LowbitJoin::Kind::gate;
  if (!is_hopper() || outputs.size() != (gate ? 2 : 1)) return false;
  for (const LowbitOutput& o : outputs)
    if (o.weight->shape.kind == CodeKind::half || !joins_rows(o.weight->shape.bits - o.weight->shape.below, rows) ||
        o.weight->shape.out % kBlockRows != 0 || o.weight->shape.out != outputs[0].weight->shape.out)
      return false;
  return true;
}

void lowbit_linear(Stream stream, const LowbitProduct& product, std::span<const Upcoming> upcoming) {
  const LowbitShape& shape = product.outputs[0].weight->shape;
  LowbitArguments p = {};
  int row_blocks = 0;
  for (int i = 0; i < product.count; ++i) {
    const LowbitWeight& w = *product.outputs[i].weight;
    p.target[p.targets++] = target_of(w, product.outputs[i].y, row_blocks);
    row_blocks += static_cast<int>(w.shape.row_blocks());
  }
  tell_shape(shape, p);
  p.add = product.add;
  p.norm = product.norm;
  p.join = product.join;
  p.room = static_cast<int>(input_rows(product.x.rows));
  const int most = rows_at_once(shape);
  for (int first = 0; first < product.x.rows; first += most) {
    p.x = product.x.blocks + first / kMaxRows * input_bytes(kMaxRows, shape.column_blocks());
    p.rows = std::min(most, product.x.rows - first);
    for (int i = 0; i < product.count; ++i)
      p.target[i].y = product.outputs[i].y + first * product.outputs[i].weight->shape.out;
    if (first + p.rows == product.x.rows)
      for (size_t i = 0; i < upcoming.size(); ++i)
        p.upcoming[i] = {upcoming[i].data, upcoming[i].bytes, upcoming[i].piece, upcoming[i].stride};
    launchers_of(shape).rows(stream, p, row_blocks);
  }
}

std::vector<std::byte> routed_table(std::span<const LowbitWeight* const> weights) {
  std::vector<LowbitTarget> targets;
  for (const LowbitWeight* w : weights) targets.push_back(target_of(*w, nullptr, 0));
  const auto bytes = std::as_bytes(std::span(targets));
  return {bytes.begin(), bytes.end()};
}

void lowbit_routed(Stream stream, const RoutedInput& input, const RoutedOutputs& outputs) {
  TiledArguments p = {};
  static_cast<RoutedTargets&>(p) = targets_of(outputs);
  tell_shape(outputs.shape, p);
  p.x = input.x;
  p.rows = 1;
  p.room = static_cast<int>(input_rows(1));
  p.experts = input.experts;
  p.slots_per_input = input.slots_per_input;
  p.input_bytes = static_cast<int>(input_bytes(1, outputs.shape.column_blocks()));
  p.tiles = input.tiles;
  p.tile_count = input.tile_count;
  const auto blocks = [&](int64_t of) { return static_cast<int>(of) * p.outputs * p.blocks_each; };
  const Launchers launch = launchers_of(outputs.shape);
  if (input.tiles)
    launch.tiled(stream, p, blocks(input.most_tiles));
  else
    launch.routed(stream, p, blocks(input.slots));
}

}  // namespace fidelio::cuda
