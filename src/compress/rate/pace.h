// A Pace keeps --tokens-per-second: it finds plans that decode at so many tokens a second or more on this machine.
//
//   times of formats (format_times.h) --front--> plans foreseen to be fast enough
//     --search--> one of them, built --keeps--> timed: fast enough, or the front is made anew for a shorter time
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compress/rate/format_times.h"

namespace fidelio {

inline constexpr int kMostPaceTries = 4;  // the most plans that are built and timed

// A MeasuredRate says how fast a plan decodes. All rates are in tokens a second.
struct MeasuredRate {
  struct Try {
    double foreseen = 0, measured = 0;
  };
  double asked = 0;
  DecodeTimes timed;       // on which machine, and after how many tokens
  std::vector<Try> tries;  // all plans that were timed; the last one was kept
  const Try& kept() const { return tries.back(); }
};
nlohmann::json to_json(const MeasuredRate& rate);

class Pace {
 public:
  Pace(Desk& desk, Runners& runners, const SensitivityTable& table, Journal& journal)
      : desk_(desk), runners_(runners), table_(table), journal_(journal), asked_(desk.job.tokens_per_second) {}

  bool asked() const { return asked_ > 0; }
  void begin() { tries_.clear(); }  // Begins a search. It keeps the ratio of times that was learnt before.
  // Returns the plans of least distance for their size among those that are foreseen to be fast enough, by the plans
  // that were timed so far. Throws Error if there are none.
  std::vector<Plan> front(const Target& target) const;
  // Times the plan that is in force in the served runner and says whether it is fast enough. If not, the next front has
  // faster plans. Throws Error after kMostPaceTries. Every plan is fast enough if no rate is asked for.
  bool keeps(const Plan& plan);
  // Throws Error because no plan of the front meets the target. The message says what the rate and the target would
  // allow alone. `rho` is measured KL over predicted KL.
  [[noreturn]] void refuse(const Target& target, double rho) const;
  // Returns what was timed since begin(); nothing without a rate.
  std::optional<MeasuredRate> measured() const;

 private:
  struct Try {
    double foreseen = 0, measured = 0;  // seconds a token
  };
  double limit() const;  // the foreseen seconds that a plan may have
  std::string fastest_words(const Target& target, double rho) const;

  Desk& desk_;
  Runners& runners_;
  const SensitivityTable& table_;
  Journal& journal_;
  double asked_, ratio_ = 1;  // ratio_: the largest ratio of measured to foreseen seconds
  std::vector<Try> tries_;
};

// Throws Error if the times of the formats say that no plan can be as fast, before anything is quantised.
void check_pace(const Desk& desk, const FormatTimes& times);

}  // namespace fidelio
