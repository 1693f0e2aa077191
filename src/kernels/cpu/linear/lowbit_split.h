// This file provides views that end inside a plane. Such a plane is kept as narrower ones, high bits first, in the
// bytes of its block that the plane itself would take:
//
//     4 bits -> 2|1|1   for a view that ends after 2 or 3 of them, e.g. 3 of 8 bits
//     4 bits -> 1|1|2   for a view that ends after 1, e.g. 5 of 8 bits
//     2 bits -> 1|1     for a view of 5 of 6 or of 7 bits
//
//     8 bits, whole        4 4 4 4 4 4 4 4 | 4 4 4 4 4 4 4 4      spans of either plane, lowbit.h
//     split for 3 bits     2 2 2 2 1 1 1 1 1 1 1 1 | (the same)   a view of 3 bits reads 3/8 of the codes
//
// The planes of a view are those of a weight with so many bits, and are read by that weight's kernels. The whole
// weight is reassembled, two blocks at a time, before its kernels read it. That makes a step with the whole weight a
// fifth to a third slower, but only for users who asked for such a view, and no product needs to know about it.
//
// Two alternatives were rejected: planes that end everywhere, which every step of every model would have to
// reassemble; and products of whole weights for each of eight ways of splitting them.
#pragma once
#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {

struct PlaneList {
  static constexpr int kMost = 5;
  int count = 0;
  int width[kMost] = {};
  int64_t offset[kMost] = {};  // within a block

  bool ends_at(int bits) const;  // the first planes are those of a weight of so many bits
};

// Returns the planes of a whole weight's layout; `cut` is where one of them is split, 0 if none is.
PlaneList planes_of(const Layout& whole, int cut);
// Returns true if a view of `cut` bits, at least 2, would end inside a plane of codes of `bits`.
bool ends_inside(int bits, int cut);

// The first function splits a packed block in place; the second writes the block, as it was before, to `to`.
void split_block(const Layout& whole, int cut, uint8_t* block);
void merge_block(const Layout& whole, int cut, const MergePlane* merge, const uint8_t* block, uint8_t* to);

}  // namespace fidelio::cpu::lowbit
