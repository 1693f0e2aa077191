// Codebooks that formats share (shared_name, formats/format_spec.h) are paid once by a plan, whichever of its groups have
// them: a cost that groups do not add up. A knapsack is solved for each set of codebooks that a plan may use, among the
// options that need no other.
#pragma once
#include "alloc/plan.h"

namespace fidelio {

// A table of which every plan is taken to pay for `bytes` of codebooks, all that its options name.
struct PricedTable {
  SensitivityTable table;
  int64_t bytes = 0;
  std::vector<std::vector<int>> option;  // of each group and option, its place in the whole table

  std::vector<int> choice_of(const std::vector<int>& choice) const;  // in the whole table
};
// One for each set of the shared codebooks in the table for which every group has an option, at most 2^6; the table itself
// where there are none. Throws Error where there are more than 6.
std::vector<PricedTable> by_codebooks(const SensitivityTable& table);

}  // namespace fidelio
