// This file reads the head of a model card: the YAML between two lines of "---" at the beginning of README.md, by which
// the Hub sorts models. It reads only as much of a stranger's card as a card of ours takes over: plain values and lists
// of plain values.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// Returns the values of every key of the outermost level that has a plain value or a list of plain values. Quotes are
// taken off. Everything else (nested keys, texts of several lines, anchors) is left out. The result is empty for a text
// without a head.
std::map<std::string, std::vector<std::string>> read_card_head(std::string_view readme);

// Returns a value as YAML in double quotes, in which nothing has a meaning: control characters are spelt out.
std::string yaml_text(std::string_view value);

// Returns foreign text for a line of Markdown. Characters that begin a tag, a link, a cell or emphasis are escaped.
std::string markdown_text(std::string_view text);

}  // namespace fidelio
