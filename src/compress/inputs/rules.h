// What a user decides instead of the search: formats of single modules, a table measured before, a whole plan.
#pragma once
#include "compress/table.h"

namespace fidelio {

// "layers.0.*=int8g64zs8": the linears whose short names, or whose group's, match the pattern (as file names do: * ? [])
// get this format. Throws Error for what is none.
FormatRule parse_rule(const std::string& text);

// Leaves every group the options that it may have: one format where a rule says so, the source's own where it is to be
// ignored, else those that --formats offers. Throws Error for a pattern that matches nothing or only a part of a group.
void apply_rules(const Desk& desk, SensitivityTable& table);

// The groups whose candidates are needed: all for measuring and evolution; for a table or a plan that was given only
// embedding and head, since layers are quantised for the plan itself (compress/builder.h).
std::vector<LinearGroup> groups_to_quantise(const Job& job, const std::vector<LinearGroup>& groups);

// The table of --from-table. Throws Error if it is of another model, other groups or other activations.
Measured table_from_file(const Desk& desk);

// The formats that --plan names; and a table that offers nothing else.
std::vector<FormatSpec> formats_of_plan(const std::string& file);
// That linears are quantised to in a table of --table, in its order.
std::vector<FormatSpec> formats_of_table(const std::string& file);
Measured table_of_plan(const Desk& desk);

}  // namespace fidelio
