// Self-contained HTML: one file, no script, no font or image from elsewhere; readable from 400 pixels of width, in
// light and in dark. Charts are inline SVG whose numbers stand in a table beside them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

std::string escape_html(std::string_view text);  // & < > " and '; control characters become U+FFFD

// A whole document.
std::string html_page(std::string_view title, std::string_view body);

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // an error bar where low < high
};
struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // drawn in this order
  bool line = true;                // joined
  bool faint = false;              // in the background, e.g. what another series is the mean of
};
struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false;  // points with x <= 0 are left out
  std::vector<ChartSeries> series;
};
std::string svg_chart(const Chart& chart);  // a <figure>

}  // namespace fidelio
