#include "alloc/plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"

namespace fidelio {

using nlohmann::json;

std::pair<int64_t, int64_t> entries(const SensitivityTable& t) {
  std::pair<int64_t, int64_t> n{0, 0};
  for (const Group& g : t.groups)
    for (const Option& o : g.options) ++(o.measured ? n.first : n.second);
  return n;
}

json to_json(const SensitivityTable& t) {
  json groups = json::array();
  for (const Group& g : t.groups) {
    json options = json::array();
    for (const Option& o : g.options) {
      options.push_back({{"format", to_string(o.format)},
                         {"bytes", o.bytes},
                         {"kl", o.kl},
                         {"kl_se", o.kl_se},
                         {"loss", o.loss},
                         {"loss_se", o.loss_se},
                         {"measured", o.measured}});
      if (t.decode) options.back()["seconds"] = o.seconds;
    }
    groups.push_back({{"name", g.name}, {"linears", g.linears}, {"parameters", g.parameters}, {"options", options}});
  }
  json table = {{"method", t.method},
                {"activations", t.activations},
                {"base_kl", t.base_kl},
                {"base_loss", t.base_loss},
                {"groups", groups},
                {"fixed_bytes", t.fixed_bytes},
                {"ear_constant", t.ear_constant},
                {"provenance", json::parse(t.provenance)}};
  if (t.decode)
    table["decode"] = {{"seconds", t.decode->seconds}, {"context", t.decode->context}, {"machine", t.decode->machine}};
  return table;
}

SensitivityTable table_from_json(const json& value) try {
  SensitivityTable t;
  t.method = value.at("method");
  t.activations = value.at("activations");
  t.base_kl = value.at("base_kl");
  t.base_loss = value.at("base_loss");
  t.fixed_bytes = value.at("fixed_bytes");
  t.ear_constant = value.at("ear_constant");
  t.provenance = value.at("provenance").dump();
  if (const auto found = value.find("decode"); found != value.end())
    t.decode = {found->at("seconds"), found->at("context"), found->at("machine")};
  for (const json& g : value.at("groups")) {
    Group group{g.at("name"), g.at("linears"), g.at("parameters"), {}};
    for (const json& o : g.at("options"))
      group.options.push_back({parse_format(o.at("format").get<std::string>()), o.at("bytes"), o.at("kl"),
                               o.at("kl_se"), o.at("loss"), o.at("loss_se"), o.at("measured"),
                               t.decode ? o.at("seconds").get<double>() : 0});
    check(!group.options.empty(), "sensitivity table: group {} offers no format", group.name);
    t.groups.push_back(std::move(group));
  }
  check(!t.groups.empty(), "sensitivity table: no groups");
  return t;
} catch (const json::exception& error) {
  throw Error("this is not a sensitivity table: {}", error.what());
}

json to_json(const SensitivityTable& t, const Plan& p) {
  json formats = json::object();
  for (size_t i = 0; i < t.groups.size(); ++i)
    formats[t.groups[i].name] = to_string(t.groups[i].options[static_cast<size_t>(p.choice[i])].format);
  json plan = {{"groups", formats},
               {"activations", t.activations},
               {"bytes", p.bytes},
               {"predicted_kl", p.kl},
               {"predicted_loss", p.loss}};
  if (t.decode) plan["predicted_seconds"] = p.seconds;
  return plan;
}

Plan evaluate(const SensitivityTable& t, std::vector<int> choice) {
  check(choice.size() == t.groups.size(), "a plan of {} choices for a table of {} groups", choice.size(),
        t.groups.size());
  std::set<std::string> codebooks;
  Plan p{std::move(choice), t.fixed_bytes, t.base_kl, t.base_loss, t.decode ? t.decode->seconds : 0};
  for (size_t i = 0; i < t.groups.size(); ++i) {
    const Option& o = t.groups[i].options.at(static_cast<size_t>(p.choice[i]));
    p.bytes += o.bytes;
    p.kl += o.kl;
    p.loss += o.loss;
    p.seconds += o.seconds;
    if (o.format.shared && codebooks.insert(shared_name(o.format)).second) p.bytes += shared_bytes(o.format);
  }
  return p;
}

double bits_per_parameter(const SensitivityTable& t, const Plan& p) {
  int64_t parameters = 0;
  for (const Group& g : t.groups) parameters += g.parameters;
  return 8.0 * static_cast<double>(p.bytes - t.fixed_bytes) / static_cast<double>(parameters);
}

double predicted_ear(const SensitivityTable& t, const Plan& p, double rho) {
  return 1 - t.ear_constant * std::sqrt(std::max(0.0, rho * p.kl));
}

namespace {

// Pools adjacent violators: replaces `value` by the nearest non-increasing sequence in weighted least squares.
void pool(std::vector<double>& value, const std::vector<double>& weight) {
  struct Block {
    double sum, weight;
    size_t count;
  };
  std::vector<Block> blocks;
  for (size_t i = 0; i < value.size(); ++i) {
    blocks.push_back({value[i] * weight[i], weight[i], 1});
    while (blocks.size() > 1 && blocks.back().sum / blocks.back().weight >
                                    blocks[blocks.size() - 2].sum / blocks[blocks.size() - 2].weight) {
      const Block last = blocks.back();
      blocks.pop_back();
      blocks.back() = {blocks.back().sum + last.sum, blocks.back().weight + last.weight,
                       blocks.back().count + last.count};
    }
  }
  size_t i = 0;
  for (const Block& b : blocks)
    for (size_t k = 0; k < b.count; ++k) value[i++] = b.sum / b.weight;
}

}  // namespace

void make_monotone(SensitivityTable& t) {
  for (Group& g : t.groups) {
    std::vector<size_t> order(g.options.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return g.options[a].bytes < g.options[b].bytes; });
    const auto repair = [&](double Option::*value, double Option::*error) {
      std::vector<double> v, w;
      for (size_t i : order) {
        // Errors are taken to be proportional to values; that is also what is assumed where no error was measured.
        const double e = g.options[i].*error > 0 ? g.options[i].*error : std::abs(g.options[i].*value);
        v.push_back(g.options[i].*value);
        w.push_back(1 / std::max(e * e, 1e-30));
      }
      pool(v, w);
      for (size_t i = 0; i < order.size(); ++i) g.options[order[i]].*value = v[i];
    };
    repair(&Option::kl, &Option::kl_se);
    repair(&Option::loss, &Option::loss_se);
  }
}

}  // namespace fidelio
