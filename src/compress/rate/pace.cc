#include "compress/rate/pace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/rate/decode_clock.h"
#include "core/hash.h"

namespace fidelio {
namespace {

// Plans must be foreseen to be this much faster than asked. Medians of times differ from run to run by a part of it,
// and a plan that just misses the rate is built for nothing.
constexpr double kMargin = 0.99;
// Neighbours on the front differ in size by half of what sizes are told apart by (search.h).
constexpr double kFrontResolution = 0.005;

std::string rate_text(double seconds) { return fmt::format("{:.4g}", 1 / seconds); }

}  // namespace

void check_pace(const Desk& desk, const FormatTimes& times) {
  const double asked = desk.job.tokens_per_second;
  desk.note(fmt::format("{1} tokens a second with every group in its fastest format, after {0} other tokens ({2})",
                        times.decode.context, rate_text(times.decode.seconds), times.decode.machine));
  check(
      times.decode.seconds <= kMargin / asked,
      "--tokens-per-second {}: with every group in the fastest of these formats this model is foreseen to decode at {} "
      "tokens a second here ({}). Ask for less, or offer faster --formats",
      asked, rate_text(times.decode.seconds), times.decode.machine);
}

double Pace::limit() const { return kMargin / (asked_ * ratio_); }

std::vector<Plan> Pace::front(const Target& target) const {
  FrontWithin front = front_within(table_, desk_.job.allocate_by, limit(), kFrontResolution);
  if (front.plans.empty()) refuse(target, 1);
  if (front.gap > 0)
    desk_.note(
        fmt::format("plans that are fast enough: within {:.2g}% of the least distance there can be", 100 * front.gap));
  return std::move(front.plans);
}

bool Pace::keeps(const Plan& plan) {
  if (!asked()) return true;
  const std::string name =
      "rate-" + sha256_hex(machine_of(desk_, runners_.reference()) + fmt::format(" {} ", decode_context(desk_)) +
                           to_json(table_, plan).dump())
                    .substr(0, 12);
  double measured = 0;
  if (const std::optional<std::string> kept = journal_.kept(name)) {
    measured = nlohmann::json::parse(*kept).at("seconds");
  } else {
    measured = DecodeClock(runners_.served(), decode_context(desk_), desk_.world.step_timer).seconds();
    journal_.keep(name, nlohmann::json{{"seconds", measured}}.dump());
  }
  tries_.push_back({plan.seconds, measured});
  const bool kept = measured * asked_ <= 1;
  desk_.note(fmt::format("decodes at {} tokens a second, {} foreseen, {} asked for{}", rate_text(measured),
                         rate_text(plan.seconds), asked_, kept ? "" : ": too slow, and a faster plan is looked for"));
  if (kept) return true;
  ratio_ = std::max(ratio_, measured / plan.seconds);
  std::vector<std::string> rates;
  for (const Try& t : tries_) rates.push_back(rate_text(t.measured));
  check(
      tries_.size() < kMostPaceTries,
      "--tokens-per-second {}: {} plans were built, each for a shorter time than the last, and decode at {} tokens a "
      "second here. Times of this machine vary too much to keep this rate; ask for less, or give it nothing else to do",
      asked_, tries_.size(), fmt::join(rates, ", "));
  return false;
}

// Returns words about the fastest plan, and about the fastest one that is predicted to meet the target.
std::string Pace::fastest_words(const Target& target, double rho) const {
  const double fastest = least_within(table_, Quantity::seconds, {})->plan.seconds * ratio_;
  std::string words =
      fmt::format("the fastest plan of these formats is foreseen at {} tokens a second", rate_text(fastest));
  const Limit limit{Quantity::kl, target.allowed_kl(table_.ear_constant) / rho};
  if (!std::isfinite(limit.most)) return words;
  const auto meeting = least_within(table_, Quantity::seconds, std::span(&limit, 1));
  return words + (meeting ? fmt::format(", the fastest that is predicted to meet the target at {}",
                                        rate_text(meeting->plan.seconds * ratio_))
                          : ", and none is predicted to meet the target");
}

void Pace::refuse(const Target& target, double rho) const {
  std::string wanted;
  if (target.ear) wanted += fmt::format(" EAR {}", *target.ear);
  if (target.kl) wanted += fmt::format("{} KL {}", wanted.empty() ? "" : " and", *target.kl);
  if (target.top1) wanted += fmt::format("{} greedy agreement {}", wanted.empty() ? "" : " and", *target.top1);
  throw Error("no plan {}decodes at {} tokens a second here: {}. Ask for less{}, or offer other --formats",
              wanted.empty() ? "" : "has" + wanted + " and ", asked_, fastest_words(target, rho),
              wanted.empty() ? "" : " of one of the two");
}

std::optional<MeasuredRate> Pace::measured() const {
  if (!asked() || tries_.empty()) return std::nullopt;
  MeasuredRate rate{asked_, *table_.decode, {}};
  for (const Try& t : tries_) rate.tries.push_back({1 / t.foreseen, 1 / t.measured});
  return rate;
}

nlohmann::json to_json(const MeasuredRate& rate) {
  nlohmann::json tries = nlohmann::json::array();
  for (const MeasuredRate::Try& t : rate.tries) tries.push_back({{"foreseen", t.foreseen}, {"measured", t.measured}});
  return {{"asked", rate.asked},           {"foreseen", rate.kept().foreseen}, {"measured", rate.kept().measured},
          {"context", rate.timed.context}, {"machine", rate.timed.machine},    {"tries", tries}};
}

}  // namespace fidelio
