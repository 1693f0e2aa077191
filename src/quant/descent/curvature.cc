#include "quant/descent/curvature.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "quant/algebra/products.h"
#include "quant/wide.h"

namespace fidelio {
namespace {

constexpr int64_t kBlock = 128;  // columns whose changes are gathered before they are applied to the other columns
constexpr int64_t kChunk = 64;   // rows of W that a thread multiplies at a time

FIDELIO_WIDE void add_multiple(int64_t n, float factor, const float* __restrict x, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// Returns all values that a code can stand for, before scale and offset, in ascending order.
std::vector<float> ascending_levels(const FormatSpec& spec, const Levels& levels) {
  std::vector<float> all;
  for (int code = 0; code < 1 << spec.bits; ++code) {
    const float level = levels.level(static_cast<uint8_t>(code));
    if (std::isfinite(level)) all.push_back(level);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Matrices are kept transposed, (in, rows), with rows = 64 times the number of strips. Rows beyond `out` are zero
// throughout.
class CurvatureDescent {
 public:
  CurvatureDescent(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, std::span<const float> moment,
                   int64_t out, std::vector<Strip>& strips, ThreadPool& pool)
      : h_(hessian.matrix().data()),
        in_(hessian.in()),
        out_(out),
        rows_(static_cast<int64_t>(strips.size()) * kLanes),
        strips_(strips),
        pool_(pool),
        levels_(ascending_levels(spec, levels)),
        moment_(size(rows_, rows_)),
        error_(size(in_, rows_)),
        seen_(size(in_, rows_)),
        slope_(size(kBlock, rows_)),
        change_(size(kBlock, rows_)),
        moved_(size(1, rows_)) {
    double mean = 0;
    for (int64_t i = 0; i < out; ++i) {
      std::copy_n(&moment[static_cast<size_t>(i * out)], out, &moment_[i * rows_]);
      mean += double{moment_[i * rows_ + i]} / static_cast<double>(out);
    }
    for (int64_t i = 0; i < out; ++i) moment_[i * rows_ + i] += static_cast<float>(kMomentDamping * mean);
    refresh();
  }

  void pass() {
    for (int64_t begin = 0; begin < in_; begin += kBlock) {
      const int64_t width = std::min(kBlock, in_ - begin);
      by_rows([&](int64_t first, int64_t n) {  // slope = M E H of these columns
        multiply<float>(width, n, rows_, 1, {&seen_[begin * rows_], rows_}, {&moment_[first], rows_}, false,
                        &slope_[first], rows_);
      });
      bool any = false;
      for (int64_t j = begin; j < begin + width; ++j) any |= step(j, begin, width);
      if (!any) continue;
      by_rows([&](int64_t first, int64_t n) {
        multiply<float>(in_, n, width, -1, {h_ + begin, in_}, {&change_[first], rows_}, true, &seen_[first], rows_);
      });
    }
  }

  // Computes E and E H from scratch, because incremental updates in FP32 drift.
  void refresh() {
    for (size_t s = 0; s < strips_.size(); ++s) {
      const Strip& strip = strips_[s];
      for (int64_t c = 0; c < in_; ++c)
        for (int64_t r = 0; r < strip.rows; ++r) {
          const int64_t at = c * kLanes + r;
          error_[c * rows_ + static_cast<int64_t>(s) * kLanes + r] =
              strip.weight[at] - (strip.scales(c)[r] * strip.level[at] + strip.offsets(c)[r]);
        }
    }
    by_rows([&](int64_t first, int64_t n) {
      multiply<float>(in_, n, in_, 1, {h_, in_}, {&error_[first], rows_}, false, &seen_[first], rows_);
    });
  }

  // Returns tr(M E H E^T) and tr(E H E^T).
  std::pair<double, double> losses() {
    double curved = 0, plain = 0;
    for (int64_t begin = 0; begin < in_; begin += kBlock) {
      const int64_t width = std::min(kBlock, in_ - begin);
      by_rows([&](int64_t first, int64_t n) {
        multiply<float>(width, n, rows_, 1, {&seen_[begin * rows_], rows_}, {&moment_[first], rows_}, false,
                        &slope_[first], rows_);
      });
      for (int64_t at = 0; at < width * rows_; ++at) {
        const double e = error_[begin * rows_ + at];
        curved += e * double{slope_[at]};
        plain += e * double{seen_[begin * rows_ + at]};
      }
    }
    return {curved, plain};
  }

 private:
  static size_t size(int64_t n, int64_t m) { return static_cast<size_t>(n * m); }
  template <typename F>
  void by_rows(F&& f) {
    pool_.run(rows_ / kChunk, [&](int64_t chunk, int) { f(chunk * kChunk, kChunk); });
  }

  float nearest(float target) const {
    auto above = std::lower_bound(levels_.begin(), levels_.end(), target);
    if (above == levels_.end()) return levels_.back();
    if (above == levels_.begin()) return *above;
    return *above - target < target - *(above - 1) ? *above : *(above - 1);
  }

  // Changes column j, row after row. `moved` is M times the changes so far; every later entry of the column needs it
  // and, at the end, so do the later columns of the block.
  bool step(int64_t j, int64_t begin, int64_t width) {
    float* change = &change_[(j - begin) * rows_];
    const float* slope = &slope_[(j - begin) * rows_];
    std::fill_n(change, rows_, 0.0f);
    const float curvature = h_[j * in_ + j];
    if (curvature == 0) return false;
    std::fill(moved_.begin(), moved_.end(), 0.0f);
    bool any = false;
    for (int64_t i = 0; i < out_; ++i) {
      Strip& strip = strips_[static_cast<size_t>(i / kLanes)];
      const int64_t lane = i % kLanes;
      const float own = moment_[i * rows_ + i], scale = strip.scales(j)[lane], offset = strip.offsets(j)[lane];
      if (own == 0 || scale == 0) continue;
      float& level = strip.level[j * kLanes + lane];
      const float value = scale * level + offset, left = slope[i] - curvature * moved_[i];
      const float best = nearest((value + left / (own * curvature) - offset) / scale);
      if (best == level) continue;
      level = best;
      change[i] = scale * best + offset - value;
      error_[j * rows_ + i] -= change[i];
      add_multiple(rows_, change[i], &moment_[i * rows_], moved_.data());
      any = true;
    }
    for (int64_t c = j + 1; any && c < begin + width; ++c)
      add_multiple(rows_, -h_[c * in_ + j], moved_.data(), &slope_[(c - begin) * rows_]);
    return any;
  }

  const float* h_;
  int64_t in_, out_, rows_;
  std::vector<Strip>& strips_;
  ThreadPool& pool_;
  std::vector<float> levels_;
  std::vector<float> moment_;          // (rows, rows)
  std::vector<float> error_, seen_;    // E and E H
  std::vector<float> slope_, change_;  // for a block's columns: M E H, and what was added to the weight
  std::vector<float> moved_;           // (rows)
};

}  // namespace

CurvatureLoss descend_curvature(const FormatSpec& spec, const Levels& levels, const Hessian& hessian,
                                std::span<const float> moment, int64_t out, int passes, std::vector<Strip>& strips,
                                ThreadPool& pool) {
  CurvatureDescent d(spec, levels, hessian, moment, out, strips, pool);
  CurvatureLoss loss;
  loss.before = d.losses().first;
  for (int pass = 0; pass < passes; ++pass) d.pass();
  d.refresh();
  std::tie(loss.after, loss.outputs) = d.losses();
  return loss;
}

}  // namespace fidelio
