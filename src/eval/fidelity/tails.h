// This file measures the tails of a comparison, which a mean does not show: the few positions at which two models
// differ most, the positions at which the source was sure of itself, and how both distances develop along a window.
//
//   KL quantiles     p50 .. p99.9 and the largest; for EAR the lowest
//   by confidence    mean KL and EAR where the source's most likely token has probability 0 to .2, .2 to .4, .. .8 to 1
//   by position      mean KL and EAR of the tokens that 1, 2 to 3, 4 to 7, 8 to 15 .. tokens of their window precede
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "eval/fidelity/fidelity.h"

namespace fidelio {

// A TailBand holds the number of positions of one band and their means, which are NaN if there are none.
struct TailBand {
  double from = 0;  // lower end of the band: a probability, or a number of preceding tokens
  int64_t positions = 0;
  double kl = 0, ear = 0;
};

struct Tails {
  int64_t positions = 0;  // if 0, nothing was counted and the other figures mean nothing
  // All KLs are in nats. A quantile is the KL that so many of all positions do not exceed, with a relative error of
  // at most kTailError. If there are too few positions for a quantile (500 are too few for p99.9), it is the largest
  // KL.
  double kl_p50 = 0, kl_p90 = 0, kl_p99 = 0, kl_p999 = 0, kl_largest = 0;
  double ear_lowest = 1;
  std::vector<TailBand> by_confidence, by_position;  // the bands by position end at that of the longest window
};

// Each power of two of KL is divided into this many bins, and the geometric middle of a bin stands for its values. A
// value lies within a factor 2^(1 / 2 kBinsAnOctave) of that middle, which is .55%.
inline constexpr int kBinsAnOctave = 64;
inline constexpr double kTailError = 0.0055;

// A TailCounter counts one position after another. Its result depends only on the positions and their order. A
// comparison passes them in the order of the text, whatever threads and batches it uses.
class TailCounter {
 public:
  TailCounter();
  // Counts one position. `position` is the number of tokens before it in its window, at least 1. `confidence` is the
  // source's largest probability.
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

// The JSON has the form {positions, kl: {p50, p90, p99, p99.9, largest, quantile_error}, ear: {lowest},
// by_confidence, by_position}, where both lists hold {from, positions, kl, ear}. It is null if nothing was counted. A
// mean over no position is null in the JSON and NaN here.
nlohmann::json to_json(const Tails& tails);
// Reads that form. Throws nlohmann::json::exception if a key is missing or has the wrong type.
Tails tails_from_json(const nlohmann::json& json);

}  // namespace fidelio
