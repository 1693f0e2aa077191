#include "quant/descent/descent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/algebra/products.h"
#include "quant/wide.h"

namespace fidelio {
namespace {

constexpr int64_t kBlock = 128;  // columns whose changes are gathered before they reach the gradient of all others

// Computes y (n, lanes) = or += alpha h (n, k) x (k, lanes), where h is a window of the symmetric Hessian with rows
// of length `in`.
void multiply(int64_t n, int64_t k, float alpha, const float* h, int64_t in, const float* x, bool add, float* y) {
  fidelio::multiply<float>(n, kLanes, k, alpha, {h, in}, {x, kLanes}, add, y, kLanes);
}

// Computes gradient (width, lanes) -= h (width) times change (lanes).
FIDELIO_WIDE void subtract(const float* h, int64_t width, const float* __restrict change, float* __restrict gradient) {
  for (int64_t c = 0; c < width; ++c)
    for (int64_t r = 0; r < kLanes; ++r) gradient[c * kLanes + r] -= h[c] * change[r];
}

// A Reading is one way in which the codes are read: all their bits, or only their high bits.
struct Reading {
  int below = 0;     // number of low bits left out
  float weight = 1;  // weight of its loss in the sum that is minimised
  std::vector<float> value, gradient;

  // Returns the level that this reading takes for a code's level. It is the level itself, or the middle of the values
  // that the left-out bits could make.
  float seen(float level) const {
    if (below == 0) return level;
    const auto cell = static_cast<float>(1 << below);
    return std::floor(level / cell) * cell + (cell - 1) / 2;
  }
};

class Descent {
 public:
  Descent(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, const ViewLoss& view, Strip& s)
      : spec_(spec), levels_(levels), h_(hessian.matrix().data()), s_(s) {
    readings_.emplace_back();
    if (view.weight > 0) readings_.push_back({spec.bits - view.bits, view.weight, {}, {}});
    for (Reading& reading : readings_) {
      reading.value.resize(s.weight.size());
      reading.gradient.resize(s.weight.size());
    }
    refresh();
  }

  // Computes value, the decoded weights, and gradient = H (w - value), both from scratch, because incremental updates
  // in FP32 drift.
  void refresh() {
    std::vector<float> rest(s_.weight.size());
    for (Reading& reading : readings_) {
      for (int64_t c = 0; c < s_.in; ++c)
        for (int64_t r = 0; r < kLanes; ++r) {
          const int64_t at = c * kLanes + r;
          reading.value[at] = s_.scales(c)[r] * reading.seen(s_.level[at]) + s_.offsets(c)[r];
          rest[at] = s_.weight[at] - reading.value[at];
        }
      multiply(s_.in, s_.in, 1.0f, h_, s_.in, rest.data(), false, reading.gradient.data());
    }
  }

  double loss() const {
    double total = 0;
    for (const Reading& reading : readings_)
      for (size_t i = 0; i < reading.value.size(); ++i)
        total += static_cast<double>(reading.weight) *
                 (static_cast<double>(s_.weight[i]) - static_cast<double>(reading.value[i])) *
                 static_cast<double>(reading.gradient[i]);
    return total;
  }

  void pass_over_codes() {
    const auto size = static_cast<size_t>(kBlock * kLanes);
    std::vector<float> change(size * readings_.size());
    for (int64_t begin = 0; begin < s_.in; begin += kBlock) {
      const int64_t width = std::min(kBlock, s_.in - begin);
      bool any = false;
      for (int64_t j = begin; j < begin + width; ++j) any |= step(j, begin, width, &change[(j - begin) * kLanes]);
      if (!any) continue;
      for (size_t i = 0; i < readings_.size(); ++i) spread(begin, width, &change[i * size], readings_[i].gradient);
    }
  }

  // Minimises the loss over scales with the codes fixed. The group's values move along d = (value - offset) / scale =
  // level. For integers the zero point moves too, since their offset is -scale zero.
  void pass_over_scales() {
    std::vector<float> direction(static_cast<size_t>(s_.group * kLanes)), curved(direction.size());
    for (int64_t g = 0; g < s_.groups; ++g) {
      const int64_t begin = g * s_.group, width = std::min(s_.group, s_.in - begin);
      float* scale = &s_.scale[g * kLanes];
      float* offset = &s_.offset[g * kLanes];
      Lanes move;
      refit(begin, width, scale, offset, direction, curved, move);
      bool any = false;
      for (int64_t r = 0; r < kLanes; ++r) any |= move[r] != 0;
      if (!any) continue;
      for (Reading& reading : readings_) {
        for (int64_t c = 0; c < width; ++c)
          for (int64_t r = 0; r < kLanes; ++r) {
            const int64_t at = (begin + c) * kLanes + r;
            const float old = reading.value[at];
            reading.value[at] = scale[r] * reading.seen(s_.level[at]) + offset[r];
            direction[c * kLanes + r] = reading.value[at] - old;
          }
        multiply(s_.in, width, -1.0f, h_ + begin, s_.in, direction.data(), true, reading.gradient.data());
      }
    }
  }

 private:
  // Chooses, for every row, the level of column j that is best for all readings together. With errors in units of the
  // scale, each reading's loss is a parabola around its own optimum. Within one cell of the high bits' levels their
  // error is constant, so the best code there is the one nearest to the whole weight's optimum.
  void choose(int64_t j, float curvature, Lanes& level) const {
    const float *scale = s_.scales(j), *offset = s_.offsets(j);
    Lanes target[2], value;
    for (size_t i = 0; i < readings_.size(); ++i)
      for (int64_t r = 0; r < kLanes; ++r)
        target[i][r] = readings_[i].value[j * kLanes + r] + readings_[i].gradient[j * kLanes + r] / curvature;
    levels_.quantise(target[0].data(), scale, offset, level.data(), value.data());
    if (readings_.size() == 1) return;
    const Reading& view = readings_[1];
    const auto cell = static_cast<float>(1 << view.below), top = levels_.highest();
    Lanes best;
    best.fill(std::numeric_limits<float>::infinity());
    for (auto& t : target)
      for (int64_t r = 0; r < kLanes; ++r) t[r] = scale[r] == 0 ? 0.0f : (t[r] - offset[r]) / scale[r];
    const Lanes nearest = level;
    for (float first = 0; first <= top; first += cell)
      for (int64_t r = 0; r < kLanes; ++r) {
        const float code = std::clamp(nearest[r], first, first + cell - 1), whole = target[0][r] - code,
                    high = target[1][r] - (first + (cell - 1) / 2), cost = whole * whole + view.weight * high * high;
        level[r] = cost < best[r] ? code : level[r];
        best[r] = std::min(best[r], cost);
      }
  }

  // Sets the best level of column j for every row and applies it to the gradients inside the block. `change` holds
  // the first reading's changes; those of the next reading lie kBlock columns further.
  bool step(int64_t j, int64_t begin, int64_t width, float* change) {
    const float curvature = h_[j * s_.in + j];
    for (size_t i = 0; i < readings_.size(); ++i)
      std::fill_n(change + static_cast<int64_t>(i) * kBlock * kLanes, kLanes, 0.0f);
    if (curvature == 0) return false;
    Lanes level;
    choose(j, curvature, level);
    bool any = false;
    for (Reading& reading : readings_) {
      float moved = 0;
      for (int64_t r = 0; r < kLanes; ++r) {
        float& old = reading.value[j * kLanes + r];
        const float value = s_.scales(j)[r] * reading.seen(level[r]) + s_.offsets(j)[r];
        change[r] = value - old;
        moved += std::fabs(change[r]);
        old = value;
      }
      any |= moved != 0;
      if (moved != 0) subtract(h_ + j * s_.in + begin, width, change, &reading.gradient[begin * kLanes]);
      change += kBlock * kLanes;
    }
    std::copy(level.begin(), level.end(), &s_.level[j * kLanes]);
    return any;
  }

  // Applies a block's changes to the gradient of the columns outside it.
  void spread(int64_t begin, int64_t width, const float* change, std::vector<float>& gradient) {
    const int64_t end = begin + width;
    multiply(begin, width, -1.0f, h_ + begin, s_.in, change, true, gradient.data());
    multiply(s_.in - end, width, -1.0f, h_ + end * s_.in + begin, s_.in, change, true, &gradient[end * kLanes]);
  }

  // Moves a scale (and an integer's offset with it) to the stored neighbour of the optimum t = d.g / d H d, if that
  // lowers the loss. `move` receives the change of each scale.
  void refit(int64_t begin, int64_t width, float* scale, float* offset, std::vector<float>& direction,
             std::vector<float>& curved, Lanes& move) {
    Lanes slope{}, curvature{};
    for (const Reading& reading : readings_) {
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < kLanes; ++r) {
          const float zero = scale[r] == 0 || spec_.kind != Kind::integer ? 0.0f : offset[r] / scale[r];
          direction[c * kLanes + r] = reading.seen(s_.level[(begin + c) * kLanes + r]) + zero;
        }
      multiply(width, width, 1.0f, h_ + begin * s_.in + begin, s_.in, direction.data(), false, curved.data());
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < kLanes; ++r) {
          const int64_t at = c * kLanes + r;
          slope[r] += reading.weight * direction[at] * reading.gradient[(begin + c) * kLanes + r];
          curvature[r] += reading.weight * direction[at] * curved[at];
        }
    }
    for (int64_t r = 0; r < kLanes; ++r) {
      move[r] = 0;
      if (scale[r] == 0 || !(curvature[r] > 0)) continue;
      const float wanted = scale[r] + slope[r] / curvature[r];
      if (wanted * scale[r] <= 0) continue;
      const float stored = stored_scale(spec_, wanted, s_.row_scale[r]), t = stored - scale[r];
      if (t == 0 || !(t * (2 * slope[r] - t * curvature[r]) > 0)) continue;
      if (spec_.kind == Kind::integer) offset[r] = std::nearbyint(offset[r] / scale[r]) * stored;
      scale[r] = stored;
      move[r] = t;
    }
  }

  const FormatSpec& spec_;
  const Levels& levels_;
  const float* h_;
  Strip& s_;
  std::vector<Reading> readings_;
};

}  // namespace

DescentLoss descend(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, const DescentOptions& options,
                    const ViewLoss& view, Strip& strip) {
  Descent d(spec, levels, hessian, view, strip);
  DescentLoss loss;
  loss.before = d.loss();
  for (int pass = 0; pass < options.passes; ++pass) {
    if (options.codes) d.pass_over_codes();
    if (options.scales) d.pass_over_scales();
  }
  if (options.passes > 0) {
    if (options.codes) d.pass_over_codes();
    d.refresh();
  }
  loss.after = d.loss();
  return loss;
}

}  // namespace fidelio
