// This file fits the grid of a `lut` format, which is 2^b signed bytes per matrix in ascending order with the largest
// magnitude 127.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "formats/format_spec.h"

namespace fidelio {

// Runs k-means over the values divided by their group's scale. Each value has the weight scale^2 importance_column,
// so that the error of the weights themselves is minimised. `w` is (out, in) and `importance` (in). Scales and
// centroids are fitted in turn: a group's first scale comes from its largest element, later ones from the range
// search. The result is deterministic, because it uses histograms instead of samples and starts from the optimal
// density of levels (Panter and Dite 1951: the cube root of the values' density).
std::vector<int8_t> fit_codebook(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                                 std::span<const float> importance, ThreadPool& pool);

}  // namespace fidelio
