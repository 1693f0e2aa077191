// A mixture of experts: which experts the rows of a step pass, and under which shares what they give is summed.
//
//   row      0      1      2                 slots, an expert's together, its rows ascending
//   chosen   2 7    2 5    5 7               expert   2    2    5    5    7    7
//                                            slot     0    1    2    3    4    5
//                                            row      0    1    1    2    0    2
//
// Who chooses is step/routing.h, and on a GPU kernels/cuda/rows/routes.cu.
#pragma once
#include <cstdint>
#include <vector>

namespace fidelio {

struct RoutingRule {
  int experts = 0;            // E
  int per_row = 0;            // k
  bool renormalised = false;  // a row's k shares sum to 1; else they are what the softmax over all E gives them
};

struct ExpertRows {
  int expert;
  int64_t first_slot, slots;
};

struct Routes {
  int per_row = 0;
  std::vector<int32_t> rows;       // (n k) of the slots
  std::vector<float> shares;       // (n k) of the slots
  std::vector<int32_t> slots;      // (n, k) of the rows, ascending: the order in which a row's outputs are summed
  std::vector<ExpertRows> groups;  // of experts with rows, ascending

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// A product of every slot of a routed input by one matrix of its expert.
template <class Experts, class Matrix>
struct RoutedProduct {
  const Experts* weights;
  Matrix* y;  // a row for each slot
};

}  // namespace fidelio
