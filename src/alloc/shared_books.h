// This file lets a knapsack price codebooks that several formats share (shared_name in formats/format_spec.h). A plan
// pays for a shared codebook once, however many of its groups use it, so this cost is not a sum over groups.
// Therefore one knapsack is solved for each set of codebooks that a plan may use, over the options that need no other
// codebook.
#pragma once
#include "alloc/plan.h"

namespace fidelio {

// A PricedTable is a table restricted to one set of codebooks. Every plan of it is taken to pay `bytes` for the whole
// set.
struct PricedTable {
  SensitivityTable table;
  int64_t bytes = 0;
  std::vector<std::vector<int>> option;  // for each group and option, the option's index in the whole table

  // Translates a choice into indices of the whole table.
  std::vector<int> choice_of(const std::vector<int>& choice) const;
};
// Returns one table for each set of shared codebooks with which every group still has an option. There are at most
// 2^6 of them; without shared codebooks the result is the table itself. Throws Error if there are more than 6 shared
// codebooks.
std::vector<PricedTable> by_codebooks(const SensitivityTable& table);

}  // namespace fidelio
