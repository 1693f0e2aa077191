// This file chooses which kernel multiplies how many rows. All of them give a row the same bits.
#pragma once
#include "kernels/cuda/linear/batch/lowbit_panel.cuh"
#include "kernels/cuda/linear/decode/lowbit_stream.cuh"

namespace fidelio::cuda {

// Chooses a kernel for FP16 values, as measured on an H200. The best fills the multiprocessors in one go, with enough
// data in flight.
template <typename Traits>
void launch_halves(Stream stream, const LowbitArguments& p, int row_blocks) {
  const int tiles = row_blocks * 8, sms = multiprocessors();
  if (p.room > 16) return launch_lowbit<Traits, 2, 4, 1, 1>(stream, p, row_blocks);
  if (p.room > 8) return launch_lowbit<Traits, 1, 2, 1, 3>(stream, p, row_blocks);
  if (tiles <= 2 * sms) return launch_lowbit<Traits, 1, 1, 2, 2>(stream, p, row_blocks);
  if (p.rows == 1 && tiles > kLongTiles * sms) return launch_lowbit<Traits, 2, 1, 2, 1>(stream, p, row_blocks);
  launch_lowbit<Traits, 1, 1, 1, 3>(stream, p, row_blocks);
}

// Returns the most stages, up to `most`, with which kResident thread blocks fit on a multiprocessor.
template <typename Traits, int kTiles, int kRows, int most, int kResident>
constexpr int fitting_stages() {
  using One = StreamShape<Traits, kTiles, kRows, 1>;
  constexpr int kRoomForRings = kMostShared / kResident - 1024 - join_bytes(kRows),
                kFitting = kRoomForRings / (kParts * One::kRings);
  return std::max(1, std::min(most, kFitting));
}
template <typename Traits, int kTiles, int kRows, int kMostStages, int kResident, bool kRounds = (kRows > 1),
          typename Arguments>
void launch_fitting(Stream stream, const Arguments& p, int row_blocks) {
  constexpr int kStages = fitting_stages<Traits, kTiles, kRows, kMostStages, kResident>();
  static_assert(!before_hopper(kTiles, kRows, kStages, kResident));
  launch_stream<Traits, kTiles, kRows, kStages, kResident, kRounds>(stream, p, row_blocks);
}
template <typename Traits, int kTiles, int kRows, int kStages, typename Arguments>
void launch_before_hopper(Stream stream, const Arguments& p, int row_blocks) {
  static_assert(before_hopper(kTiles, kRows, kStages, 1));
  launch_stream<Traits, kTiles, kRows, kStages, 1>(stream, p, row_blocks);
}
// Launches a product of one row that may make the next product's row.
template <typename Traits, int kTiles, int kMostStages, int kResident>
void launch_joining(Stream stream, const LowbitArguments& p, int row_blocks) {
  if (p.join.rounding.lanes > 0)
    return launch_fitting<Traits, kTiles, 1, kMostStages, kResident, true>(stream, p, row_blocks);
  launch_fitting<Traits, kTiles, 1, kMostStages, kResident>(stream, p, row_blocks);
}

// Launches a product of integers or grids, by width, rows and number of tiles. `few` means that a multiprocessor has
// at most one thread block of two tiles, `many` that it has several one after the other. The choices were measured on
// an H200 (NOTES.md) for 2, 4, 5, 6 and 8 bits at five shapes.
//
// These rules explain them. With few tiles, as much as possible should be on its way into shared memory before the
// activations come. Tiles that fill the multiprocessors once do best with two thread blocks on each, and half of a
// part on its way (with 8 bits only 3 / 8 fit). Many tiles do best with small thread blocks, so that one loads while
// another multiplies (up to 4 bits there are four of them, since registers suffice). In a decode step every product
// also needs room for the rings of the next one, so there are no more stages than a part has blocks. Clusters (of a
// join) need room for two thread blocks on a multiprocessor, or some of them run last and alone (4 bits, 4096 x
// 14336: 1.79 ms a step so, 1.97 with one). From 5 rows on, activations are as many bytes as weights, so more outputs
// should share them.
template <typename Traits>
void launch_integers(Stream stream, const LowbitArguments& p, int row_blocks) {
  const int tiles = row_blocks * 8, sms = multiprocessors();
  const bool few = tiles <= 2 * sms, many = tiles > 4 * sms;
  if (!is_hopper()) {  // it must fit 96 KB of shared memory
    if (p.room == 8 && p.rows == 1) return launch_before_hopper<Traits, 2, 1, 2>(stream, p, row_blocks);
    if (p.room == 8) return launch_before_hopper<Traits, 1, 8, 2>(stream, p, row_blocks);
    return launch_before_hopper<Traits, 1, kMaxRows, 1>(stream, p, row_blocks);
  }
  if constexpr (Traits::kGroups <= 2)
    if (p.rows > kMaxRows) return launch_panel<Traits, 2 * kMaxRows>(stream, p, row_blocks);
  if (p.room > 16) return launch_panel<Traits, 32>(stream, p, row_blocks);
  if (p.room > 8) return launch_panel<Traits, 16>(stream, p, row_blocks);
  // A short part has no blocks for this many stages. But without them some multiprocessors would get more than two
  // thread blocks and others none.
  constexpr int kShort = Traits::bits == 2 ? 8 : Traits::bits == 3 ? 6 : 4;
  if (p.rows == 1) {
    const bool joins = p.join.kind != LowbitJoin::Kind::none;
    if (few && (joins || p.column_blocks <= 4 * kParts))
      return launch_joining<Traits, 2, kShort, 2>(stream, p, row_blocks);
    if (few) return launch_fitting<Traits, 2, 1, 8, 1>(stream, p, row_blocks);
    if (many) return launch_joining < Traits, 2, 2, Traits::bits <= 4 ? 4 : 3 > (stream, p, row_blocks);
    return launch_joining < Traits, 2, 4, Traits::bits == 2 ? 3 : 2 > (stream, p, row_blocks);
  }
  if (p.rows <= 4) {
    // Clusters need room for two thread blocks here too, if both can have two stages. (A step of four rows on an H200
    // makes 2,803 tokens/s so with 4 bits, 2,633 with one thread block. With 8 bits, which leave room for one stage
    // each, it makes 1,738 and 1,762.)
    if constexpr (Traits::bits >= 4 && fitting_stages<Traits, 4, 4, 2, 2>() == 2)
      if (many) return launch_fitting<Traits, 4, 4, 2, 2>(stream, p, row_blocks);
    return launch_fitting<Traits, 4, 4, 3, 1>(stream, p, row_blocks);
  }
  if (few) return launch_fitting < Traits, 2, 8, Traits::bits == 2 ? 8 : 4, 1 > (stream, p, row_blocks);
  if (many) return launch_fitting<Traits, 4, 8, 2, 1>(stream, p, row_blocks);
  launch_fitting<Traits, 4, 8, 4, 1>(stream, p, row_blocks);
}

template <typename Traits>
void launch_lowbit_tiles(Stream stream, const LowbitArguments& p, int row_blocks) {
  if constexpr (Traits::kHalf)
    launch_halves<Traits>(stream, p, row_blocks);
  else
    launch_integers<Traits>(stream, p, row_blocks);
}

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks) {
  with_group<kind, bits, byte_scale>(p.group_chunks, [&]<typename Traits>(std::type_identity<Traits>) {
    launch_lowbit_tiles<Traits>(stream, p, row_blocks);
  });
}

// Launches the products of experts' slots, one row each. A hundred thread blocks or more are chosen as for `many`
// above.
template <typename Traits>
void launch_routed_tiles(Stream stream, const RoutedArguments& p, int row_blocks) {
  if constexpr (!Traits::kHalf) {
    if (!is_hopper()) return launch_before_hopper<Traits, 2, 1, 2>(stream, p, row_blocks);
    launch_fitting<Traits, 2, 1, 2, Traits::bits <= 4 ? 4 : 3>(stream, p, row_blocks);
  }
}
template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_routed(Stream stream, const RoutedArguments& p, int row_blocks) {
  with_group<kind, bits, byte_scale>(p.group_chunks, [&]<typename Traits>(std::type_identity<Traits>) {
    launch_routed_tiles<Traits>(stream, p, row_blocks);
  });
}

template <typename Traits>
void launch_tiles(Stream stream, const TiledArguments& p, int row_blocks) {
  if constexpr (!Traits::kHalf) {
    if (!is_hopper()) return launch_before_hopper<Traits, 1, 8, 2>(stream, p, row_blocks);
    launch_fitting<Traits, 4, 8, 2, 1>(stream, p, row_blocks);
  }
}
template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_tiled(Stream stream, const TiledArguments& p, int row_blocks) {
  with_group<kind, bits, byte_scale>(p.group_chunks, [&]<typename Traits>(std::type_identity<Traits>) {
    launch_tiles<Traits>(stream, p, row_blocks);
  });
}

}  // namespace fidelio::cuda
