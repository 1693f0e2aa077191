#include "eval/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fidelio {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1d2433;--soft:#5d6779;--line:#dde2ea;--back:#fff;--panel:#f6f8fb;--s0:#2f6fde;--s1:#d9480f;--s2:#2b8a3e;--s3:#862e9c;--s4:#0b7285;--s5:#a61e4d;--s6:#7a5c00;--s7:#5f3dc4;--s8:#087f5b;--s9:#c2255c;--s10:#495057;--s11:#1864ab}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8f0;--soft:#9aa5b8;--line:#343c4b;--back:#12161f;--panel:#1a202c;--s0:#74a7ff;--s1:#ff9d6b;--s2:#69db7c;--s3:#da77f2;--s4:#3bc9db;--s5:#faa2c1;--s6:#ffd43b;--s7:#b197fc;--s8:#63e6be;--s9:#f783ac;--s10:#ced4da;--s11:#4dabf7}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1rem 4rem;max-width:60rem;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
p.lead,.note{color:var(--soft)}.note{font-size:.85rem}
figure{margin:1.5rem 0}figcaption{font-weight:600;margin-bottom:.5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);text-align:right}th:first-child{text-align:left;position:sticky;left:0;background:var(--back)}thead th{color:var(--soft);font-weight:600}
dl.words{display:grid;grid-template-columns:max-content 1fr;gap:.5rem 1.2rem;margin:1.2rem 0}dl.words dt{font-weight:600}dl.words dd{margin:0}@media(max-width:600px){dl.words{grid-template-columns:1fr;gap:.1rem}dl.words dd{margin-bottom:.6rem}}
footer{margin-top:3rem;padding-top:.8rem;border-top:1px solid var(--line);overflow-wrap:anywhere}
.target{stroke:var(--soft);stroke-dasharray:3 4;fill:none}svg text.label{fill:var(--ink);font-size:.92em}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--soft)}@media(max-width:600px){svg{font-size:22px}table{font-size:.82rem;white-space:normal}td,tbody th{overflow-wrap:anywhere}
table.wide,table.wide tbody,table.wide tr,table.wide th{display:block;width:100%}table.wide thead{display:none}table.wide tr{padding:.4rem 0;border-bottom:1px solid var(--line)}table.wide th,table.wide td{position:static;border:0;padding:.12rem 0}
table.wide td{display:flex;justify-content:space-between;gap:1rem}table.wide td::before{content:attr(data-column);color:var(--soft);text-align:left;overflow-wrap:normal}table.wide td:empty{display:none}}
.legend span{white-space:nowrap;margin-right:.9rem}
.tokens{background:var(--panel);border-radius:.5rem;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.9 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.tokens .prompt{color:var(--soft)}
.tokens mark{color:inherit;border-radius:.2rem;padding:.1rem .1rem;background:color-mix(in srgb,var(--s1) calc(var(--w)*1%),transparent)}
.tokens mark sup{color:var(--s0);font-size:.75em;font-weight:600;margin-left:.15rem}
details{border:1px solid var(--line);border-radius:.5rem;padding:.6rem 1rem;margin:.8rem 0}summary{cursor:pointer;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;margin:1.2rem 0}
.card{background:var(--panel);border-radius:.5rem;padding:.8rem 1rem}.card b{display:block;font-size:1.25rem;white-space:nowrap}.card span{color:var(--soft);font-size:.85rem}
)";

constexpr double kWidth = 720, kHeight = 360, kLeft = 92, kRight = 16, kTop = 14, kBottom = 66;

constexpr size_t kColours = 12;

struct Axis {
  double low, high;
  bool logarithmic;
  double from, to;  // the pixels where the axis begins and ends

  double at(double value) const {
    const auto scale = [&](double x) { return logarithmic ? std::log10(x) : x; };
    return from + (scale(value) - scale(low)) / (scale(high) - scale(low)) * (to - from);
  }
};

// Returns the ticks of an axis. Those outside it, apart from rounding, are left out.
std::vector<double> ticks(const Axis& axis) {
  if (!axis.logarithmic) return round_ticks(axis.low, axis.high);
  std::vector<double> all;
  // If there are three or more decades, only decades are ticks; if there are fewer, 1-2-5 steps are.
  const bool few = std::log10(axis.high / axis.low) < 2.5;
  for (double e = std::floor(std::log10(axis.low)); e <= std::ceil(std::log10(axis.high)); ++e)
    for (double step : few ? std::vector<double>{1, 2, 5} : std::vector<double>{1})
      all.push_back(step * std::pow(10, e));
  std::erase_if(all, [&](double t) { return t < axis.low * 0.999 - 1e-12 || t > axis.high * 1.001 + 1e-12; });
  return all;
}

bool drawn(const Chart& chart, const ChartPoint& p) {
  return std::isfinite(p.x) && std::isfinite(p.y) && (!chart.log_x || p.x > 0) && (!chart.log_y || p.y > 0);
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void hold(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Adds room at both ends, as a share of the length or of a decade.
  void widen(bool logarithmic, double share) {
    if (logarithmic) {
      const double factor = low == high ? 2 : std::pow(high / low, share);
      low /= factor, high *= factor;
    } else {
      const double room = low == high ? 0.5 : share * (high - low);
      low -= room, high += room;
    }
  }
};

std::array<Axis, 2> axes_of(const Chart& chart) {
  Range x, y;
  for (const ChartSeries& s : chart.series)
    for (const ChartPoint& p : s.points) {
      if (!drawn(chart, p)) continue;
      x.hold(p.x);
      y.hold(p.y);
      if (p.low < p.high && (!chart.log_y || p.low > 0)) y.hold(p.low);
      if (p.low < p.high) y.hold(p.high);
    }
  if (!chart.x_target.label.empty()) x.hold(chart.x_target.at);
  if (!chart.y_target.label.empty()) y.hold(chart.y_target.at);
  x.widen(chart.log_x, 0.03);
  y.widen(chart.log_y, 0.06);
  return {Axis{x.low, x.high, chart.log_x, kLeft, kWidth - kRight},
          Axis{y.low, y.high, chart.log_y, kHeight - kBottom, kTop}};
}

std::string draw_series(const Chart& chart, const ChartSeries& series, const Axis& x, const Axis& y, size_t number) {
  std::string path, marks, labels;
  for (const ChartPoint& p : series.points) {
    if (!drawn(chart, p)) continue;
    const double px = x.at(p.x), py = y.at(p.y);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
    if (!series.marks) continue;
    if (p.low < p.high)
      marks += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke-width=\"1.5\"/>", px,
                           chart.log_y && p.low <= 0 ? y.from : y.at(p.low), y.at(p.high));
    marks += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" style=\"fill:var(--s{})\"><title>{}: {:.6g}, "
        "{:.6g}</title></circle>",
        px, py, number % kColours, escape_html(p.label.empty() ? series.name : p.label), p.x, p.y);
    // The label goes towards the middle, so that it stays inside the chart.
    const bool right = px < (kLeft + kWidth) * 0.6;
    if (!p.label.empty())
      labels += fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                            px + (right ? 8 : -8), py - 7, right ? "start" : "end", escape_html(p.label));
  }
  std::string group = fmt::format("<g fill=\"none\"{} style=\"stroke:var(--s{})\">",
                                  series.faint ? " opacity=\".45\"" : "", number % kColours);
  if (series.line && !path.empty())
    group += fmt::format("<path stroke-width=\"{}\"{} d=\"{}\"/>", series.faint ? 1.5 : 2.5,
                         series.marks ? "" : " stroke-dasharray=\"6 5\"", path);
  return group + marks + "</g>" + labels;
}

struct Box {  // in pixels
  double left, right, top, bottom;
  bool holds(double px, double py) const { return px >= left && px <= right && py >= top && py <= bottom; }
};

// Returns true if a point or a line of the chart lies in the box.
bool is_taken(const Chart& chart, const Axis& x, const Axis& y, const Box& box) {
  constexpr int kSteps = 64;
  for (const ChartSeries& s : chart.series) {
    const ChartPoint* before = nullptr;
    for (const ChartPoint& p : s.points) {
      if (!drawn(chart, p)) continue;
      const ChartPoint& from = before && s.line ? *before : p;
      for (int i = 0; i <= kSteps; ++i) {
        const double part = static_cast<double>(i) / kSteps, px = x.at(from.x), py = y.at(from.y);
        if (box.holds(px + part * (x.at(p.x) - px), py + part * (y.at(p.y) - py))) return true;
      }
      before = &p;
    }
  }
  return false;
}

// Draws a dashed line across the chart. Its label stands where the axis begins, or at the other end if lines of the
// chart pass there and not here. Letters are measured as on narrow screens, where they are largest.
std::string draw_targets(const Chart& chart, const Axis& x, const Axis& y) {
  constexpr double kLetter = 11.5, kLine = 24;
  std::string svg;
  if (!chart.y_target.label.empty()) {
    const double at = y.at(chart.y_target.at), length = kLetter * static_cast<double>(chart.y_target.label.size());
    const bool under = at < kTop + kLine;
    const Box left{kLeft, kLeft + 6 + length, under ? at : at - kLine, under ? at + kLine : at},
        right{kWidth - kRight - 6 - length, kWidth - kRight, left.top, left.bottom};
    const bool at_end = is_taken(chart, x, y, left) && !is_taken(chart, x, y, right);
    svg += fmt::format(
        "<path class=\"target\" d=\"M{} {:.1f}H{}\"/><text class=\"label\" x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"{}\">{}</text>",
        kLeft, at, kWidth - kRight, at_end ? kWidth - kRight - 6 : kLeft + 6, under ? at + 15 : at - 6,
        at_end ? "end" : "start", escape_html(chart.y_target.label));
  }
  if (!chart.x_target.label.empty()) {
    const double at = x.at(chart.x_target.at);
    const bool right = at < (kLeft + kWidth) / 2;
    svg += fmt::format(
        "<path class=\"target\" d=\"M{:.1f} {}V{}\"/><text class=\"label\" x=\"{:.1f}\" y=\"{}\" "
        "text-anchor=\"{}\">{}</text>",
        at, kTop, kHeight - kBottom, at + (right ? 6 : -6), kTop + 14, right ? "start" : "end",
        escape_html(chart.x_target.label));
  }
  return svg;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
      case '\r':
        out += c;
        break;
      default:
        (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? out += "\uFFFD" : out += c;
    }
  }
  return out;
}

std::vector<double> round_ticks(double low, double high) {
  const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> all;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) all.push_back(k * step);
  for (double& t : all)
    if (std::fabs(t) < 1e-12) t = 0;  // avoids -0
  std::erase_if(all, [&](double t) { return t < low - 1e-12 || t > high + 1e-12; });
  return all;
}

std::string html_page(std::string_view title, std::string_view body, std::string_view made_by) {
  const std::string foot =
      made_by.empty() ? "" : fmt::format("<footer class=\"note\">{}</footer>\n", escape_html(made_by));
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">"
      "<link rel=\"icon\" "
      "href=\"data:,\"><title>{}</title><style>{}</style></head>\n<body>\n<h1>{}</h1>\n{}\n{}</body></html>\n",
      escape_html(title), kStyle, escape_html(title), body, foot);
}

std::string svg_chart(const Chart& chart) {
  const bool any = std::any_of(chart.series.begin(), chart.series.end(), [&](const ChartSeries& series) {
    return std::any_of(series.points.begin(), series.points.end(),
                       [&](const ChartPoint& point) { return drawn(chart, point); });
  });
  if (!any)  // axes around nothing would look like a result
    return "<figure><figcaption>" + escape_html(chart.title) +
           "</figcaption><p class=\"note\">No point of this chart could be measured.</p></figure>\n";
  const auto [x, y] = axes_of(chart);
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight,
                                escape_html(chart.title));
  for (double t : ticks(y))
    svg += fmt::format(
        "<path d=\"M{0} {1:.1f}H{2}\" style=\"stroke:var(--line)\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:.4g}</text>",
        kLeft, y.at(t), kWidth - kRight, kLeft - 8, y.at(t) + 4, t);
  for (double t : ticks(x))
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1}v5\" style=\"stroke:var(--soft)\"/><text x=\"{0:.1f}\" y=\"{2}\" "
        "text-anchor=\"middle\">{3:.4g}</text>",
        x.at(t), kHeight - kBottom, kHeight - kBottom + 26, std::fabs(t) < 1e-12 ? 0.0 : t);
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", (kLeft + kWidth - kRight) / 2,
                     kHeight - 10, escape_html(chart.x_label));
  svg += fmt::format("<text transform=\"translate(24 {:.0f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
                     (kTop + kHeight - kBottom) / 2, escape_html(chart.y_label));
  svg += draw_targets(chart, x, y);
  for (size_t i = 0; i < chart.series.size(); ++i) svg += draw_series(chart, chart.series[i], x, y, i);
  svg += "</svg>";
  std::string legend;
  for (size_t i = 0; i < chart.series.size() && chart.series.size() > 1; ++i)
    legend += fmt::format("<span><b style=\"color:var(--s{})\">●</b> {}</span> ", i % kColours,
                          escape_html(chart.series[i].name));
  return "<figure><figcaption>" + escape_html(chart.title) + "</figcaption>" + svg +
         (legend.empty() ? "" : "<p class=\"note legend\">" + legend + "</p>") + "</figure>\n";
}

}  // namespace fidelio
