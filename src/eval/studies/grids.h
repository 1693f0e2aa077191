// Where a compressed model's first choices differ, and what a symmetric grid costs beside an asymmetric one of as many
// bits (SLQ section 3.1): flips by the entropy of the reference (figure 2), their ratio between the two grids (figure
// 3), and what is left of EAR as layer after layer is put on a grid (figure 4). As charts and as tables of their numbers.
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
// Share of positions whose first choice is another one, in percent, by bins of entropy (fidelity.h, kEntropyEdges);
// every report over the same text. A bin without positions has no point; one without flips none on the chart's
// logarithmic axis.
Chart flips_chart(std::span<const NamedReport> models);
Table flips_table(std::span<const NamedReport> models);

// One grid's models, layer after layer.
struct GridSide {
  std::string name;
  std::vector<FidelityReport> layers;  // [l]: the linears of layers 0 to l on the grid; the last: of all layers
};
// Puts the weights that `weight` gives into the candidate, layer by layer from the first, and measures after each. The
// embedding and the head stay as they are. The candidate is left with all of them.
std::vector<FidelityReport> layer_by_layer(Runner& reference, Runner& candidate,
                                           const std::function<LinearWeight(LinearId)>& weight,
                                           std::span<const EvalText> texts, const CompareOptions& options,
                                           ThreadPool& pool, KeptStreams& kept,
                                           const std::function<void()>& measured = {});

struct GridStudy {
  GridSide symmetric, asymmetric;

  // Flips of the symmetric grid over those of the asymmetric one, of one bin of entropy; the same windows are drawn for
  // both. NaN where the asymmetric one has none.
  Estimate flips_ratio(size_t entropy_bin) const;
};
Chart ratio_chart(const GridStudy& study);
Chart layers_chart(const GridStudy& study);
std::vector<Table> tables(const GridStudy& study);
nlohmann::json to_json(const GridStudy& study);

}  // namespace fidelio
