#include "eval/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/report/html.h"

namespace fidelio {
namespace {

// Returns the number of terminal columns. It counts code points, which is right for the characters that reports
// print.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (char c : cell) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string to_text(const Table& table) {
  std::vector<size_t> widths(table.columns.size());
  const auto measure = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  };
  measure(table.columns);
  for (const auto& row : table.rows) measure(row);
  std::string text = table.title.empty() ? "" : table.title + "\n";
  const auto print = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width(row[i]), ' ');
      text += (i == 0 ? row[i] + space : "  " + space + row[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  };
  print(table.columns);
  for (const auto& row : table.rows) print(row);
  if (!table.note.empty()) text += table.note + "\n";
  return text;
}

std::string to_csv(const Table& table) {
  std::string text;
  const auto print = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + csv_cell(row[i]);
    text += "\r\n";
  };
  print(table.columns);
  for (const auto& row : table.rows) print(row);
  return text;
}

std::string to_html(const Table& table) {
  // On a narrow screen every row of a wide table becomes a block, in which each cell names its column.
  const bool wide = table.columns.size() > 2;
  std::string html = "<figure class=\"table\">";
  if (!table.title.empty()) html += "<figcaption>" + escape_html(table.title) + "</figcaption>";
  html += fmt::format("<div class=\"scroll\"><table{}><thead><tr>", wide ? " class=\"wide\"" : "");
  for (const std::string& c : table.columns) html += "<th scope=\"col\">" + escape_html(c) + "</th>";
  html += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = wide && i < table.columns.size()
                                   ? fmt::format("<td data-column=\"{}\">", escape_html(table.columns[i]))
                                   : "<td>";
      html += (i == 0 ? "<th scope=\"row\">" : cell) + escape_html(row[i]) + (i == 0 ? "</th>" : "</td>");
    }
    html += "</tr>";
  }
  html += "</tbody></table></div>";
  if (!table.note.empty()) html += "<p class=\"note\">" + escape_html(table.note) + "</p>";
  return html + "</figure>\n";
}

std::string number_text(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "–";
}

std::string interval_text(const Estimate& e, int digits) {
  std::string text = number_text(e.value, digits);
  if (std::isfinite(e.ci95.low) && std::isfinite(e.ci95.high))
    text += fmt::format(" [{:.{}f}, {:.{}f}]", e.ci95.low, digits, e.ci95.high, digits);
  return text;
}

std::string p_text(double p) { return p >= 0.001 ? fmt::format("{:.3f}", p) : fmt::format("{:.1e}", p); }

}  // namespace fidelio
