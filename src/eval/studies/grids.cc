#include "eval/studies/grids.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr const char* kEntropyLabel = "entropy of the original, nats";

// Returns where a bin stands on an axis of entropy. The last bin has no upper end and is drawn as wide as the one
// before it.
double middle_of(size_t bin) {
  const double from = kEntropyEdges[bin];
  const double to = bin + 1 < kEntropyEdges.size() ? kEntropyEdges[bin + 1] : 2 * from - kEntropyEdges[bin - 1];
  return (from + to) / 2;
}

std::string name_of_bin(size_t bin) {
  return bin + 1 < kEntropyEdges.size() ? fmt::format("{:g} to {:g}", kEntropyEdges[bin], kEntropyEdges[bin + 1])
                                        : fmt::format("{:g} and more", kEntropyEdges[bin]);
}

double positions_in(const FidelityReport& report, size_t bin) {
  double sum = 0;
  for (const WindowFidelity& w : report.windows) sum += w.sums.bin_positions[bin];
  return sum;
}

Estimate scaled(const Estimate& e, double by) { return {by * e.value, {by * e.ci95.low, by * e.ci95.high}}; }

}  // namespace

Chart flips_chart(std::span<const NamedReport> models) {
  Chart chart{.title = "Flips of the first choice by entropy",
              .x_label = kEntropyLabel,
              .y_label = "positions flipped, %",
              .log_y = true,
              .series = {}};
  for (const NamedReport& m : models) {
    ChartSeries series{m.name, {}};
    for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin) {
      const Estimate e = scaled(m.report->flips(bin), 100);
      series.points.push_back({middle_of(bin), e.value, e.ci95.low, e.ci95.high});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Table flips_table(std::span<const NamedReport> models) {
  Table table{"Flips of the first choice by entropy",
              "Positions by the entropy of the original's prediction there, and the share of them whose most likely "
              "token is another; 95% bootstrap intervals by window. The chart has each bin at its middle.",
              {"entropy, nats", "positions"},
              {}};
  for (const NamedReport& m : models) table.columns.push_back(models.size() == 1 ? "flips, %" : m.name + ": flips, %");
  for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin) {
    table.rows.push_back({name_of_bin(bin), fmt::format("{:.0f}", positions_in(*models[0].report, bin))});
    for (const NamedReport& m : models)
      table.rows.back().push_back(interval_text(scaled(m.report->flips(bin), 100), 2));
  }
  return table;
}

std::vector<FidelityReport> layer_by_layer(Runner& reference, Runner& candidate,
                                           const std::function<LinearWeight(LinearId)>& weight,
                                           std::span<const EvalText> texts, const CompareOptions& options,
                                           ThreadPool& pool, KeptStreams& kept, const std::function<void()>& measured) {
  std::vector<FidelityReport> reports;
  for (int layer = 0; layer < candidate.config().L; ++layer) {
    for (LinearId id : linears_of(candidate.config()))
      if (id.layer == layer) candidate.set_linear(id, candidate.pack(weight(id)));
    reports.push_back(compare_models(reference, candidate, texts, options, pool, {}, &kept));
    if (measured) measured();
  }
  return reports;
}

Estimate GridStudy::flips_ratio(size_t bin) const {
  const std::vector<WindowFidelity>&s = symmetric.layers.back().windows, &a = asymmetric.layers.back().windows;
  check(s.size() == a.size(), "two grids are compared on the same windows, not {} and {}", s.size(), a.size());
  std::vector<double> flips, of_asymmetric;
  for (size_t i = 0; i < s.size(); ++i) {
    flips.push_back(s[i].sums.bin_flips[bin]);
    of_asymmetric.push_back(a[i].sums.bin_flips[bin]);
  }
  return ratio(flips, of_asymmetric, symmetric.layers.back().options.bootstrap);
}

Chart ratio_chart(const GridStudy& study) {
  Chart chart{.title = "Flips of the symmetric grid over those of the asymmetric one",
              .x_label = kEntropyLabel,
              .y_label = "ratio of flips",
              .log_y = true,
              .series = {{study.symmetric.name + " over " + study.asymmetric.name, {}}}};
  chart.y_target = {1, "as many"};
  for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin) {
    const Estimate e = study.flips_ratio(bin);
    chart.series[0].points.push_back({middle_of(bin), e.value, e.ci95.low, e.ci95.high});
  }
  return chart;
}

Chart layers_chart(const GridStudy& study) {
  Chart chart{.title = "EAR as layer after layer is put on the grid",
              .x_label = "layers on the grid, from the first",
              .y_label = "EAR",
              .series = {}};
  for (const GridSide* side : {&study.symmetric, &study.asymmetric}) {
    ChartSeries series{side->name, {}};
    for (size_t l = 0; l < side->layers.size(); ++l) {
      const Estimate e = side->layers[l].ear();
      series.points.push_back({static_cast<double>(l + 1), e.value, e.ci95.low, e.ci95.high});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::vector<Table> tables(const GridStudy& study) {
  const GridSide &s = study.symmetric, &a = study.asymmetric;
  const NamedReport whole[] = {{s.name, &s.layers.back()}, {a.name, &a.layers.back()}};
  Table flips = flips_table(whole);
  flips.columns.push_back("ratio");
  for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin)
    flips.rows[bin].push_back(interval_text(study.flips_ratio(bin), 2));
  Table layers{
      "Layer after layer",
      "The weight matrices of this many layers, from the first, on the grid; the others as they were. 95% bootstrap "
      "intervals by window.",
      {"layers", s.name + ": EAR", a.name + ": EAR", s.name + ": KL", a.name + ": KL", "ratio of KL"},
      {}};
  for (size_t l = 0; l < s.layers.size(); ++l)
    layers.rows.push_back({fmt::format("{}", l + 1), interval_text(s.layers[l].ear(), 5),
                           interval_text(a.layers[l].ear(), 5), interval_text(s.layers[l].kl(), 6),
                           interval_text(a.layers[l].kl(), 6),
                           number_text(s.layers[l].kl().value / a.layers[l].kl().value, 3)});
  return {flips, layers};
}

nlohmann::json to_json(const GridStudy& study) {
  nlohmann::json report;
  for (const auto& [key, side] : {std::pair("symmetric", &study.symmetric), {"asymmetric", &study.asymmetric}}) {
    nlohmann::json& out = report[key];
    out["name"] = side->name;
    for (const FidelityReport& r : side->layers)
      out["layers"].push_back({{"ear", to_json(r.ear())}, {"kl", to_json(r.kl())}});
    out["flips_by_entropy"] = flips_json(side->layers.back());
  }
  for (size_t bin = 0; bin < kEntropyEdges.size(); ++bin)
    report["flips_ratio"].push_back({{"entropy_from", kEntropyEdges[bin]}, {"ratio", to_json(study.flips_ratio(bin))}});
  return report;
}

}  // namespace fidelio
