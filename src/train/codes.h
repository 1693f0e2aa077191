// This file describes a matrix of codes so that it has gradients. In every format
//
//     value = scale (level[q] - shift) + offset        q = the whole number nearest to position + shift, kept in range
//
// with one scale, shift and offset for each group. `level` ascends: 0 .. 2^b - 1 for integers (less 2^(b-1) if
// symmetric), the codebook of a grid, or E2M1 and E4M3 themselves. `position` is the latent of a code, counted in
// codes. Its rounding is passed straight through in the backward pass (Bengio et al. 2013), so every format moves in
// the same unit, a cell. `shift` is the zero point of integers. Since position + shift is rounded, a zero point that
// moves takes the range along and leaves the values.
//
// ScaleRule says how scale, shift and offset are stored in each format. Their roundings are passed straight through
// too.
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
  const Real* shift;     // (out, groups), whole numbers; null means 0
  const Real* offset;    // (out, groups), as stored; null means 0
};

// A CodeGradient says where the gradients of decode() go. On entry `codes` holds dL/dvalue (out, in); it is replaced
// by dL/dposition. scale, shift and offset (out, groups) are written, and level (levels) is added to. Null pointers
// skip a gradient.
template <typename Real>
struct CodeGradient {
  Real* codes;
  Real* scale;
  Real* shift;
  Real* offset;
  Real* level;
};

// A ScaleRule says how the stored scale of a group follows from its latent t and the row's scale r.
enum class ScaleRule : uint8_t {
  f16,   // f16(t)
  u8,    // r round(t), 0 .. 255
  i8,    // r round(t), -127 .. 127
  e4m3,  // r e4m3(t), and likewise for the offset
  row,   // r, with one group a row and no t
};

template <typename Real>
struct ScaleView {
  ScaleRule rule;
  int64_t out, groups;
  int zeros;                 // the zero point is a whole number below this; 0 means that there is none
  const Real* group_scale;   // t (out, groups); null with ScaleRule::row
  const Real* row_scale;     // r (out); null with ScaleRule::f16
  const Real* zero;          // (out, groups) or null
  const Real* group_offset;  // (out, groups) or null; only for e4m3
};

template <typename Real>
struct ScaleValues {
  Real* scale;
  Real* shift;
  Real* offset;  // all are (out, groups); shift and offset are null if the view has none
};

// A ScaleGradient leads from dL/dscale and dL/doffset to the gradients of the latents, which are written unless null.
// dL/dshift is already the gradient of the zero point.
template <typename Real>
struct ScaleGradient {
  const Real* scale;
  const Real* offset;
  Real* group_scale;
  Real* row_scale;
  Real* group_offset;
};

}  // namespace fidelio::train
