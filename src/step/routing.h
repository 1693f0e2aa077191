// The choice of a mixture of experts from the router's logits, in double: a row's depends on its own logits alone.
#pragma once
#include <span>

#include "step/routes.h"

namespace fidelio {

// logits (n, E). Of equal ones the first expert's comes first; NaN last of all.
void route(std::span<const float> logits, const RoutingRule& rule, Routes& routes);
// Deals out rows whose experts (n, k), ascending in each row, and shares (n, k) are chosen.
void deal(std::span<const int32_t> experts, std::span<const float> shares, const RoutingRule& rule, Routes& routes);
// For Backend::routed alone, without shares: each of these rows in a slot of its own.
Routes alone(std::span<const int32_t> rows);
Routes as_they_are(int64_t rows);  // rows 0, 1, ..

}  // namespace fidelio
