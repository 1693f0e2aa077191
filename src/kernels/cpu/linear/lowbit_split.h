// Views that end inside a plane. Such a plane is kept as narrower ones, high bits first, in those bytes of its block that
// are its own anyway:
//
//     4 bits -> 2|1|1   a view ends after 2 or 3 of them: 3 of 8 bits
//     4 bits -> 1|1|2   after 1: 5 of 8 bits
//     2 bits -> 1|1     5 of 6 or of 7 bits
//
//     8 bits, whole        4 4 4 4 4 4 4 4 | 4 4 4 4 4 4 4 4      spans of either plane, lowbit.h
//     split for 3 bits     2 2 2 2 1 1 1 1 1 1 1 1 | (the same)   a view of 3 bits reads 3/8 of the codes
//
// A view's planes are those of a weight of so many bits, and are read by its kernels. The whole weight is put together
// again, two blocks at a time, before its kernels read it: that costs a whole step a fifth to a third, is paid by nobody who
// asked for no such view, and no product knows of it. Rejected: planes that end everywhere, which every step of every
// model would have to put together, and products of whole weights for each of eight ways of splitting them.
#pragma once
#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {

struct PlaneList {
  static constexpr int kMost = 5;
  int count = 0;
  int width[kMost] = {};
  int64_t offset[kMost] = {};  // within a block

  bool ends_at(int bits) const;  // the first ones are the planes of a weight of so many bits
};

// Of a whole weight's layout; `cut`: where one of its planes is split, 0: none is.
PlaneList planes_of(const Layout& whole, int cut);
// Whether a view of `cut` bits, 2 at least, would end inside a plane of codes of `bits`.
bool ends_inside(int bits, int cut);

// In place, of a packed block; and a block as it was.
void split_block(const Layout& whole, int cut, uint8_t* block);
void merge_block(const Layout& whole, int cut, const MergePlane* merge, const uint8_t* block, uint8_t* to);

}  // namespace fidelio::cpu::lowbit
