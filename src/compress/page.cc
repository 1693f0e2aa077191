#include "compress/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "compress/certificate/picture.h"
#include "compress/certificate/words.h"
#include "core/foreign/units.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/statistics/statistics.h"
#include "eval/studies/grids.h"

namespace fidelio {
namespace {

std::string card(const std::string& value, std::string_view what) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value), escape_html(what));
}

std::string number_or_none(double x, int digits) { return std::isfinite(x) ? number_text(x, digits) : "?"; }
std::string interval(const Estimate& e, int digits) {
  return fmt::format("{} [{}, {}]", number_or_none(e.value, digits), number_or_none(e.ci95.low, digits),
                     number_or_none(e.ci95.high, digits));
}

// Shows the answers to the questions, if a loss of accuracy was the target.
std::string tasks(const CertifiedTasks& t) {
  Table table{
      "Tasks",
      "Recovery: accuracy over the source's, mean over tasks, paired by question. KL is of the answers that the "
      "source gave to the calibration questions. The line through the calibration plan says how much KL the "
      "drop allows (SLQ, Algorithm 2); other questions say whether it was right.",
      {"figure", "value"},
      {}};
  table.rows = {{"questions of calibration, of the check", fmt::format("{}, {}", t.asked.calibration, t.asked.check)},
                {"answers, runs", fmt::format("{}, {}", t.asked.sampling, t.asked.runs)},
                {"accuracy that may be lost", fmt::format("{:.2f}%", 100 * t.accuracy_drop)},
                {"calibration plan, bits", number_text(t.calibration_bits, 3)},
                {"its KL", interval(t.calibration_kl, 6)},
                {"its recovery", interval(t.calibration_recovery, 4)},
                {"accuracy lost a nat", interval(t.alpha, 3)},
                {"KL allowed", number_text(t.kl_allowed, 6)},
                {"KL of the plan", interval(t.kl, 6)},
                {"recovery of the plan, predicted", interval(t.predicted_recovery, 4)},
                {fmt::format("recovery of the plan, measured ({:g}%)", 100 * t.confidence), interval(t.recovery, 4)},
                {"plans checked", fmt::format("{}", t.plans_checked)}};
  return to_html(table);
}

std::string entries_text(const SensitivityTable& table) {
  if (table.method == "none") return "none: whole plans were measured";
  const auto [measured, derived] = entries(table);
  return derived == 0 ? fmt::format("{} measured", measured)
                      : fmt::format("{} measured, {} by the error of their weights", measured, derived);
}

// Shows EAR and KL of every kind of text, and of the source itself through the same kernels.
std::string domains(const Certificate& c) {
  Table table{
      "By kind of text",
      "Means over tokens, intervals by document; of a new document what it may have, 95%. The floor is the "
      "source itself through the kernels that serve, measured on the trial text: what they cost without a plan.",
      {"kind", "documents", "windows", "EAR", "KL", "EAR of a new document"},
      {}};
  const auto row = [&](const std::string& name, const DomainFidelity& d) {
    table.rows.push_back({name, fmt::format("{}", d.documents), fmt::format("{}", d.windows), interval(d.ear, 5),
                          interval(d.kl, 6), interval(d.document_ear, 5)});
  };
  for (const DomainFidelity& d : c.domains) row(d.domain, d);
  row("all", c.all);
  if (c.floor)
    table.rows.push_back(
        {"floor", "", fmt::format("{}", c.floor->windows), interval(c.floor->ear, 5), interval(c.floor->kl, 6), ""});
  return to_html(table);
}

// Says before any table what was promised, on which text, how sure it is, and what was not tested.
std::string plain_words(const Certificate& c, bool kept) {
  std::string html = "<dl class=\"words\">\n";
  for (const PlainWords& w : in_plain_words(c, kept))
    html += "<dt>" + escape_html(w.about) + "</dt><dd>" + escape_html(w.sentence) + "</dd>\n";
  return html + "</dl>\n";
}

std::string target_words(const Target& t) {
  std::string words = t.ear ? fmt::format("EAR ≥ {}", *t.ear) : "";
  if (t.kl) words += fmt::format("{}KL ≤ {}", words.empty() ? "" : ", ", *t.kl);
  if (t.top1) words += fmt::format("{}greedy agreement ≥ {}", words.empty() ? "" : ", ", *t.top1);
  return words;
}

std::string certificate(const CompressStory& s) {
  const Certificate& c = s.made.certificate;
  const std::string target = target_words(c.target);
  const std::string rate = s.made.rate ? fmt::format(" at {:g} tokens a second or more", s.made.rate->asked) : "";
  std::string html = "<p class=\"lead\">" + escape_html(s.model) +
                     (!target.empty() ? ": the smallest plan found with " + escape_html(target) + rate
                      : s.made.rate   ? ": the best fidelity" + rate
                                      : ": the best fidelity within a size") +
                     "." + "</p>\n";
  html += plain_words(c, true) + "<div class=\"cards\">" +
          card(number_text(c.promised.ear.value, 5),
               fmt::format("EAR on unseen text, {}: {} to {}", c.promised.domain,
                           number_or_none(c.promised.ear.ci95.low, 5), number_or_none(c.promised.ear.ci95.high, 5))) +
          card(fmt::format("{:.6f}", c.all.kl.value), "KL, nats a token") +
          card(fmt::format("{:.3f}", s.made.bits_per_parameter()), "bits a parameter, whole file") +
          card(fmt::format("{:.2f}×",
                           static_cast<double>(s.made.source_file_bytes) / static_cast<double>(s.made.file_bytes)),
               "smaller") +
          "</div>\n" + domains_picture(c, s.documents) + domains(c) + ladder_picture(c) + tails_picture(c);
  Table table{"Certificate",
              "Measured through the kernels that serve, on documents that the search has not seen; intervals are made "
              "by document. Every machine with these kernels makes the same bytes; others sum calibration in another "
              "order and choose some other codes (--isa).",
              {"figure", "value"},
              {}};
  table.rows = {{"promised of", std::string(name_of(c.promise))},
                {"same first choice", interval(c.all.top1, 5)},
                {"perplexity ratio", interval(c.perplexity_ratio, 5)},
                {"tokens", fmt::format("{}", c.all.tokens)},
                {"plans tested on the unseen text", fmt::format("{}", std::max<size_t>(1, c.ladder.size()))},
                {"level of the certified plan's test", fmt::format("{:g}%", 100 * certified_level(c.ladder))},
                {"kernels", fmt::format("{}", fmt::join(c.kernels, ", "))},
                {"activations and cache, served", c.activations + ", " + c.kv},
                {"activations of sensitivities", s.measured.table.activations},
                {"how it was found",
                 s.measured.table.method + ", " + (s.allocate_by == "kl" ? "KL" : "1 − EAR") + ", " + s.search},
                {"entries of the sensitivity table", entries_text(s.measured.table)},
                {"text SHA-256", c.places_sha256.substr(0, 16) + "…"},
                {"reference SHA-256", c.reference_sha256.substr(0, 16) + "…"}};
  if (s.made.rate) {
    const MeasuredRate& r = *s.made.rate;
    table.rows.push_back({fmt::format("tokens a second, after {} others", r.timed.context),
                          fmt::format("{:.4g} measured, {:g} asked for, {:.4g} foreseen", r.kept().measured, r.asked,
                                      r.kept().foreseen)});
    table.rows.push_back({"timed on", r.timed.machine});
  }
  html += to_html(table);
  if (c.tasks) html += tasks(*c.tasks);
  return html;
}

// Returns the place of the target on an axis of KL. An EAR has the KL of 1 - EAR = c sqrt(KL), with c as measured.
ChartTarget target_of(const CompressStory& s) {
  const Target& target = s.made.certificate.target;
  const double kl = target.allowed_kl(s.measured.table.ear_constant);
  return std::isfinite(kl) ? ChartTarget{kl, target_words(target)} : ChartTarget{};
}

std::string plans(const CompressStory& s) {
  Chart chart{"Size against distance", "KL, nats a token", "bits a weight", true, {}};
  ChartSeries front{"Pareto front", {}, true}, uniform{"one format everywhere", {}, false}, chosen{"chosen", {}, false};
  const size_t step = std::max<size_t>(1, s.front.size() / 40);  // A curve needs no more points.
  for (size_t i = 0; i < s.front.size(); i += step)
    if (s.front[i].kl > 0) front.points.push_back({s.front[i].kl, bits_per_parameter(s.measured.table, s.front[i])});
  for (const UniformPoint& u : s.measured.uniform) uniform.points.push_back({u.kl, u.bits, 0, 0, u.format});
  if (s.found.plan.kl > 0)
    chosen.points.push_back({s.found.plan.kl, bits_per_parameter(s.measured.table, s.found.plan)});
  chart.series = {front, uniform, chosen};
  chart.x_target = target_of(s);
  Table table{
      "One format everywhere",
      fmt::format("Measured on the search text, with {} activations; in the chart the KL of plans is predicted. "
                  "Bits are of the weight matrices alone, without the rest of the file.",
                  s.measured.table.activations),
      {"format", "bits a weight", "KL", "EAR"},
      {}};
  for (const UniformPoint& u : s.measured.uniform)
    table.rows.push_back({u.format, number_text(u.bits, 3), number_text(u.kl, 6), number_text(u.ear, 5)});
  std::string html = svg_chart(chart) + to_html(table);
  if (s.found.trials.empty()) return html;
  const bool of_tasks = s.made.certificate.tasks.has_value();
  Table trials{"Plans measured on the way",
               of_tasks ? "On the calibration questions with the source's answers." : "",
               {"bits a weight", "KL", "EAR [95%]", "EAR predicted"},
               {}};
  for (const TrialPoint& t : s.found.trials)
    trials.rows.push_back(
        {number_text(t.bits, 3), number_text(t.kl, 6), interval_text(t.ear, 5), number_text(t.predicted_ear, 5)});
  return html + to_html(trials);
}

// Returns the layer and role of a group: (3, "qkv") for "layers.3.qkv", and (-1, "embedding") for "embedding".
std::pair<int, std::string> place(const std::string& group) {
  int layer = -1;
  if (group.starts_with("layers.")) layer = std::stoi(group.substr(7));
  return {layer, layer < 0 ? group : group.substr(group.find('.', 7) + 1)};
}

struct Grid {
  std::string title, note;
  std::vector<std::string> rows, columns;
  struct Cell {
    double strength = -1;  // 0 to 1, or -1 if nothing is there
    std::string text, hint;
  };
  std::vector<std::vector<Cell>> cells;
};

std::string draw(const Grid& grid) {
  constexpr int kLeft = 84, kHigh = 24, kTop = 84, kRight = 44;  // The last column's name leans out.
  const int wide = 62, right = kLeft + wide * static_cast<int>(grid.columns.size());
  std::string svg = fmt::format(
      "<figure><figcaption>{}</figcaption><div class=\"scroll\"><svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} "
      "{}\" style=\"width:{}px;max-width:none;font-size:12px\">",
      escape_html(grid.title), escape_html(grid.title), right + kRight,
      kTop + kHigh * static_cast<int>(grid.rows.size()) + 4, right + kRight);
  for (size_t c = 0; c < grid.columns.size(); ++c) {
    const int x = kLeft + wide * static_cast<int>(c) + wide / 2 + 4;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" transform=\"rotate(-50 {} {})\">{}</text>", x, kTop - 6, x, kTop - 6,
                       escape_html(grid.columns[c]));
  }
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    const int y = kTop + kHigh * static_cast<int>(r);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kLeft - 8, y + 16,
                       escape_html(grid.rows[r]));
    for (size_t c = 0; c < grid.columns.size(); ++c) {
      const Grid::Cell& cell = grid.cells[r][c];
      if (cell.strength < 0) continue;
      const int x = kLeft + wide * static_cast<int>(c);
      svg += fmt::format(
          "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\" style=\"fill:color-mix(in "
          "srgb,var(--s1) {:.0f}%,var(--panel))\"/>",
          escape_html(cell.hint), x + 1, y + 1, wide - 2, kHigh - 2, 4 + 90 * std::clamp(cell.strength, 0.0, 1.0));
      if (!cell.text.empty())
        svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" style=\"fill:var(--ink)\">{}</text>",
                           x + wide / 2, y + 16, escape_html(cell.text));
      svg += "</g>";
    }
  }
  return svg + "</svg></div><p class=\"note\">" + escape_html(grid.note) + "</p></figure>\n";
}

// Returns a grid with a row for each layer and no columns yet, and puts the row of each layer into `row_of`.
Grid layer_grid(const SensitivityTable& table, std::map<int, size_t>& row_of) {
  Grid grid;
  for (const Group& g : table.groups) {
    const int layer = place(g.name).first;
    if (row_of.contains(layer)) continue;
    row_of[layer] = grid.rows.size();
    grid.rows.push_back(layer < 0 ? "vocabulary" : fmt::format("layer {}", layer));
  }
  return grid;
}

size_t column(Grid& grid, const std::string& name) {
  const auto found = std::find(grid.columns.begin(), grid.columns.end(), name);
  if (found != grid.columns.end()) return static_cast<size_t>(found - grid.columns.begin());
  grid.columns.push_back(name);
  return grid.columns.size() - 1;
}

void fill_columns(Grid& grid) {
  grid.cells.resize(grid.rows.size());
  for (auto& row : grid.cells) row.resize(grid.columns.size());
}

std::string heat_map(const SensitivityTable& table) {
  if (table.method == "none") return "";
  Grid grid;
  grid.title = "Sensitivity: what a group in a format costs";
  grid.note =
      "KL in nats a token, by layer, role and format, coloured on a logarithmic scale: the stronger, the more it "
      "breaks. Hold the pointer over a cell for its value and error.";
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Group& g : table.groups) {
    grid.rows.push_back(g.name.starts_with("layers.") ? g.name.substr(7) : g.name);
    for (const Option& o : g.options) {
      column(grid, to_string(o.format));
      if (o.kl > 0) low = std::min(low, o.kl), high = std::max(high, o.kl);
    }
  }
  fill_columns(grid);
  for (size_t row = 0; row < table.groups.size(); ++row)
    for (const Option& o : table.groups[row].options) {
      const double strength = o.kl > 0 && high > low ? std::log(o.kl / low) / std::log(high / low) : 0;
      grid.cells[row][column(grid, to_string(o.format))] = {
          strength, fmt::format("{:.1g}", o.kl),
          fmt::format("{} in {}: KL {:.3g} ± {:.1g}{}, {}", table.groups[row].name, to_string(o.format), o.kl, o.kl_se,
                      o.measured ? "" : " (by the error of its weights)", bytes_text(o.bytes))};
    }
  return draw(grid);
}

// Shows what each part costs on average over the layers that have it, with the parts in the order of a layer.
std::string by_part(const SensitivityTable& table) {
  if (table.method == "none") return "";
  std::vector<std::string> parts, formats;
  std::map<std::pair<std::string, std::string>, std::pair<double, int>> sums;  // KL, and groups
  const auto note = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const Group& g : table.groups)
    for (const Option& o : g.options) {
      note(parts, place(g.name).second), note(formats, to_string(o.format));
      auto& [kl, groups] = sums[{place(g.name).second, to_string(o.format)}];
      kl += o.kl, ++groups;
    }
  Table lines{
      "Sensitivity by part", "KL in nats a token, on average over the layers that have the part.", {"part"}, {}};
  lines.columns.insert(lines.columns.end(), formats.begin(), formats.end());
  for (const std::string& part : parts) {
    std::vector<std::string>& row = lines.rows.emplace_back(1, part);
    for (const std::string& format : formats) {
      const auto found = sums.find({part, format});
      row.push_back(found == sums.end() ? "" : fmt::format("{:.2g}", found->second.first / found->second.second));
    }
  }
  return to_html(lines);
}

// Shows the line of each group, if sensitivities were measured by noise.
std::string fits(const SensitivityTable& table) {
  const nlohmann::json about = nlohmann::json::parse(table.provenance);
  if (!about.contains("fits")) return "";
  Table lines{
      "Sensitivity by noise: a line for each group",
      "KL against the noise's power relative to the weights', through the origin; 95% intervals of the slope by "
      "Student's t, and how straight the points lie.",
      {"group", "slope [95%]", "R²"},
      {}};
  for (const nlohmann::json& fit : about["fits"])
    lines.rows.push_back({fit.at("group").get<std::string>(), interval(estimate_from_json(fit.at("alpha")), 3),
                          number_text(fit.at("r2").get<double>(), 4)});
  return to_html(lines);
}

std::string bit_map(const CompressStory& s) {
  std::map<int, size_t> row_of;
  Grid grid = layer_grid(s.measured.table, row_of);
  grid.title = "The plan: bits of every group";
  grid.note = "Bits of a code; the stronger the colour, the more bits. Hold the pointer over a cell for its format.";
  for (const Group& g : s.measured.table.groups) column(grid, place(g.name).second);
  fill_columns(grid);
  for (size_t i = 0; i < s.measured.table.groups.size(); ++i) {
    const Group& g = s.measured.table.groups[i];
    const Option& o = g.options[static_cast<size_t>(s.found.plan.choice[i])];
    grid.cells[row_of[place(g.name).first]][column(grid, place(g.name).second)] = {
        std::min(1.0, (o.format.bits - 2) / 7.0),
        fmt::format("{}{}", o.format.kind == Kind::grid ? "g" : "", o.format.bits),
        fmt::format("{}: {}, {:.3f} bits a parameter, {}", g.name, to_string(o.format),
                    8.0 * static_cast<double>(o.bytes) / static_cast<double>(g.parameters), bytes_text(o.bytes))};
  }
  grid.note += " g: a grid of the matrix's own values.";
  return draw(grid);
}

// Shows how often the first choices differ, by how sure the source was, on the certificate's text.
std::string flips(const CompressStory& s) {
  const NamedReport plan[] = {{"this plan", &s.found.certified}};
  return svg_chart(flips_chart(plan)) + to_html(flips_table(plan));
}

std::string gamma(const CompressStory& s) {
  Table table{
      "Symmetric grids against asymmetric ones",
      fmt::format(
          "gamma of the source's weight matrices at {} bits in groups of {}: rounding on a grid around zero has "
          "gamma² times the variance of rounding on the group's own range (SLQ, Lemma 3.2). Predicted: "
          "from the ranges; measured: from the errors.",
          kGammaBits, s.gamma_group == 0 ? std::string("a row") : std::to_string(s.gamma_group)),
      {"matrix", "gamma", "gamma² predicted", "ratio measured", "measured / predicted", "worst group"},
      {}};
  for (const GammaRow& row : s.gamma)
    table.rows.push_back({row.linear, number_text(row.law.gamma(), 4), number_text(row.law.predicted, 4),
                          number_text(row.law.measured, 4), number_text(row.law.measured / row.law.predicted, 4),
                          number_text(row.law.largest, 3)});
  return to_html(table);
}

std::string sizes(const CompressStory& s) {
  std::map<std::string, std::array<int64_t, 3>> by_format;  // groups, parameters, bytes
  for (size_t i = 0; i < s.measured.table.groups.size(); ++i) {
    const Group& g = s.measured.table.groups[i];
    const Option& o = g.options[static_cast<size_t>(s.found.plan.choice[i])];
    auto& sum = by_format[to_string(o.format)];
    sum[0] += 1;
    sum[1] += g.parameters;
    sum[2] += o.bytes;
  }
  Table table{"Sizes", "", {"what", "groups", "parameters", "bytes"}, {}};
  for (const auto& [format, sum] : by_format)
    table.rows.push_back({format, fmt::format("{}", sum[0]), fmt::format("{}", sum[1]), fmt::format("{}", sum[2])});
  const int64_t file = s.made.file_bytes;
  table.rows.push_back({"everything else", "", "", fmt::format("{}", s.measured.table.fixed_bytes)});
  table.rows.push_back({"header", "", "", fmt::format("{}", file - s.found.plan.bytes)});
  table.rows.push_back({"all files", "", fmt::format("{}", s.made.parameters), fmt::format("{}", file)});
  table.rows.push_back({"the source", "", "", fmt::format("{}", s.made.source_file_bytes)});
  Table time{"Time",
             "Of this run; what an interrupted one had finished is not counted.",
             {"phase", "seconds", "of CPU time"},
             {}};
  Seconds total;
  for (const auto& [name, spent] : s.made.seconds) {
    time.rows.push_back({name, number_text(spent.wall, 1), number_text(spent.cpu, 1)});
    total += spent;
  }
  time.rows.push_back({"all", number_text(total.wall, 1), number_text(total.cpu, 1)});
  return to_html(table) + to_html(time);
}

// Lists the documents, with the least faithful first.
std::string by_document(std::vector<DocumentFidelity> documents) {
  Table table{"By document", "The lowest EAR first.", {"document", "kind", "windows", "EAR", "KL"}, {}};
  const auto ear = [](const DocumentFidelity& d) { return d.ear / static_cast<double>(d.tokens); };
  std::stable_sort(documents.begin(), documents.end(),
                   [&](const DocumentFidelity& a, const DocumentFidelity& b) { return ear(a) < ear(b); });
  for (const DocumentFidelity& d : documents)
    table.rows.push_back({d.name, d.domain, fmt::format("{}", d.windows), number_text(ear(d), 5),
                          number_text(d.kl / static_cast<double>(d.tokens), 6)});
  return to_html(table);
}

}  // namespace

std::string certificate_html(const Certificate& certificate, bool kept, std::span<const DocumentFidelity> documents) {
  return plain_words(certificate, kept) + domains_picture(certificate, documents) + domains(certificate) +
         tails_picture(certificate);
}

std::string certify_page(const std::string& model, const std::string& verdict, const Certificate& certificate,
                         bool kept, const std::vector<DocumentFidelity>& documents, const std::string& made_by) {
  const std::string lead = "<p class=\"lead\">" + escape_html(model) + ": " + escape_html(verdict) + "</p>\n" +
                           certificate_html(certificate, kept, documents);
  return html_page("Certificate of " + model, lead + by_document(documents), made_by);
}

std::string compress_page(const CompressStory& s) {
  const std::string body = certificate(s) + flips(s) + "<h2>Plans</h2>\n" + plans(s) + "<h2>Groups</h2>\n" +
                           bit_map(s) + by_part(s.measured.table) + heat_map(s.measured.table) +
                           fits(s.measured.table) + "<h2>Grids</h2>\n" + gamma(s) + "<h2>Size and time</h2>\n" +
                           sizes(s);
  return html_page("Compressed and certified", body, s.made_by);
}

}  // namespace fidelio
