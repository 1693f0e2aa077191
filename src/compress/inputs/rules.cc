#include "compress/inputs/rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/foreign/json.h"

namespace fidelio {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Says whether a pattern matches this group, by its name or by the names of all its linears. Throws Error if it matches
// only some of them.
bool speaks_of(const std::string& option, const std::string& pattern, const Group& g) {
  if (matches(pattern, g.name)) return true;
  std::vector<std::string> in, out;
  for (const std::string& linear : g.linears) (matches(pattern, linear) ? in : out).push_back(linear);
  check(in.empty() || out.empty(), "{} {}: {} shares a format with {} (group {}); name both, or give --grouping single",
        option, pattern, in.empty() ? "" : in.front(), out.empty() ? "" : out.front(), g.name);
  return !in.empty();
}

const LinearGroup& group_named(const std::vector<LinearGroup>& groups, const std::string& name) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const LinearGroup& g) { return g.name == name; });
  check(found != groups.end(), "the model has no group {}", name);
  return *found;
}

Option option_of(const Checkpoint& source, const LinearGroup& group, const FormatSpec& format) {
  Option option{.format = format, .measured = false};
  for (LinearId id : group.linears) {
    const Shape shape = shape_of(source.config(), id);
    option.bytes += stored_bytes(format, shape[0], shape[1]);
  }
  return option;
}

nlohmann::json read_plan(const std::string& file) {
  nlohmann::json plan = parse_json(read_text_file(file), file);
  if (plan.is_object() && plan.contains("plan")) plan = nlohmann::json(plan["plan"]);
  check(plan.is_object() && plan.contains("groups") && plan["groups"].is_object() && !plan["groups"].empty(),
        "{} is no plan: an object with \"groups\", each with its format, is expected, as --json writes it", file);
  for (const auto& [name, format] : plan["groups"].items())
    check(format.is_string(), "{}: the format of {} is no string", file, name);
  return plan;
}

SensitivityTable read_table(const std::string& file) {
  const nlohmann::json table = parse_json(read_text_file(file), file);
  try {
    return table_from_json(table);
  } catch (const Error& error) {
    throw Error("{}: {}; --table writes one", file, error.what());
  }
}

// Compares everything but the costs of a table with the model. Sums over the table need no other bounds after that.
void check_table(const std::string& file, const Desk& desk, const SensitivityTable& table) {
  const int64_t fixed = fixed_bytes(desk.source, desk.groups);
  check(table.fixed_bytes == fixed, "{}: {} bytes belong to no group, not {}: the table is damaged", file, fixed,
        table.fixed_bytes);
  std::set<std::string> names;
  for (const Group& g : table.groups) {
    check(names.insert(g.name).second, "{} has the group {} twice: the table is damaged", file, g.name);
    const LinearGroup& own = group_named(desk.groups, g.name);
    std::vector<std::string> linears;
    int64_t parameters = 0;
    for (const LinearId id : own.linears) {
      linears.push_back(to_string(id));
      parameters += shape_of(desk.source.config(), id).elements();
    }
    check(g.linears == linears, "{}: the group {} is of {}, not of {}: the table is damaged", file, g.name,
          fmt::join(linears, ", "), fmt::join(g.linears, ", "));
    check(g.parameters == parameters, "{}: {} has {} parameters, not {}: the table is damaged", file, g.name,
          parameters, g.parameters);
    for (const Option& o : g.options) {
      const Option real = option_of(desk.source, own, o.format);
      check(real.bytes == o.bytes, "{}: {} in {} takes {} bytes, not {}: the table is damaged", file, g.name,
            to_string(o.format), real.bytes, o.bytes);
    }
  }
}

}  // namespace

FormatRule parse_rule(const std::string& text) {
  const size_t sign = text.find('=');
  check(sign != std::string::npos && sign > 0, "--rule {}: expected PATTERN=FORMAT, as 'layers.0.*=int8g64zs8'", text);
  return {text.substr(0, sign), parse_target(text.substr(sign + 1))};
}

void apply_rules(const Desk& desk, SensitivityTable& table) {
  const Job& job = desk.job;
  const auto used = [&](const std::string& option, const std::string& pattern) {
    check(std::any_of(table.groups.begin(), table.groups.end(),
                      [&](const Group& g) { return speaks_of(option, pattern, g); }),
          "{} {} matches no weight matrix; they are called layers.0.q, or embedding", option, pattern);
  };
  for (const std::string& pattern : job.ignored) used("--ignore", pattern);
  for (const FormatRule& rule : job.rules) used("--rule", rule.pattern);
  if (job.rules.empty() && job.ignored.empty()) return;
  for (Group& g : table.groups) {
    const FormatSpec own = desk.source.format(group_named(desk.groups, g.name).linears.front());
    std::vector<FormatSpec> allowed = job.offered;
    allowed.push_back(own);
    for (const FormatRule& rule : job.rules)  // The last rule that matches counts.
      if (speaks_of("--rule", rule.pattern, g)) allowed = {rule.format};
    for (const std::string& pattern : job.ignored)
      if (speaks_of("--ignore", pattern, g)) allowed = {own};
    std::erase_if(g.options, [&](const Option& o) {
      return std::find(allowed.begin(), allowed.end(), o.format) == allowed.end();
    });
    check(!g.options.empty(), "{} has no format left: its costs in {} are not in the table", g.name,
          to_string(allowed.front()));
  }
}

std::vector<LinearGroup> groups_to_quantise(const Job& job, const std::vector<LinearGroup>& groups) {
  if ((job.from_table.empty() || job.search != SearchKind::ilp) && job.plan_file.empty()) return groups;
  std::vector<LinearGroup> vocabulary;
  for (const LinearGroup& g : groups)
    if (g.linears.front().layer < 0) vocabulary.push_back(g);
  return vocabulary;
}

Measured table_from_file(const Desk& desk) {
  const std::string& file = desk.job.from_table;
  Measured measured;
  measured.table = read_table(file);
  const nlohmann::json provenance = nlohmann::json::parse(measured.table.provenance);
  check(provenance.is_object() && provenance.value("source_sha256", "") == desk.source.sha256(),
        "{} was measured on another model than {} (its SHA-256 differs)", file, desk.job.model);
  check(measured.table.activations == name_of(desk.table_mode()),
        "{} was measured with activations {}; this model is to be served with {}, which needs {}", file,
        measured.table.activations, name_of(desk.job.served()), name_of(desk.table_mode()));
  check(measured.table.groups.size() == desk.groups.size(),
        "{} has {} groups, the model {}: give the --grouping and --keep-embedding it was measured with", file,
        measured.table.groups.size(), desk.groups.size());
  check_table(file, desk, measured.table);
  return measured;
}

std::vector<FormatSpec> formats_of_plan(const std::string& file) {
  std::vector<FormatSpec> formats;
  const nlohmann::json plan = read_plan(file);
  for (const auto& [name, text] : plan["groups"].items()) {
    const FormatSpec format = parse_target(text.get<std::string>());
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) formats.push_back(format);
  }
  return formats;
}

std::vector<FormatSpec> formats_of_table(const std::string& file) {
  std::vector<FormatSpec> formats;
  for (const Group& g : read_table(file).groups)
    for (const Option& o : g.options)
      if (!o.format.is_dense() && std::find(formats.begin(), formats.end(), o.format) == formats.end())
        formats.push_back(o.format);
  return formats;
}

Measured table_of_plan(const Desk& desk) {
  const nlohmann::json plan = read_plan(desk.job.plan_file);
  Measured measured;
  SensitivityTable& table = measured.table;
  table.method = "given";
  table.activations = name_of(desk.table_mode());
  table.fixed_bytes = fixed_bytes(desk.source, desk.groups);
  for (const LinearGroup& own : desk.groups) {
    const auto named = plan["groups"].find(own.name);
    check(named != plan["groups"].end(),
          "{} names no format for {}: give the --grouping and --keep-embedding that it was made with",
          desk.job.plan_file, own.name);
    Group g{own.name, {}, 0, {option_of(desk.source, own, parse_target(named->get<std::string>()))}};
    for (LinearId id : own.linears) {
      g.linears.push_back(to_string(id));
      g.parameters += shape_of(desk.source.config(), id).elements();
    }
    table.groups.push_back(std::move(g));
  }
  check(plan["groups"].size() == desk.groups.size(), "{} names {} groups, the model has {}", desk.job.plan_file,
        plan["groups"].size(), desk.groups.size());
  return measured;
}

}  // namespace fidelio
