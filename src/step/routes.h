// This file describes the routes of a mixture of experts: which experts the rows of a step pass, and with which
// shares their outputs are summed. A slot is one expert of one row.
//
//   row      0      1      2                 slots, an expert's together, its rows ascending
//   chosen   2 7    2 5    5 7               expert   2    2    5    5    7    7
//                                            slot     0    1    2    3    4    5
//                                            row      0    1    1    2    0    2
//
// step/routing.h chooses the experts, and on a GPU kernels/cuda/rows/routes.cu.
#pragma once
#include <cstdint>
#include <vector>

namespace fidelio {

struct RoutingRule {
  int experts = 0;  // E
  int per_row = 0;  // k
  // The k shares of a row are scaled to sum to 1; otherwise they are those of the softmax over all E.
  bool renormalised = false;
};

// ExpertRows are the slots of one expert.
struct ExpertRows {
  int expert;
  int64_t first_slot, slots;
};

// Routes are all slots of a step, sorted by expert.
struct Routes {
  int per_row = 0;
  std::vector<int32_t> rows;   // (n k) the row of each slot
  std::vector<float> shares;   // (n k) the share of each slot
  std::vector<int32_t> slots;  // (n, k) the slots of each row, ascending: the order in which a row's outputs are summed
  std::vector<ExpertRows> groups;  // the experts that have rows, ascending

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// A RoutedProduct multiplies every slot of a routed input by the matrix of the slot's expert.
template <class Experts, class Matrix>
struct RoutedProduct {
  const Experts* weights;
  Matrix* y;  // one row for each slot
};

}  // namespace fidelio
