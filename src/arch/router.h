// This file says how the routers of a model's mixtures of experts choose and weigh. step/routing.h computes it.
#pragma once
#include <cstdint>

namespace fidelio {

// Scoring says what a router makes of the logits of a row: their softmax, or the sigmoid of each.
enum class Scoring : uint8_t { softmax, sigmoid };

// A Router says how experts are chosen and summed, besides their numbers. RoutingRule (step/routes.h) has the law.
struct Router {
  Scoring scoring = Scoring::softmax;
  bool bias = false;                   // its logits have a bias
  bool corrected = false;              // a bias of each expert's score counts for the choice and not for the share
  bool scaled = false;                 // the share of each expert has a factor of its own
  int groups = 1, groups_per_row = 1;  // a row's experts are of so many groups
  double factor = 1;                   // all shares are multiplied by it
  bool operator==(const Router&) const = default;
};

}  // namespace fidelio
