// A table of a report, once, for the terminal, for a spreadsheet and for a page.
#pragma once
#include <string>
#include <vector>

#include "eval/statistics/statistics.h"

namespace fidelio {

struct Table {
  std::string title;
  std::string note;  // below the table: what the figures are, how the intervals were made
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // the first cell of a row is its name
};

std::string to_text(const Table& table);  // columns aligned, numbers to the right
std::string to_csv(const Table& table);   // RFC 4180
std::string to_html(const Table& table);  // a <figure>; on narrow screens rows of wide ones become blocks

// "0.962 [0.941, 0.978]"; "–" where there is no value, no brackets where there is no interval.
std::string interval_text(const Estimate& estimate, int digits = 3);
std::string number_text(double value, int digits);  // "–" for NaN
std::string p_text(double p);                       // "0.86", "3.7e-07"

}  // namespace fidelio
