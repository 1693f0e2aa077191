#include "compress/certificate/ladder_step.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace fidelio {

nlohmann::json to_json(const LadderStep& s) {
  return {{"bits", s.bits},      {"level", s.level},        {"ear", to_json(s.ear)},
          {"kl", to_json(s.kl)}, {"top1", to_json(s.top1)}, {"met", s.met}};
}

LadderStep ladder_step_from_json(const nlohmann::json& from) {
  return {from.at("bits").get<double>(),       estimate_from_json(from.at("ear")), estimate_from_json(from.at("kl")),
          estimate_from_json(from.at("top1")), from.at("met").get<bool>(),         from.at("level").get<double>()};
}

void check_ladder(const std::vector<LadderStep>& ladder) {
  if (ladder.empty()) return;
  const bool expected = ladder.front().met;
  for (size_t i = 0; i < ladder.size(); ++i) {
    const LadderStep& step = ladder[i];
    const double level = expected || i == 0 ? kExpectedLevel : kLargerLevel;
    check(step.level == level, "plan {} of its ladder was tested at the level {:g}, expected {:g}", i + 1, step.level,
          level);
    check(i + 1 == ladder.size() || step.met || i == 0, "plan {} of its ladder failed, and others were tested after it",
          i + 1);
    const bool first_of_larger = !expected && i == 1;
    check(i == 0 || (first_of_larger ? step.bits > ladder[0].bits : step.bits < ladder[i - 1].bits),
          "plan {} of its ladder is {} than the one before it", i + 1, first_of_larger ? "no larger" : "no smaller");
  }
  check(expected || (ladder.size() > 1 && ladder[1].met), "no plan of its ladder held");
}

double certified_level(const std::vector<LadderStep>& ladder) {
  for (size_t i = ladder.size(); i-- > 0;)
    if (ladder[i].met) return ladder[i].level;
  return kWholeLevel;
}

}  // namespace fidelio
