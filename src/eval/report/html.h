// Self-contained HTML: one file, no script, no font or image from elsewhere; readable from 400 pixels of width, in
// light and in dark. Charts are inline SVG whose numbers stand in a table beside them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

std::string escape_html(std::string_view text);  // & < > " and '; control characters become U+FFFD

// A whole document. `made_by`: its last line, what made it (version, date, command).
std::string html_page(std::string_view title, std::string_view body, std::string_view made_by = {});

// Round numbers that divide [low, high] into some five parts.
std::vector<double> round_ticks(double low, double high);

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // an error bar where low < high
  std::string label{};       // written beside it
};
struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points{};  // drawn in this order
  bool line = true;                  // joined
  bool faint = false;                // in the background, e.g. what another series is the mean of
  bool marks = true;                 // a dot for each point; false: the line alone, dashed, as of a fit
};
struct ChartTarget {  // a line across the chart
  double at = 0;
  std::string label{};  // "" = none
};
struct Chart {
  std::string title{}, x_label{}, y_label{};
  bool log_x = false, log_y = false;  // points at or below 0 on such an axis are left out
  std::vector<ChartSeries> series{};
  ChartTarget x_target{}, y_target{};  // drawn where they fall inside the chart, which grows to hold them
};
std::string svg_chart(const Chart& chart);  // a <figure>

}  // namespace fidelio
