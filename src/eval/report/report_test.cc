// These tests cover tables, pages and charts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "eval/report/html.h"
#include "eval/report/table.h"

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::Not;

const Table kTable = {
    "Title <1>", "A note", {"model", "a, b", "c"}, {{"x&y", "1", "–"}, {"longer name", "22", "say \"hi\""}}};

TEST(Table, TextIsAligned) {
  EXPECT_EQ(
      to_text(kTable),
      "Title <1>\nmodel        a, b         c\nx&y             1         –\nlonger name    22  say \"hi\"\nA note\n");
}

TEST(Table, CsvIsQuoted) {
  EXPECT_EQ(to_csv(kTable), "model,\"a, b\",c\r\nx&y,1,–\r\nlonger name,22,\"say \"\"hi\"\"\"\r\n");
}

TEST(Table, HtmlIsEscaped) {
  const std::string html = to_html(kTable);
  EXPECT_THAT(html, HasSubstr("Title &lt;1&gt;"));
  // On a narrow screen each cell of a wide table names its column.
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">x&amp;y</th><td data-column=\"a, b\">1</td>"));
  EXPECT_THAT(to_html({"", "", {"figure", "value"}, {{"x", "1"}}}), HasSubstr("<th scope=\"row\">x</th><td>1</td>"));
}

TEST(Table, NumbersSayWhatIsMissing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(interval_text({0.96251, {0.94, 0.98}}), "0.963 [0.940, 0.980]");
  EXPECT_EQ(interval_text({0.5, {nan, nan}}, 1), "0.5");
  EXPECT_EQ(number_text(nan, 2), "–");
  EXPECT_EQ(p_text(0.8612), "0.861");
  EXPECT_EQ(p_text(3.7e-7), "3.7e-07");
}

TEST(Html, EscapesEverythingThatCouldEndAnAttributeOrATag) {
  EXPECT_EQ(escape_html("<a href='x'>\"&\"</a>\x01\n"),
            "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot;&lt;/a&gt;\uFFFD\n");
}

TEST(Html, PageIsSelfContained) {
  const std::string page = html_page("A <title>", "<p>body</p>");
  EXPECT_THAT(page, HasSubstr("<title>A &lt;title&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("width=device-width"));
  for (const char* outside : {"http:", "https:", "<script", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
}

TEST(Html, ChartDrawsEveryPointInsideTheFrame) {
  Chart chart{.title = "c",
              .x_label = "x",
              .y_label = "y",
              .log_x = true,
              .series = {{"first", {{0.001, 1, 0.9, 1.1}, {0.1, 0.5}}}, {"second", {{0, 3}, {1, 0.2}}}}};
  const std::string svg = svg_chart(chart);
  size_t circles = 0;
  for (size_t at = 0; (at = svg.find("<circle cx=\"", at)) != std::string::npos; at += 12, ++circles) {
    const double x = std::stod(svg.substr(at + 12)), y = std::stod(svg.substr(svg.find("cy=\"", at) + 4));
    EXPECT_GE(x, 92);
    EXPECT_LE(x, 704);
    EXPECT_GE(y, 14);
    EXPECT_LE(y, 294);
  }
  EXPECT_EQ(circles, 3u);  // x = 0 has no place on a logarithmic axis
  EXPECT_THAT(svg, HasSubstr("second"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg_chart({.title = "empty", .x_label = "x", .y_label = "y", .series = {}}), HasSubstr("No point"));
  EXPECT_EQ(
      svg_chart({.title = "from 0", .x_label = "x", .y_label = "y", .series = {{"s", {{2, 5}, {80, 6}}}}}).find(">-0<"),
      std::string::npos);
  EXPECT_THAT(svg_chart({.title = "one", .x_label = "x", .y_label = "y", .series = {{"s", {{2, 5}}}}}),
              Not(HasSubstr("nan")));
  chart.log_y = true;
  chart.series[1].points.push_back({2, 0});  // y = 0 has no place on the other axis either
  EXPECT_EQ(svg_chart(chart).find("inf"), std::string::npos);
}

TEST(Html, ChartsHaveTargetsLabelsAndFits) {
  Chart chart{.title = "c", .x_label = "x", .y_label = "y", .log_x = true, .log_y = true};
  chart.series = {{"measured", {{1, 1, 0.5, 2, "the <best>"}, {10, 100}}},
                  {.name = "fit", .points = {{1, 1}, {10, 100}}, .marks = false}};
  chart.y_target = {1e4, "wanted"};
  chart.x_target = {5, "here"};
  const std::string svg = svg_chart(chart);
  for (const char* part : {"the &lt;best&gt;", "wanted", "here", "stroke-dasharray"}) EXPECT_THAT(svg, HasSubstr(part));
  // The fit's line goes through the measured points, and the target lies above all of them but inside the frame.
  const std::string begins = "class=\"target\" d=\"M92 ";
  const size_t target = svg.find(begins);
  ASSERT_NE(target, std::string::npos);
  const double at = std::stod(svg.substr(target + begins.size()));
  EXPECT_GT(at, 14);
  for (size_t c = svg.find("cy=\""); c != std::string::npos; c = svg.find("cy=\"", c + 1))
    EXPECT_LT(at, std::stod(svg.substr(c + 4)));
}

TEST(Html, PagesEndWithWhatMadeThem) {
  EXPECT_THAT(html_page("t", "b", "fidelio 1 <x>"), HasSubstr("<footer class=\"note\">fidelio 1 &lt;x&gt;</footer>"));
  EXPECT_THAT(html_page("t", "b"), Not(HasSubstr("<footer")));
}

// The label of a target stands where nothing is drawn: at the left end for a rising line, except where the line
// passes there.
TEST(Html, ATargetsLabelLeavesTheLineFree) {
  const auto anchor = [](double target) {
    const std::string svg = svg_chart({.title = "noise",
                                       .x_label = "x",
                                       .y_label = "y",
                                       .log_x = true,
                                       .log_y = true,
                                       .series = {{"measured", {{0.01, 0.0024}, {0.32, 2.9}}}},
                                       .y_target = {target, "fitted up to 0.01"}});
    const size_t at = svg.find("text-anchor=", svg.find("class=\"target\""));
    return svg.substr(at, svg.find('>', at) - at);
  };
  EXPECT_EQ(anchor(0.01), "text-anchor=\"end\"");   // the line passes at the left
  EXPECT_EQ(anchor(1.0), "text-anchor=\"start\"");  // the line passes at the right
}

}  // namespace
}  // namespace fidelio
