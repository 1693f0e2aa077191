#include "quant/feedback.h"

#include <algorithm>

#include "quant/algebra/products.h"

namespace fidelio {
namespace {

constexpr int64_t kTile = 256;    // size of a tile of C, which is one job
constexpr int64_t kTokens = 512;  // tokens summed in FP32 inside one product, so that any caller's batch rounds alike
constexpr int64_t kRows = 64;     // rows of a weight in one job
constexpr double kTrust = 32;     // tokens per column at which half of the correction is believed

}  // namespace

Feedback::Feedback(int64_t in) : in_(in), sums_(static_cast<size_t>(in * in) * sizeof(float)) {}

float Feedback::trust(int64_t tokens, int64_t in) {
  const auto t = static_cast<double>(tokens);
  return static_cast<float>(t / (t + kTrust * static_cast<double>(in)));
}

void Feedback::add(std::span<const float> source, std::span<const float> quantised, ThreadPool& pool) {
  check(source.size() == quantised.size() && static_cast<int64_t>(source.size()) % in_ == 0,
        "inputs of {} and {} values are not the same rows of {} columns", source.size(), quantised.size(), in_);
  const int64_t tokens = static_cast<int64_t>(source.size()) / in_;
  tokens_ += tokens;
  const int64_t tiles = (in_ + kTile - 1) / kTile;
  pool.run(tiles * tiles, [&](int64_t job, int) {
    const int64_t row = job / tiles * kTile, column = job % tiles * kTile;
    for (int64_t t = 0; t < tokens; t += kTokens)
      multiply<float>(std::min(kTile, in_ - row), std::min(kTile, in_ - column), std::min(kTokens, tokens - t), 1,
                      {source.data() + t * in_ + row, in_, true}, {quantised.data() + t * in_ + column, in_}, true,
                      sums_.as<float>() + row * in_ + column, in_);
  });
}

std::vector<float> Feedback::target(std::span<const float> w, int64_t out, const Hessian& hessian,
                                    const HessianFactor& factor, ThreadPool& pool) const {
  check(hessian.in() == in_ && factor.in == in_ && static_cast<int64_t>(w.size()) == out * in_,
        "feedback over {} columns for a Hessian of {} and a weight of {} values", in_, hessian.in(), w.size());
  // Computes C - H with its columns in the order of the factor's steps.
  std::vector<float> difference(static_cast<size_t>(in_ * in_));
  for (int64_t i = 0; i < in_; ++i)
    for (int64_t j = 0; j < in_; ++j) {
      const int64_t at = i * in_ + factor.order[static_cast<size_t>(j)];
      difference[static_cast<size_t>(i * in_ + j)] =
          sums_.as<const float>()[at] - hessian.matrix()[static_cast<size_t>(at)];
    }
  const float trusted = trust(tokens_, in_);
  std::vector<float> made(w.begin(), w.end());
  pool.run((out + kRows - 1) / kRows, [&](int64_t job, int) {
    const int64_t first = job * kRows, rows = std::min(kRows, out - first);
    std::vector<float> change(static_cast<size_t>(rows * in_)), turned(change.size());
    const auto times = [&](const float* from, Factor<float> by, std::vector<float>& to) {
      multiply<float>(rows, in_, in_, 1, {from, in_}, by, false, to.data(), in_);
    };
    times(w.data() + first * in_, {difference.data(), in_}, change);
    // The next two products multiply by (H + damping)^-1 = U^T U; U is stored with its zeros.
    times(change.data(), {factor.upper.as<const float>(), in_, true}, turned);
    times(turned.data(), {factor.upper.as<const float>(), in_}, change);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < in_; ++j)
        made[static_cast<size_t>((first + r) * in_ + factor.order[static_cast<size_t>(j)])] +=
            trusted * change[static_cast<size_t>(r * in_ + j)];
  });
  return made;
}

}  // namespace fidelio
