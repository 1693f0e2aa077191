#include "grammar/string_formats.h"

#include <fmt/format.h>

#include <map>

namespace fidelio::grammar {
namespace {

// This matches existing days of the years 1 to 9999; the 29th of February exists in leap years only.
constexpr const char* kDate =
    R"(((\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))|(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29))";
constexpr const char* kTime = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
constexpr const char* kUuid = R"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})";
constexpr const char* kIpv4 = R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
constexpr const char* kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr const char* kDuration =
    R"(P(((\d{1,4}D|\d{1,4}M(\d{1,4}D)?|\d{1,4}Y(\d{1,4}M(\d{1,4}D)?)?)(T{0})?|T{0})|\d{1,4}W))";
constexpr const char* kSpan = R"((\d{1,4}H(\d{1,4}M(\d{1,4}S)?)?|\d{1,4}M(\d{1,4}S)?|\d{1,4}S))";

// An address has eight groups, or fewer with one ::, which stands for the missing ones.
std::string ipv6() {
  const std::string group = "[0-9a-f]{1,4}", others = "(:" + group + ")";
  std::string all = "(" + group + others + "{7}|::(" + group + others + "{0,6})?";
  for (int before = 1; before <= 6; ++before)
    all += fmt::format("|{0}{1}{{{2}}}::({0}{1}{{0,{3}}})?", group, others, before - 1, 6 - before);
  return all + "|" + group + others + "{6}::)";
}

std::string duration() {
  std::string all = kDuration;
  for (size_t at = 0; (at = all.find("{0}", at)) != std::string::npos;) all.replace(at, 3, kSpan);
  return all;
}

}  // namespace

const StringFormat* string_format(const std::string& name) {
  static const std::map<std::string, StringFormat> all = {
      {"date", {kDate}},
      {"time", {kTime}},
      {"date-time", {std::string(kDate) + "T" + kTime}},
      {"uuid", {kUuid}},
      {"ipv4", {kIpv4}},
      {"ipv6", {ipv6(), true}},
      {"duration", {duration(), true}},
      {"hostname", {fmt::format(R"({0}(\.{0}){{0,2}})", kLabel), true}},
      {"email",
       {fmt::format(R"([A-Za-z0-9_+-]{{1,30}}(\.[A-Za-z0-9_+-]{{1,30}})?@{0}(\.{0})?\.[A-Za-z]{{2,20}})", kLabel),
        true}}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace fidelio::grammar
