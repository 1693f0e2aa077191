// How good a draft is for a model, and what its steps cost: the two numbers a speculation's speed follows from.
#pragma once
#include "app/options/common.h"

namespace fidelio::app {

// What the model wrote: ids[begin] is the first token that is its own.
struct WrittenAnswer {
  std::vector<int32_t> ids;
  int64_t begin = 0;
  bool sampled = false;  // else greedy
};

// Shares of the rows of answers, where the draft made kCycle steps on its own from what the model wrote before.
struct DraftQuality {
  double greedy = 0;   // both have the same first choice; on greedy answers
  double ear = 0;      // mean of sum min(p, q) at the temperature; on sampled answers
  double coupled = 0;  // the same random number chooses the same token of both; on sampled answers
  int64_t rows = 0;
};
constexpr int64_t kCycle = 4;
DraftQuality measure_quality(Runner& model, Reading reading, Runner& draft, Reading draft_reading,
                             const std::vector<WrittenAnswer>& answers, double temperature);

// Seconds of steps of one sequence amid an answer: of the model with 1 to `most` rows, and of each draft with one. Medians
// of rounds in which everything has its turn, so that what else the machine does meets all of it alike.
struct DraftReading {
  Runner* runner = nullptr;
  Reading reading;
};
struct StepTimes {
  std::vector<double> verify;  // [rows - 1]; of one row: plain decoding
  std::vector<double> drafts;
};
StepTimes measure_times(Runner& model, Reading reading, std::span<const DraftReading> drafts,
                        const WrittenAnswer& answer, int64_t most);

// Of drafts accepted with this probability each: tokens a second against plain decoding, with the best number of them.
struct Prediction {
  int64_t drafts = 0;
  double speedup = 1;
};
Prediction predict(double acceptance, std::span<const double> verify, double draft);

}  // namespace fidelio::app
