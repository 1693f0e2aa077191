// This file implements fit_scales, the search for every group's scale and offset (see strip.h).
//
// The metric is diagonal: sum_j importance_j (w_j - q_j)^2. With importance_j = 1 / U_jj^2 it is GPTQ's own loss if
// later columns compensate (the price of an error in column j, see HessianFactor). Ranges shrink more on columns that
// matter less. Formats with a second level of scales (u8, i8, E4M3) are fitted twice: first freely, which gives the
// row scale, and then over the stored neighbours of the free optimum.
#include <algorithm>
#include <cmath>

#include "formats/small_float.h"
#include "quant/strip.h"

namespace fidelio {
namespace {

struct Range {
  // The least and largest value (zero included), and the element of largest magnitude with its sign.
  Lanes low{}, high{}, peak{};
};

struct Best {
  Lanes scale{}, offset{}, error;
  Best() { error.fill(std::numeric_limits<float>::infinity()); }
};

class GroupFit {
 public:
  GroupFit(const FormatSpec& spec, const Levels& levels, std::span<const float> importance, Strip& strip, int64_t g)
      : spec_(spec),
        levels_(levels),
        importance_(importance),
        strip_(strip),
        begin_(g * strip.group),
        end_(std::min(strip.in, begin_ + strip.group)) {
    for (int64_t c = begin_; c < end_; ++c)
      for (int64_t r = 0; r < kLanes; ++r) {
        const float w = strip.weight[c * kLanes + r];
        range_.low[r] = std::min(range_.low[r], w);
        range_.high[r] = std::max(range_.high[r], w);
        if (std::fabs(w) > std::fabs(range_.peak[r])) range_.peak[r] = w;
      }
  }

  // Tries the range times `shrink`. `slant` moves the zero point or the offset, and `store` rounds a scale.
  template <typename Store>
  void try_range(float shrink, float slant, const Store& store) {
    Lanes scale, offset;
    for (int64_t r = 0; r < kLanes; ++r) propose(r, shrink, slant, store, scale[r], offset[r]);
    keep_better(scale, offset);
  }

  void keep_better(const Lanes& scale, const Lanes& offset) {
    Lanes error{}, level, value;
    for (int64_t c = begin_; c < end_; ++c) {
      const float* w = &strip_.weight[c * kLanes];
      levels_.quantise(w, scale.data(), offset.data(), level.data(), value.data());
      for (int64_t r = 0; r < kLanes; ++r) error[r] += importance_[c] * (w[r] - value[r]) * (w[r] - value[r]);
    }
    for (int64_t r = 0; r < kLanes; ++r)
      if (error[r] < best_.error[r]) {
        best_.scale[r] = scale[r];
        best_.offset[r] = offset[r];
        best_.error[r] = error[r];
      }
  }

  Best& best() { return best_; }
  const Range& range() const { return range_; }

 private:
  template <typename Store>
  void propose(int64_t r, float shrink, float slant, const Store& store, float& scale, float& offset) const {
    const float low = range_.low[r], high = range_.high[r], top = levels_.highest();
    offset = 0;
    if (spec_.kind == Kind::integer && !spec_.symmetric) {
      scale = store(shrink * (high - low) / top, r);
      const float zero = scale == 0 ? 0 : std::nearbyint(-low * shrink / scale) + slant;
      offset = -scale * std::clamp(zero, 0.0f, top);
    } else if (spec_.kind == Kind::integer) {
      // Codes are -2^(b-1) .. 2^(b-1) - 1. A step of 2 M / (2^b - 1), SLQ equation 11, divides the missing half step
      // between both ends.
      scale = store(shrink * 2 * std::max(high, -low) / top, r);
      offset = -scale * (top + 1) / 2;
    } else if (spec_.kind == Kind::grid) {
      const float end = levels_.highest() >= -levels_.lowest() ? levels_.highest() : levels_.lowest();
      scale = store((slant == 0 ? shrink : -shrink) * range_.peak[r] / end, r);
    } else {
      offset = spec_.symmetric ? 0.0f : stored_offset(spec_, slant * (low + high) / 2, strip_.row_scale[r]);
      scale = store(shrink * std::max(high - offset, offset - low) / top, r);
    }
  }

  const FormatSpec& spec_;
  const Levels& levels_;
  std::span<const float> importance_;
  Strip& strip_;
  int64_t begin_, end_;
  Range range_;
  Best best_;
};

bool two_levels(const FormatSpec& spec) {
  return (spec.kind == Kind::integer && spec.scale == ScaleKind::u8) || spec.kind == Kind::grid ||
         spec.kind == Kind::fp4;
}

// The useful range of shrinking depends on the width: from .35 at 2 bits to .8 at 8 bits.
constexpr int kShrinkSteps = 24;
float shrink_of(const FormatSpec& spec, int step) {
  const float least = std::min(0.8f, 0.2f + 0.1f * static_cast<float>(std::min(spec.bits, 6)));
  return 1.02f - (1.02f - least) * static_cast<float>(step) / (kShrinkSteps - 1);
}

template <typename Store>
void search_group(const FormatSpec& spec, bool search, GroupFit& fit, const Store& store) {
  const bool slanted = !spec.symmetric && spec.kind == Kind::fp4;
  fit.try_range(1.0f, slanted ? 1.0f : 0.0f, store);
  if (!search) return;
  for (int step = 0; step < kShrinkSteps; ++step) {
    const float shrink = shrink_of(spec, step);
    fit.try_range(shrink, 0.0f, store);
    if (spec.kind == Kind::grid || (spec.kind == Kind::integer && !spec.symmetric)) fit.try_range(shrink, 1.0f, store);
    if (spec.kind == Kind::integer && !spec.symmetric) fit.try_range(shrink, -1.0f, store);
    if (slanted)
      for (const float slant : {0.5f, 1.0f}) fit.try_range(shrink, slant, store);
  }
}

// Searches the stored neighbours of the free optimum.
void search_stored(const FormatSpec& spec, GroupFit& fit, const Lanes& row_scale, bool search) {
  const Best free = fit.best();
  fit.best() = Best();
  // Neighbours in E4M3 differ by a factor, in the other formats by a unit.
  const float step = spec.kind == Kind::fp4 ? 0.0625f : 1.0f;
  for (int move = search ? -2 : 0; move <= (search ? 2 : 0); ++move) {
    Lanes scale, offset;
    for (int64_t r = 0; r < kLanes; ++r) {
      const float wanted = spec.kind == Kind::fp4 ? free.scale[r] * (1 + step * static_cast<float>(move))
                                                  : free.scale[r] + step * static_cast<float>(move) * row_scale[r];
      const bool usable = free.scale[r] != 0 && wanted * free.scale[r] > 0;
      scale[r] = stored_scale(spec, usable ? wanted : free.scale[r], row_scale[r]);
      const float zero = free.scale[r] == 0 ? 0 : std::nearbyint(-free.offset[r] / free.scale[r]);
      offset[r] = spec.kind == Kind::integer ? -scale[r] * zero : free.offset[r];
    }
    fit.keep_better(scale, offset);
  }
}

}  // namespace

void fit_scales(const FormatSpec& spec, const Levels& levels, std::span<const float> importance, bool search,
                Strip& strip) {
  const bool nested = two_levels(spec);
  std::vector<GroupFit> fits;
  fits.reserve(static_cast<size_t>(strip.groups));
  for (int64_t g = 0; g < strip.groups; ++g) fits.emplace_back(spec, levels, importance, strip, g);

  const float largest = spec.kind == Kind::fp4 ? kE4m3Max : spec.kind == Kind::grid ? 127.0f : 255.0f;
  if (spec.kind ==
      Kind::fp4)  // offsets are stored in units of the row scale too, so it must be known before the search
    for (int64_t r = 0; r < kLanes; ++r) {
      float peak = 0;
      for (GroupFit& fit : fits) peak = std::max(peak, std::fabs(fit.range().peak[r]));
      // A scale is at most peak / 6. An offset, which is the middle of a range that includes zero, is at most peak /
      // 2.
      strip.row_scale[r] = peak / ((spec.symmetric ? levels.highest() : 2.0f) * largest);
    }
  for (GroupFit& fit : fits)
    search_group(spec, search, fit,
                 [&](float wanted, int64_t) { return nested ? wanted : stored_scale(spec, wanted, 0); });
  if (nested && spec.kind != Kind::fp4)
    for (int64_t r = 0; r < kLanes; ++r) {
      float peak = 0;
      for (GroupFit& fit : fits) peak = std::max(peak, std::fabs(fit.best().scale[r]));
      strip.row_scale[r] = peak / largest;
    }
  for (int64_t g = 0; g < strip.groups; ++g) {
    if (nested) search_stored(spec, fits[g], strip.row_scale, search);
    std::copy_n(fits[g].best().scale.data(), kLanes, &strip.scale[g * kLanes]);
    std::copy_n(fits[g].best().offset.data(), kLanes, &strip.offset[g * kLanes]);
  }
}

}  // namespace fidelio
