// This file reads what a user decides instead of the search: formats of single modules, a table that was measured
// before, or a whole plan.
#pragma once
#include "compress/table.h"

namespace fidelio {

// Parses a rule as "layers.0.*=int8g64zs8": linears get this format if their short names or the name of their group
// match the pattern, as file names do (* ? []). Throws Error for a text that is no rule.
FormatRule parse_rule(const std::string& text);

// Leaves every group only the options that it may have: one format if a rule says so, the source's own if it is to be
// ignored, or else those that --formats offers. Throws Error for a pattern that matches nothing or only a part of a
// group.
void apply_rules(const Desk& desk, SensitivityTable& table);

// Returns the groups whose candidates are needed. Measuring and evolution need all of them. A table or a plan that is
// given needs only embedding and head, since layers are quantised for the plan itself (compress/builder.h).
std::vector<LinearGroup> groups_to_quantise(const Job& job, const std::vector<LinearGroup>& groups);

// Reads the table of --from-table. Throws Error if it is of another model, other groups or other activations.
Measured table_from_file(const Desk& desk);

// Returns the formats that --plan names. table_of_plan() returns a table that offers nothing but the plan.
std::vector<FormatSpec> formats_of_plan(const std::string& file);
// Returns the quantised formats of a table that --table wrote, in its order.
std::vector<FormatSpec> formats_of_table(const std::string& file);
Measured table_of_plan(const Desk& desk);

}  // namespace fidelio
