// This file chooses the experts of a mixture from the logits of its router, in double. The choice for a row depends
// on that row's logits alone.
#pragma once
#include <span>

#include "step/routes.h"

namespace fidelio {

// Chooses experts from logits (n, E), with the adjustments of the rule. Among equals the first expert's comes first;
// NaN comes last.
void route(std::span<const float> logits, const RoutingRule& rule, std::span<const float> adjustments, Routes& routes);
// Makes `routes` from chosen experts (n, k), ascending in each row, and their shares (n, k).
void deal(std::span<const int32_t> experts, std::span<const float> shares, const RoutingRule& rule, Routes& routes);
// Returns routes without shares that give each of these rows a slot of its own. They serve Backend::routed alone.
Routes alone(std::span<const int32_t> rows);
Routes as_they_are(int64_t rows);  // the same for rows 0, 1, ..

}  // namespace fidelio
