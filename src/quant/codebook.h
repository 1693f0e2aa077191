// The grid of a `lut` format: 2^b signed bytes per matrix, ascending, the largest magnitude 127.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "formats/format_spec.h"

namespace fidelio {

// k-means of the values divided by their group's scale, each weighted by scale^2 importance_column, so that what is
// minimised is the error of the weights themselves. Scales and centroids alternate: the first scale of a group is its
// largest element, later ones come from the range search. Deterministic: histograms, not samples, and a start that
// follows the optimal density of levels (Panter and Dite 1951: the cube root of the values' density).
std::vector<int8_t> fit_codebook(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                                 std::span<const float> importance, ThreadPool& pool);

}  // namespace fidelio
