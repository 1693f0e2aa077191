// The tails of a comparison: a mean says nothing of the few positions at which two models differ most, of those at which
// the source was sure of itself, nor of how both distances go along a window.
//
//   KL by position   p50 .. p99.9 and the largest; EAR: the lowest
//   by confidence    mean KL and EAR where the source's most likely token has 0 to .2, .2 to .4, .. .8 to 1
//   by position      mean KL and EAR of the tokens that 1, 2 to 3, 4 to 7, 8 to 15 .. tokens of their window precede
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "eval/fidelity/fidelity.h"

namespace fidelio {

// The positions of one band and the means over them; NaN where there are none.
struct TailBand {
  double from = 0;  // the band's lower end: a probability, or how many tokens precede
  int64_t positions = 0;
  double kl = 0, ear = 0;
};

struct Tails {
  int64_t positions = 0;  // 0: nothing was counted, and no figure below means anything
  // Nats. A quantile is the KL that so many of all positions do not exceed, to within kTailError of itself; one of fewer
  // positions than it takes (p99.9 of 500) is the largest.
  double kl_p50 = 0, kl_p90 = 0, kl_p99 = 0, kl_p999 = 0, kl_largest = 0;
  double ear_lowest = 1;
  std::vector<TailBand> by_confidence, by_position;  // bands of positions end at the longest window's
};

// Each power of two of KL has so many bins, whose geometric middle stands for what is in them. A value then lies within a
// factor 2^(1 / 2 kBinsAnOctave) of what is said, which is .55%.
inline constexpr int kBinsAnOctave = 64;
inline constexpr double kTailError = 0.0055;

// Counts position after position. What it finds depends on them and on their order alone: a comparison hands them over in
// the order of the text, whatever threads and batches there were.
class TailCounter {
 public:
  TailCounter();
  // `position`: how many tokens of the window precede, at least 1. `confidence`: the source's largest probability.
  void add(double kl, double ear, double confidence, int64_t position);
  Tails finish() const;

 private:
  struct Sum {
    int64_t positions = 0;
    double kl = 0, ear = 0;
  };
  static constexpr int kBands = 5;
  double quantile(double share) const;
  int64_t positions_ = 0;
  double kl_largest_ = 0, ear_lowest_ = 1;
  std::vector<int64_t> bins_;
  std::array<Sum, kBands> by_confidence_{};
  std::vector<Sum> by_position_;
};

// {positions, kl: {p50, p90, p99, p99.9, largest, quantile_error}, ear: {lowest}, by_confidence, by_position}, both lists
// of {from, positions, kl, ear}; null where nothing was counted. A mean over no position is null there and NaN here.
nlohmann::json to_json(const Tails& tails);
// Throws nlohmann::json::exception where a key is missing or of another kind.
Tails tails_from_json(const nlohmann::json& json);

}  // namespace fidelio
