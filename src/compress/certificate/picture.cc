#include "compress/certificate/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/report/html.h"

namespace fidelio {
namespace {

constexpr double kWide = 720, kLeft = 24, kRight = 696;  // of the drawing; text scales with it (html.cc)
constexpr double kRow = 76, kTop = 44;                   // height of a domain; of what stands above the first

// Maps a figure onto the picture's width.
struct Axis {
  double low, high;
  double at(double value) const { return kLeft + (kRight - kLeft) * (value - low) / (high - low); }
};

// The figure that a picture shows.
struct Shown {
  bool kl;
  const Estimate& mean(const DomainFidelity& d) const { return kl ? d.kl : d.ear; }
  const Estimate& next(const DomainFidelity& d) const { return kl ? d.document_kl : d.document_ear; }
  double of(const DocumentFidelity& d) const { return (kl ? d.kl : d.ear) / static_cast<double>(d.tokens); }
  std::optional<double> target(const Certificate& c) const { return kl ? c.target.kl : c.target.ear; }
  std::string text(double value) const {
    return kl ? fmt::format("{:.4g}", value) : fmt::format("{:.2f}%", 100 * value);
  }
};

Axis axis_over(const Certificate& c, std::span<const DocumentFidelity> documents, const Shown& shown) {
  double low = 1e300, high = -1e300;
  const auto hold = [&](double value) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  };
  for (const DomainFidelity& d : c.domains)
    for (const Estimate* e : {&shown.mean(d), &shown.next(d)}) hold(e->value), hold(e->ci95.low), hold(e->ci95.high);
  for (const DocumentFidelity& d : documents) hold(shown.of(d));
  if (const auto target = shown.target(c)) hold(*target);
  const double margin = std::max(0.04 * (high - low), 1e-6);
  return {low - margin, high + margin};
}

std::string bar(const Axis& axis, const Interval& ends, double y, double width, const char* colour) {
  if (!std::isfinite(ends.low) || !std::isfinite(ends.high)) return "";
  return fmt::format(
      "<path d=\"M{:.1f} {:.1f}H{:.1f}\" style=\"stroke:var({});stroke-width:{};stroke-linecap:round\"/>",
      axis.at(ends.low), y, axis.at(ends.high), colour, width);
}

std::string domain_row(const DomainFidelity& d, std::span<const DocumentFidelity> documents, const Shown& shown,
                       const Axis& axis, double top) {
  const double y = top + 34;
  std::string svg = fmt::format("<text class=\"label\" x=\"{}\" y=\"{:.1f}\">{}: {}</text>", kLeft, top + 18,
                                escape_html(d.domain), shown.text(shown.mean(d).value));
  svg += bar(axis, shown.next(d).ci95, y, 1.5, "--soft") + bar(axis, shown.mean(d).ci95, y, 7, "--s0");
  svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" style=\"fill:var(--s0)\"/>",
                     axis.at(shown.mean(d).value), y);
  int number = 0;
  for (const DocumentFidelity& one : documents) {
    if (one.domain != d.domain) continue;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" style=\"fill:var(--s1);fill-opacity:.65\"><title>{}: "
        "{}</title></circle>",
        axis.at(shown.of(one)), y + 14 + 7 * (number++ % 3), escape_html(one.name), shown.text(shown.of(one)));
  }
  return svg;
}

std::string figure(const std::string& title, const std::string& svg, double height, const std::string& note) {
  return fmt::format(
      "<figure><figcaption>{0}</figcaption><svg role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1} {2:.0f}\">{3}</svg>"
      "<p class=\"note\">{4}</p></figure>\n",
      escape_html(title), kWide, height, svg, escape_html(note));
}

std::string ruler(const Axis& axis, const Shown& shown, double y) {
  std::string svg = fmt::format("<path d=\"M{} {:.1f}H{}\" style=\"stroke:var(--line)\"/>", kLeft, y, kRight);
  for (double t : round_ticks(axis.low, axis.high))
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}v5\" style=\"stroke:var(--soft)\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
        "text-anchor=\"middle\">{3}</text>",
        axis.at(t), y, y + 26, shown.text(t));
  return svg;
}

std::string target_line(const Axis& axis, const Shown& shown, const Certificate& c, double bottom) {
  const auto target = shown.target(c);
  if (!target) return "";
  const double x = axis.at(*target);
  return fmt::format(
      "<path class=\"target\" d=\"M{0:.1f} {1}V{2:.1f}\"/><text x=\"{3:.1f}\" y=\"{1}\" text-anchor=\"{4}\">asked for: "
      "{5} {6}</text>",
      x, 22, bottom, std::clamp(x, kLeft, kRight), x < kWide / 2 ? "start" : "end", shown.kl ? "at most" : "at least",
      shown.text(*target));
}

}  // namespace

std::string domains_picture(const Certificate& c, std::span<const DocumentFidelity> documents) {
  const Shown shown{c.target.kl && !c.target.ear};
  const Axis axis = axis_over(c, documents, shown);
  const double bottom = kTop + kRow * static_cast<double>(c.domains.size());
  std::string svg = target_line(axis, shown, c, bottom);
  for (size_t i = 0; i < c.domains.size(); ++i)
    svg += domain_row(c.domains[i], documents, shown, axis, kTop + kRow * static_cast<double>(i));
  svg += ruler(axis, shown, bottom);
  return figure(shown.kl ? "KL by kind of text" : "Overlap (EAR) by kind of text", svg, bottom + 36,
                "Blue: the mean and its interval. Thin line: where a new document may lie. Orange: every document that "
                "was measured; hold the pointer over one for its name.");
}

std::string ladder_picture(const Certificate& c) {
  if (c.ladder.size() < 2) return "";
  Chart chart{"Plans tested on this text, by size", "bits a weight", "", false, false, {}};
  const Shown shown{c.target.kl && !c.target.ear};
  const bool of_top1 = c.target.top1 && !c.target.ear && !c.target.kl;
  chart.y_label = shown.kl ? "KL, nats a token" : of_top1 ? "greedy agreement" : "overlap (EAR)";
  ChartSeries held{"holds", {}, false}, failed{"does not hold", {}, false};
  for (const LadderStep& s : c.ladder) {
    const Estimate& e = shown.kl ? s.kl : of_top1 ? s.top1 : s.ear;
    (s.met ? held : failed).points.push_back({s.bits, e.value, e.ci95.low, e.ci95.high});
  }
  chart.series = {held, failed};
  const std::optional<double> target = shown.kl ? c.target.kl : of_top1 ? c.target.top1 : c.target.ear;
  if (target) chart.y_target = {*target, fmt::format("asked for {}", *target)};
  return svg_chart(chart);
}

std::string tails_picture(const Certificate& c) {
  if (c.tails.positions == 0) return "";
  const auto series_of = [](const std::vector<TailBand>& bands, double shift) {
    ChartSeries series{"mean KL", {}};
    for (const TailBand& b : bands)
      if (b.positions > 0) series.points.push_back({b.from + shift, b.kl});
    return series;
  };
  Chart by_position{"KL by place in the window", "tokens before", "KL, nats a token", true, false, {}};
  by_position.series = {series_of(c.tails.by_position, 0)};
  Chart by_confidence{"KL by how sure the original is", "its largest probability, bands of .2", "KL, nats a token"};
  by_confidence.series = {series_of(c.tails.by_confidence, 0.1)};
  return svg_chart(by_position) + svg_chart(by_confidence);
}

}  // namespace fidelio
