// This file studies where a compressed model's first choices differ, and what a symmetric grid costs compared with an
// asymmetric one of as many bits (SLQ section 3.1). It charts and tabulates flips by the entropy of the reference
// (figure 2), their ratio between the two grids (figure 3), and the EAR that remains as layer after layer is put on a
// grid (figure 4).
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/studies/compare.h"

namespace fidelio {

struct NamedReport {
  std::string name;
  const FidelityReport* report;
};
// These show the share of positions whose first choice differs, in percent, by bins of entropy (fidelity.h,
// kEntropyEdges). Every report must be over the same text. A bin without positions has no point; a bin without flips
// has none on the chart's logarithmic axis.
Chart flips_chart(std::span<const NamedReport> models);
Table flips_table(std::span<const NamedReport> models);

// A GridSide holds one grid's models, layer after layer.
struct GridSide {
  std::string name;
  std::vector<FidelityReport> layers;  // layers[l] has the linears of layers 0 to l on the grid, so the last has all
};
// Puts the weights that `weight` returns into the candidate, layer by layer from the first, and measures after each
// layer. The embedding and the head stay as they are. The candidate keeps all of the new weights.
std::vector<FidelityReport> layer_by_layer(Runner& reference, Runner& candidate,
                                           const std::function<LinearWeight(LinearId)>& weight,
                                           std::span<const EvalText> texts, const CompareOptions& options,
                                           ThreadPool& pool, KeptStreams& kept,
                                           const std::function<void()>& measured = {});

struct GridStudy {
  GridSide symmetric, asymmetric;

  // Returns the flips of the symmetric grid divided by those of the asymmetric one, for one bin of entropy. The same
  // windows are drawn for both. It is NaN if the asymmetric grid has no flips.
  Estimate flips_ratio(size_t entropy_bin) const;
};
Chart ratio_chart(const GridStudy& study);
Chart layers_chart(const GridStudy& study);
std::vector<Table> tables(const GridStudy& study);
nlohmann::json to_json(const GridStudy& study);

}  // namespace fidelio
