// Which kernel multiplies how many rows. All give a row the same bits.
#pragma once
#include "kernels/cuda/linear/batch/lowbit_panel.cuh"
#include "kernels/cuda/linear/decode/lowbit_stream.cuh"

namespace fidelio::cuda {

// FP16 values. Measured on an H200: what fills the multiprocessors in one go, with enough in flight.
template <typename Traits>
void launch_halves(Stream stream, const LowbitArguments& p, int row_blocks) {
  const int tiles = row_blocks * 8, sms = multiprocessors();
  if (p.room > 16) return launch_lowbit<Traits, 2, 4, 1, 1>(stream, p, row_blocks);
  if (p.room > 8) return launch_lowbit<Traits, 1, 2, 1, 3>(stream, p, row_blocks);
  if (tiles <= 2 * sms) return launch_lowbit<Traits, 1, 1, 2, 2>(stream, p, row_blocks);
  if (p.rows == 1 && tiles > kLongTiles * sms) return launch_lowbit<Traits, 2, 1, 2, 1>(stream, p, row_blocks);
  launch_lowbit<Traits, 1, 1, 1, 3>(stream, p, row_blocks);
}

// The most stages, up to `most`, with which so many thread blocks are on a multiprocessor.
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
// Of one row that may make the next one.
template <typename Traits, int kTiles, int kMostStages, int kResident>
void launch_joining(Stream stream, const LowbitArguments& p, int row_blocks) {
  if (p.join.rounding.lanes > 0)
    return launch_fitting<Traits, kTiles, 1, kMostStages, kResident, true>(stream, p, row_blocks);
  launch_fitting<Traits, kTiles, 1, kMostStages, kResident>(stream, p, row_blocks);
}

// Integers and grids, by the width, the rows and how many tiles there are: `few` leave a multiprocessor one thread block
// of two tiles, `many` several one after the other. Measured on an H200 (NOTES.md) for 2, 4, 5, 6 and 8 bits at
// five shapes. What decides: few tiles want all they can have on its way into shared memory before the activations
// come; tiles that fill the multiprocessors once want two thread blocks on each with half of a part on its way (of 8
// bits 3 / 8 fit); many tiles want thread blocks that are small, so that one loads while another multiplies (up to 4
// bits four of them: the registers are enough). In a decode step every product also wants room for the rings of the
// next one beside its own: no more stages than a part has blocks; and clusters (of a join) want room for two thread
// blocks a multiprocessor, or some of them come last, alone (4 bits, 4096 x 14336: 1.79 ms a step so, 1.97 with one).
// From 5 rows on activations are as many bytes as weights: more outputs share them.
template <typename Traits>
void launch_integers(Stream stream, const LowbitArguments& p, int row_blocks) {
  const int tiles = row_blocks * 8, sms = multiprocessors();
  const bool few = tiles <= 2 * sms, many = tiles > 4 * sms;
  if (!is_hopper()) {  // in 96 KB of shared memory
    if (p.room == 8 && p.rows == 1) return launch_before_hopper<Traits, 2, 1, 2>(stream, p, row_blocks);
    if (p.room == 8) return launch_before_hopper<Traits, 1, 8, 2>(stream, p, row_blocks);
    return launch_before_hopper<Traits, 1, kMaxRows, 1>(stream, p, row_blocks);
  }
  if constexpr (Traits::kGroups <= 2)
    if (p.rows > kMaxRows) return launch_panel<Traits, 2 * kMaxRows>(stream, p, row_blocks);
  if (p.room > 16) return launch_panel<Traits, 32>(stream, p, row_blocks);
  if (p.room > 8) return launch_panel<Traits, 16>(stream, p, row_blocks);
  // Stages that a short part has no blocks for, but without which more than two thread blocks come to some
  // multiprocessors and none to others.
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
    // Clusters want room for two thread blocks here too, if both have two stages (a step of four rows on an H200: of 4
    // bits 2,803 tokens/s so, 2,633 with one; of 8 bits, which have room for one stage each, 1,738 and 1,762).
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

// Experts' slots: a row each, and of a hundred thread blocks or more, as `many` above.
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
