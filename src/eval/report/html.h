// This file writes self-contained HTML pages: one file without scripts, and without fonts or images from elsewhere.
// Pages are readable from a width of 400 pixels, in light and in dark mode. Charts are inline SVG, and a table beside
// each has its numbers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

std::string escape_html(std::string_view text);  // escapes & < > " and '; control characters become U+FFFD

// Returns a whole document. Its last line, `made_by`, says what made it (version, date, command).
std::string html_page(std::string_view title, std::string_view body, std::string_view made_by = {});

// Returns round numbers that divide [low, high] into about five parts.
std::vector<double> round_ticks(double low, double high);

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // an error bar is drawn if low < high
  std::string label{};       // written beside the point
};
struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points{};  // drawn in this order
  bool line = true;                  // joins the points by a line
  bool faint = false;                // draws in the background, for example series of which another one is the mean
  bool marks = true;                 // draws a dot for each point; otherwise the line alone, dashed, as for a fit
};
struct ChartTarget {  // a line across the chart
  double at = 0;
  std::string label{};  // "" means that there is none
};
struct Chart {
  std::string title{}, x_label{}, y_label{};
  bool log_x = false, log_y = false;  // points at or below 0 on such an axis are left out
  std::vector<ChartSeries> series{};
  ChartTarget x_target{}, y_target{};  // always drawn; the chart grows to contain them
};
std::string svg_chart(const Chart& chart);  // returns a <figure>

}  // namespace fidelio
