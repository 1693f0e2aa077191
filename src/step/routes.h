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

#include "arch/router.h"

namespace fidelio {

// A RoutingRule says how a row's experts and their shares follow from the router's logits.
//
//   score    the softmax over all E logits, or the sigmoid of each
//   choice   the k experts of the largest logits; or, where the rule is corrected or has groups, of the largest
//            score + correction, among the experts of the groups_per_row groups whose two largest sum to most
//   share    the score, over the sum of the k scores if renormalised, times factor, times the expert's scale if scaled
//
// The corrections and scales of the experts are a router's adjustments (2, E): what is added to scores for the choice
// alone, and then the factors on shares. They are empty where the rule reads neither.
struct RoutingRule {
  int experts = 0;  // E
  int per_row = 0;  // k
  bool renormalised = false;
  Scoring scoring = Scoring::softmax;
  bool corrected = false, scaled = false;
  int groups = 1, groups_per_row = 1;  // groups are of E / groups experts that lie together, at least two
  double factor = 1;

  // Tells whether the experts are chosen by their scores; otherwise their logits say the same.
  bool by_score() const { return corrected || groups > 1; }
  bool is_adjusted() const { return corrected || scaled; }
};
// A sum of sigmoids is at least this, so that shares are numbers (transformers adds it).
inline constexpr double kLeastScores = 1e-20;

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
