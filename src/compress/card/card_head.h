// The head of a model card: the YAML between two lines of "---" at the beginning of README.md, by which the Hub sorts
// models. Of a stranger's card as much is read as a card of ours takes over: plain values and lists of them.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// The values of every key of the outermost level that has a plain value or a list of such. Quotes are taken off. Whatever
// else stands there (nested keys, texts of several lines, anchors) is left out; a text without a head has none.
std::map<std::string, std::vector<std::string>> read_card_head(std::string_view readme);

// A value as YAML in double quotes, in which nothing is obeyed: control characters are spelt out.
std::string yaml_text(std::string_view value);

// Foreign text within a line of Markdown: characters that begin a tag, a link, a table's cell or a stress are escaped.
std::string markdown_text(std::string_view text);

}  // namespace fidelio
