// This file describes how packed super-blocks (formats/linear_weight.h) lie in memory. It has plain data only, as
// lowbit.h has, whose planes of codes and prepared activations serve here too.
//
//   front:   the table's 16 entries, each + 128 as a byte, in 64 bytes; nothing if codes are integers
//   block:   scales     groups x 16 bytes: s; of codes of 2 bits s + 16 t
//            minima     groups x 16 bytes: t; codes of 4 and 5 bits only
//            super      super-blocks x 16 FP16: d, then, with minima, as many m
//            padding to 64 bytes
//            planes of codes
//
// A span of activations has one scale. A group is a span or half of one:
//
//     y += (d s) s_x (sum of q x) - (m t) s_x (sum of x)      the sums are exact INT32, groups in order
//
// Without minima the middle of the codes is subtracted in integers. Scales d s and offsets m t are made in registers
// once a group, and meet all rows of activations there.
#pragma once
#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {

// A SuperKind is a kind of codes that the kernels are compiled for: integers of 2 to 6 bits, then the table of 16.
constexpr int kSuperKinds = 6, kSuperTable = 5;
constexpr bool has_minima(int kind) { return kind == 0 || kind == 2 || kind == 3; }
constexpr bool has_half_groups(int kind) { return kind == 0 || kind == 1 || kind == 4; }
constexpr bool has_nibbles(int kind) { return kind == 0; }
constexpr int coding_of_super(int kind) { return kind == kSuperTable ? 9 : kind; }
// Returns what is subtracted from a code, or from a table's entry, where there are no minima.
constexpr int middle_of(int kind) { return kind == kSuperTable ? 128 : 1 << (bits_of(coding_of_super(kind)) - 1); }

struct SuperJob {
  Job job;  // Its layout has the scale F16, so that no row scales are read; zero_offset is where minima begin.
  int64_t super_spans;                   // spans of a super-block
  int64_t super_offset, minimum_offset;  // where d and m begin within a block
};

struct SuperKernels {
  void (*a16[kSuperKinds])(const SuperJob&);
  void (*a8[kSuperKinds])(const SuperJob&);
  void (*f32[kSuperKinds])(const SuperJob&);  // or null
};
extern const SuperKernels kSuperPortable, kSuperAvx2, kSuperAvx512, kSuperAmx;

// Calls of.operator()<kind>() for every kind, to fill a table.
template <int kKind = 0, typename Of>
constexpr void for_each_super(const Of& of) {
  if constexpr (kKind < kSuperKinds) {
    of.template operator()<kKind>();
    for_each_super<kKind + 1>(of);
  }
}

}  // namespace fidelio::cpu::lowbit
