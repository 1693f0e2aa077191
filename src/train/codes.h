// A matrix of codes as something with gradients. Every format is
//
//     value = scale (level[q] - shift) + offset        q = the whole number nearest to position + shift, kept in range
//
// with one scale, shift and offset a group. level ascends: 0 .. 2^b - 1 for integers (less 2^(b-1) if symmetric), the
// codebook of a grid, E2M1 and E4M3 themselves. position is the latent of a code, counted in codes: rounding it is
// straight-through (Bengio et al. 2013), so every format moves in the same unit, a cell. shift is the integers' zero
// point: position + shift is rounded, so a zero point that moves takes the range along and leaves the values.
//
// What is stored of scale, shift and offset follows from the format (ScaleRule); their roundings are straight-through.
#pragma once
#include <cstdint>

#include "formats/format_spec.h"

namespace fidelio::train {

struct CodeSizes {
  int64_t out = 0, in = 0, group = 0, groups = 0;
  int levels = 0;
};

template <typename Real>
struct CodeView {
  const Real* position;  // (out, in)
  const Real* level;     // (levels)
  const Real* scale;     // (out, groups), as stored
  const Real* shift;     // (out, groups), whole numbers; null: 0
  const Real* offset;    // (out, groups), as stored; null: 0
};

// Where the gradients of decode() go. `codes` holds dL/dvalue (out, in) and becomes dL/dposition; scale, shift, offset
// (out, groups) are written, level (levels) is added to; null: not wanted.
template <typename Real>
struct CodeGradient {
  Real* codes;
  Real* scale;
  Real* shift;
  Real* offset;
  Real* level;
};

// How the stored scale of a group follows from its latent t and the row's r.
enum class ScaleRule : uint8_t {
  f16,   // f16(t)
  u8,    // r round(t), 0 .. 255
  i8,    // r round(t), -127 .. 127
  e4m3,  // r e4m3(t), and the offset likewise
  row,   // r: one group a row and no t
};

template <typename Real>
struct ScaleView {
  ScaleRule rule;
  int64_t out, groups;
  int zeros;                 // the zero point is a whole number below this; 0: there is none
  const Real* group_scale;   // t (out, groups); null with ScaleRule::row
  const Real* row_scale;     // r (out); null with ScaleRule::f16
  const Real* zero;          // (out, groups) or null
  const Real* group_offset;  // (out, groups) or null; e4m3 alone
};

template <typename Real>
struct ScaleValues {
  Real* scale;
  Real* shift;
  Real* offset;  // (out, groups) each; shift and offset null where the view has none
};

// From dL/dscale and dL/doffset to the latents; written, null: not wanted. dL/dshift is that of the zero point already.
template <typename Real>
struct ScaleGradient {
  const Real* scale;
  const Real* offset;
  Real* group_scale;
  Real* row_scale;
  Real* group_offset;
};

}  // namespace fidelio::train
