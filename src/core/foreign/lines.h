// This file iterates over the lines of a text that somebody else wrote, one item a line (JSONL, prompts).
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

namespace fidelio {

// Calls f(std::string_view line, int64_t number) for every line that is not blank, without its end. Numbers begin at 1
// and count blank lines too, as editors do.
template <typename F>
void for_each_line(std::string_view text, F&& f) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) f(line, number);
  }
}

}  // namespace fidelio
