// This file measures how well a draft guesses for a model and what its steps cost. The speed of speculation follows
// from these two numbers.
#pragma once
#include <array>

#include "app/options/common.h"

namespace fidelio::app {

// This is an answer that the model wrote; ids[begin] is the first token of its own.
struct WrittenAnswer {
  std::vector<int32_t> ids;
  int64_t begin = 0;
  bool sampled = false;  // If false, the answer is greedy.
};

// These are shares of the rows of answers, where the draft ran kCycle steps by itself from text that the model wrote.
// A copy guesses as well in the last of these steps as in the first; a predictor, which goes on from its own guess of
// what the model would have led to, does not.
constexpr int64_t kCycle = 4;
struct DraftQuality {
  double greedy = 0;   // It is the share in which both have the same first choice, on greedy answers.
  double ear = 0;      // It is the mean of sum min(p, q) at the temperature, on sampled answers.
  double coupled = 0;  // It is the share in which the same random number chooses the same token, on sampled answers.
  int64_t rows = 0;
  std::array<double, kCycle> greedy_by_step{}, coupled_by_step{};  // These are the same shares, step by step.
};
DraftQuality measure_quality(Runner& model, Reading reading, Runner& draft, Reading draft_reading,
                             const std::vector<WrittenAnswer>& answers, double temperature);

// Measures seconds of steps of one sequence in the middle of an answer: steps of the model with 1 to `most` rows, and
// of each draft with one row. They are medians of rounds in which each has its turn, so other load on the machine
// affects all alike.
struct DraftReading {
  Runner* runner = nullptr;
  Reading reading;
};
struct StepTimes {
  std::vector<double> verify;  // The index is [rows - 1]; one row is plain decoding.
  std::vector<double> drafts;
};
StepTimes measure_times(Runner& model, Reading reading, std::span<const DraftReading> drafts,
                        const WrittenAnswer& answer, int64_t most);

// This predicts the speed relative to plain decoding with the best number of drafts. Each draft behind accepted ones is
// accepted with the probability of its step; those behind the last step given have that step's.
struct Prediction {
  int64_t drafts = 0;
  double speedup = 1;
};
Prediction predict(std::span<const double> acceptance, std::span<const double> verify, double draft);

}  // namespace fidelio::app
