#include "quant/descent.h"

#include <algorithm>
#include <cmath>

#include "quant/blas.h"

namespace fidelio {
namespace {

constexpr int64_t kBlock = 128;  // columns whose changes are gathered before they reach the gradient of all others

// y (n, lanes) += alpha h (n, k) x (k, lanes); h is a window of the symmetric Hessian of row length `in`.
void multiply(int64_t n, int64_t k, float alpha, const float* h, int64_t in, const float* x, float beta, float* y) {
  if (n > 0)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, kLanes, k, alpha, h, in, x, kLanes, beta, y, kLanes);
}

class Descent {
 public:
  Descent(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, Strip& s)
      : spec_(spec),
        levels_(levels),
        h_(hessian.matrix().data()),
        s_(s),
        value_(s.weight.size()),
        gradient_(s.weight.size()) {
    refresh();
  }

  // value = the decoded weights, gradient = H (w - value), both from scratch: incremental updates in FP32 drift.
  void refresh() {
    std::vector<float> rest(s_.weight.size());
    for (int64_t c = 0; c < s_.in; ++c)
      for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t at = c * kLanes + r;
        value_[at] = s_.scales(c)[r] * s_.level[at] + s_.offsets(c)[r];
        rest[at] = s_.weight[at] - value_[at];
      }
    multiply(s_.in, s_.in, 1.0f, h_, s_.in, rest.data(), 0.0f, gradient_.data());
  }

  double loss() const {
    double total = 0;
    for (size_t i = 0; i < value_.size(); ++i)
      total += (static_cast<double>(s_.weight[i]) - static_cast<double>(value_[i])) * static_cast<double>(gradient_[i]);
    return total;
  }

  void pass_over_codes() {
    std::vector<float> change(static_cast<size_t>(kBlock * kLanes));
    for (int64_t begin = 0; begin < s_.in; begin += kBlock) {
      const int64_t width = std::min(kBlock, s_.in - begin);
      bool any = false;
      for (int64_t j = begin; j < begin + width; ++j) any |= step(j, begin, width, &change[(j - begin) * kLanes]);
      if (any) spread(begin, width, change.data());
    }
  }

  // d loss / d scale with the codes fixed: the group's values move along d = value - offset over scale = level (with
  // the zero point's share for integers, whose offset is -scale zero).
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
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < kLanes; ++r) {
          const int64_t at = (begin + c) * kLanes + r;
          const float old = value_[at];
          value_[at] = scale[r] * s_.level[at] + offset[r];
          direction[c * kLanes + r] = value_[at] - old;
        }
      multiply(s_.in, width, -1.0f, h_ + begin, s_.in, direction.data(), 1.0f, gradient_.data());
    }
  }

 private:
  // The best level of column j for every row, and its effect on the gradient inside the block.
  bool step(int64_t j, int64_t begin, int64_t width, float* change) {
    const float curvature = h_[j * s_.in + j];
    std::fill_n(change, kLanes, 0.0f);
    if (curvature == 0) return false;
    Lanes target, level, value;
    float* old = &value_[j * kLanes];
    for (int64_t r = 0; r < kLanes; ++r) target[r] = old[r] + gradient_[j * kLanes + r] / curvature;
    quantise_lanes(levels_, target.data(), s_.scales(j), s_.offsets(j), level.data(), value.data());
    float moved = 0;
    for (int64_t r = 0; r < kLanes; ++r) {
      change[r] = value[r] - old[r];
      moved += std::fabs(change[r]);
      old[r] = value[r];
      s_.level[j * kLanes + r] = level[r];
    }
    if (moved == 0) return false;
    for (int64_t c = 0; c < width; ++c) {
      const float h = h_[j * s_.in + begin + c];
      float* g = &gradient_[(begin + c) * kLanes];
      for (int64_t r = 0; r < kLanes; ++r) g[r] -= h * change[r];
    }
    return true;
  }

  // A block's changes on the gradient of the columns outside it.
  void spread(int64_t begin, int64_t width, const float* change) {
    const int64_t end = begin + width;
    multiply(begin, width, -1.0f, h_ + begin, s_.in, change, 1.0f, gradient_.data());
    multiply(s_.in - end, width, -1.0f, h_ + end * s_.in + begin, s_.in, change, 1.0f, &gradient_[end * kLanes]);
  }

  // Moves scale (and an integer's offset with it) to the stored neighbour of the optimum t = d.g / d H d where that
  // lowers the loss; `move` is what became of each scale.
  void refit(int64_t begin, int64_t width, float* scale, float* offset, std::vector<float>& direction,
             std::vector<float>& curved, Lanes& move) {
    for (int64_t c = 0; c < width; ++c)
      for (int64_t r = 0; r < kLanes; ++r) {
        const float zero = scale[r] == 0 || spec_.kind != Kind::integer ? 0.0f : offset[r] / scale[r];
        direction[c * kLanes + r] = s_.level[(begin + c) * kLanes + r] + zero;
      }
    multiply(width, width, 1.0f, h_ + begin * s_.in + begin, s_.in, direction.data(), 0.0f, curved.data());
    Lanes slope{}, curvature{};
    for (int64_t c = 0; c < width; ++c)
      for (int64_t r = 0; r < kLanes; ++r) {
        slope[r] += direction[c * kLanes + r] * gradient_[(begin + c) * kLanes + r];
        curvature[r] += direction[c * kLanes + r] * curved[c * kLanes + r];
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
  std::vector<float> value_, gradient_;
};

}  // namespace

DescentLoss descend(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, int passes, Strip& strip) {
  use_single_threaded_blas();
  Descent d(spec, levels, hessian, strip);
  DescentLoss loss;
  loss.before = d.loss();
  for (int pass = 0; pass < passes; ++pass) {
    d.pass_over_codes();
    d.pass_over_scales();
  }
  if (passes > 0) {
    d.pass_over_codes();
    d.refresh();
  }
  loss.after = d.loss();
  return loss;
}

}  // namespace fidelio
