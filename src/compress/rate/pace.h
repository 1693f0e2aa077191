// --tokens-per-second: plans that decode at so many tokens a second or more, on this machine, as served.
//
//   times of formats (format_times.h) --front--> plans foreseen to be fast enough
//     --search--> one of them, built --keeps--> timed: fast enough, or the front is made anew for a shorter time
#pragma once
#include "compress/rate/format_times.h"

namespace fidelio {

inline constexpr int kMostPaceTries = 4;  // plans built and timed

class Pace {
 public:
  Pace(Desk& desk, const SensitivityTable& table, Journal& journal)
      : desk_(desk), table_(table), journal_(journal), asked_(desk.job.tokens_per_second) {}

  bool asked() const { return asked_ > 0; }
  void begin() { tries_.clear(); }  // a search; what was learnt of times stays
  // Plans of least distance for their size among those foreseen to be fast enough, as far as plans that were timed say.
  // Throws Error if there are none.
  std::vector<Plan> front(const Target& target) const;
  // Whether the plan in force in the served runner is fast enough, by the clock. If not, the next front is of faster
  // plans. Throws Error after kMostPaceTries. Without a rate: yes.
  bool keeps(const Plan& plan);
  // No plan of the front meets the target: says what the two would allow each alone. `rho`: measured KL over predicted.
  [[noreturn]] void refuse(const Target& target, double rho) const;
  // {asked, foreseen, measured, context, machine, tries}, rates in tokens a second; null without a rate. Of the last plan
  // that was timed.
  nlohmann::json about() const;

 private:
  struct Try {
    double foreseen = 0, measured = 0;  // seconds a token
  };
  double limit() const;  // seconds that a plan may be foreseen to take
  std::string fastest_words(const Target& target, double rho) const;

  Desk& desk_;
  const SensitivityTable& table_;
  Journal& journal_;
  double asked_, ratio_ = 1;  // of measured to foreseen seconds: the largest seen
  std::vector<Try> tries_;
};

// A format's times say that nothing can be as fast: refused before anything is quantised.
void check_pace(const Desk& desk, const FormatTimes& times);

}  // namespace fidelio
