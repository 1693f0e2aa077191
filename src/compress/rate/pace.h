// --tokens-per-second: plans that decode at so many tokens a second or more, on this machine, as served.
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

inline constexpr int kMostPaceTries = 4;  // plans built and timed

// MeasuredRate says how fast a plan decodes beside what was asked for; all rates are in tokens a second.
struct MeasuredRate {
  struct Try {
    double foreseen = 0, measured = 0;
  };
  double asked = 0;
  DecodeTimes timed;       // where, and after how many tokens
  std::vector<Try> tries;  // every plan that was timed; the last is the one that was kept
  const Try& kept() const { return tries.back(); }
};
nlohmann::json to_json(const MeasuredRate& rate);

class Pace {
 public:
  Pace(Desk& desk, Runners& runners, const SensitivityTable& table, Journal& journal)
      : desk_(desk), runners_(runners), table_(table), journal_(journal), asked_(desk.job.tokens_per_second) {}

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
  // Returns what was timed since begin(); nothing without a rate.
  std::optional<MeasuredRate> measured() const;

 private:
  struct Try {
    double foreseen = 0, measured = 0;  // seconds a token
  };
  double limit() const;  // seconds that a plan may be foreseen to take
  std::string fastest_words(const Target& target, double rho) const;

  Desk& desk_;
  Runners& runners_;
  const SensitivityTable& table_;
  Journal& journal_;
  double asked_, ratio_ = 1;  // of measured to foreseen seconds: the largest seen
  std::vector<Try> tries_;
};

// A format's times say that nothing can be as fast: refused before anything is quantised.
void check_pace(const Desk& desk, const FormatTimes& times);

}  // namespace fidelio
