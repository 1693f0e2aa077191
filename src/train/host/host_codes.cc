// This file has Host's operations on integer and grid codes: rounding, decoding and their gradients.
#include "train/host/host.h"
#include "train/host/rounding.h"

namespace fidelio::train {
namespace {

constexpr int64_t kMatrixRows = 16;  // rows of a job

template <typename T>
T stored(ScaleRule rule, T t) {
  return static_cast<T>(stored_multiple(rule, static_cast<float>(t)));
}

}  // namespace

template <typename T>
void Host<T>::round(const T* x, int64_t n, Kind kind, T* rounded) {
  blocks(n, 16384, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto value = static_cast<float>(x[i]);
      rounded[i] = kind == Kind::f32 ? x[i] : static_cast<T>(kind == Kind::f16 ? round_f16(value) : round_bf16(value));
    }
  });
}

template <typename T>
void Host<T>::keep_ascending(const T* grid, int64_t levels, T* level) {
  train::keep_ascending(grid, static_cast<int>(levels), level);
}

template <typename T>
void Host<T>::resolve(const ScaleView<T>& view, const ScaleValues<T>& values) {
  blocks(view.out, kMatrixRows, [&](int64_t first, int64_t last) {
    for (int64_t at = first * view.groups; at < last * view.groups; ++at) {
      const T r = view.row_scale == nullptr ? T{1} : view.row_scale[at / view.groups];
      values.scale[at] = view.group_scale == nullptr ? r : r * stored(view.rule, view.group_scale[at]);
      if (view.zero != nullptr)
        values.shift[at] =
            static_cast<T>(nearest(within(static_cast<float>(view.zero[at]), 0, static_cast<float>(view.zeros - 1))));
      if (view.group_offset != nullptr) values.offset[at] = r * stored(view.rule, view.group_offset[at]);
    }
  });
}

template <typename T>
void Host<T>::resolve_backward(const ScaleView<T>& view, const ScaleGradient<T>& g) {
  blocks(view.out, kMatrixRows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T r = view.row_scale == nullptr ? T{1} : view.row_scale[row];
      T along = 0;
      for (int64_t at = row * view.groups; at < (row + 1) * view.groups; ++at) {
        const T multiple = view.group_scale == nullptr ? T{1} : stored(view.rule, view.group_scale[at]);
        along += g.scale[at] * multiple;
        if (g.group_scale != nullptr) g.group_scale[at] = r * g.scale[at];
        if (view.group_offset == nullptr) continue;
        along += g.offset[at] * stored(view.rule, view.group_offset[at]);
        if (g.group_offset != nullptr) g.group_offset[at] = r * g.offset[at];
      }
      if (g.row_scale != nullptr) g.row_scale[row] = along;
    }
  });
}

template <typename T>
void Host<T>::decode(const CodeSizes& s, const CodeView<T>& view, T* values) {
  blocks(s.out, kMatrixRows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t g = 0; g < s.groups; ++g) {
        const int64_t at = row * s.groups + g;
        const T scale = view.scale[at], offset = view.offset == nullptr ? T{0} : view.offset[at];
        const T shift = view.shift == nullptr ? T{0} : view.shift[at];
        for (int64_t c = row * s.in + g * s.group; c < row * s.in + std::min(s.in, (g + 1) * s.group); ++c) {
          const int q = code_of(static_cast<float>(view.position[c]), static_cast<float>(shift), s.levels);
          values[c] = scale * (view.level[q] - shift) + offset;
        }
      }
  });
}

// Let g = dL/dvalue. Then dscale = sum g (level - shift), doffset = sum g, and dlevel[q] += g scale. dposition = g
// scale slope, or nothing if it would move a clamped code further out. Inside the range, dshift is 0, because the
// value does not change as q moves with the shift; beyond the ends it is - scale.
template <typename T>
void Host<T>::decode_backward(const CodeSizes& s, const CodeView<T>& view, const CodeGradient<T>& to) {
  const int64_t jobs = (s.out + kMatrixRows - 1) / kMatrixRows;
  std::vector<T> parts(to.level == nullptr ? 0 : static_cast<size_t>(jobs * s.levels));
  blocks(s.out, kMatrixRows, [&](int64_t first, int64_t last) {
    T* of_levels = to.level == nullptr ? nullptr : parts.data() + first / kMatrixRows * s.levels;
    for (int64_t at = first * s.groups; at < last * s.groups; ++at) {
      const int64_t row = at / s.groups, g = at % s.groups;
      const T scale = view.scale[at], shift = view.shift == nullptr ? T{0} : view.shift[at];
      T of_scale = 0, of_offset = 0, of_shift = 0;
      for (int64_t c = row * s.in + g * s.group; c < row * s.in + std::min(s.in, (g + 1) * s.group); ++c) {
        const auto u = static_cast<float>(view.position[c]), z = static_cast<float>(shift);
        const int q = code_of(u, z, s.levels);
        const T by = to.codes[c];
        of_scale += by * (view.level[q] - shift);
        of_offset += by;
        if (of_levels != nullptr) of_levels[q] += by * scale;
        T along = by * scale * slope_of(view.level, q, s.levels);
        if (is_clamped(u, z, s.levels)) {
          of_shift -= by * scale;
          // A step goes against the gradient, and this one would go further out.
          if ((u + z < 0) == (along > 0)) along = 0;
        }
        to.codes[c] = along;
      }
      if (to.scale != nullptr) to.scale[at] = of_scale;
      if (to.offset != nullptr) to.offset[at] = of_offset;
      if (to.shift != nullptr) to.shift[at] = of_shift;
    }
  });
  for (size_t i = 0; i < parts.size(); ++i) to.level[i % static_cast<size_t>(s.levels)] += parts[i];
}

template void Host<float>::round(const float*, int64_t, Kind, float*);
template void Host<double>::round(const double*, int64_t, Kind, double*);
template void Host<float>::keep_ascending(const float*, int64_t, float*);
template void Host<double>::keep_ascending(const double*, int64_t, double*);
template void Host<float>::resolve(const ScaleView<float>&, const ScaleValues<float>&);
template void Host<double>::resolve(const ScaleView<double>&, const ScaleValues<double>&);
template void Host<float>::resolve_backward(const ScaleView<float>&, const ScaleGradient<float>&);
template void Host<double>::resolve_backward(const ScaleView<double>&, const ScaleGradient<double>&);
template void Host<float>::decode(const CodeSizes&, const CodeView<float>&, float*);
template void Host<double>::decode(const CodeSizes&, const CodeView<double>&, double*);
template void Host<float>::decode_backward(const CodeSizes&, const CodeView<float>&, const CodeGradient<float>&);
template void Host<double>::decode_backward(const CodeSizes&, const CodeView<double>&, const CodeGradient<double>&);

}  // namespace fidelio::train
