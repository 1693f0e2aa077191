// This file defines a table of a report, which can be written for the terminal, for a spreadsheet and for a page.
#pragma once
#include <string>
#include <vector>

#include "eval/statistics/statistics.h"

namespace fidelio {

struct Table {
  std::string title;
  std::string note;  // stands below the table and says what the figures are and how the intervals were made
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // the first cell of a row is the row's name
};

std::string to_text(const Table& table);  // aligns the columns, numbers to the right
std::string to_csv(const Table& table);   // follows RFC 4180
std::string to_html(const Table& table);  // returns a <figure>; on narrow screens the rows of wide tables become blocks

// Returns for example "0.962 [0.941, 0.978]". It is "–" if there is no value, and has no brackets if there is no
// interval.
std::string interval_text(const Estimate& estimate, int digits = 3);
std::string number_text(double value, int digits);  // "–" for NaN
std::string p_text(double p);                       // for example "0.86" or "3.7e-07"

}  // namespace fidelio
