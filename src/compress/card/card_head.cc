#include "compress/card/card_head.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/foreign/foreign_text.h"

namespace fidelio {
namespace {

constexpr size_t kLongestValue = 200;  // characters of a licence's name, a language or an address
constexpr size_t kMostValues = 100;    // values in a list

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// Returns a plain value without its quotes or the comment behind it. It returns "" for anything else.
std::string plain_value(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'')) {
    const size_t end = text.find(text.front(), 1);
    const bool whole = end != std::string_view::npos && text.find('\\') == std::string_view::npos;
    return whole ? std::string(text.substr(1, end - 1)) : "";
  }
  if (const size_t comment = text.find(" #"); comment != std::string_view::npos)
    text = trimmed(text.substr(0, comment));
  const bool other = text.empty() || std::string_view("{}[]&*!|>%@`#,?").find(text.front()) != std::string_view::npos;
  return other || text.size() > kLongestValue || text == "null" || text == "~" ? "" : std::string(text);
}

std::vector<std::string> listed_values(std::string_view text) {
  std::vector<std::string> values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (std::string value = plain_value(text.substr(0, comma)); !value.empty()) values.push_back(std::move(value));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

}  // namespace

std::map<std::string, std::vector<std::string>> read_card_head(std::string_view readme) {
  std::map<std::string, std::vector<std::string>> head;
  std::istringstream lines{std::string(readme)};
  std::string line, key;
  if (!std::getline(lines, line) || trimmed(line) != "---") return {};
  while (std::getline(lines, line)) {
    if (trimmed(line) == "---") return head;
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '#') continue;
    const bool item = text.starts_with("- ");
    if (!item && line.front() != ' ') {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) return {};  // This is no YAML that is known here.
      key = line.substr(0, colon);
      const std::string_view value = trimmed(std::string_view(line).substr(colon + 1));
      if (value.starts_with("[") && value.ends_with("]"))
        head[key] = listed_values(value.substr(1, value.size() - 2));
      else if (std::string plain = plain_value(value); !plain.empty())
        head[key] = {std::move(plain)};
      else
        head[key] = {};
    } else if (item && !key.empty() && head[key].size() < kMostValues && text.find(": ") == std::string_view::npos) {
      if (std::string plain = plain_value(text.substr(2)); !plain.empty()) head[key].push_back(std::move(plain));
    }
  }
  return {};  // The head has no end.
}

std::string yaml_text(std::string_view value) {
  return nlohmann::json(visible(value)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string markdown_text(std::string_view text) {
  std::string escaped;
  for (char c : visible(text)) {
    if (std::string_view("\\`*_{}[]<>#|~&").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace fidelio
