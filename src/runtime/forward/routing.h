// The choice of a mixture of experts, made on the host from the router's logits, in double: n E numbers a layer. So both
// backends choose alike where their logits do, and a row's choice depends on its own logits alone.
#pragma once
#include <span>

#include "kernels/routes.h"

namespace fidelio {

struct RoutingRule {
  int experts = 0;            // E
  int per_row = 0;            // k
  bool renormalised = false;  // a row's k shares sum to 1; else they are what the softmax over all E gives them
};

// logits (n, E). Of equal ones the first expert's comes first; NaN last of all.
void route(std::span<const float> logits, const RoutingRule& rule, Routes& routes);
// For Backend::routed alone, without shares: each of these rows in a slot of its own.
Routes alone(std::span<const int32_t> rows);
Routes as_they_are(int64_t rows);  // rows 0, 1, ..

}  // namespace fidelio
