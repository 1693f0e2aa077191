#include "core/foreign/json_text.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign/limits.h"

namespace fidelio {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// This class reads one value after another from a text. A function returns false where its part is not there. If the
// scanner then stands at the end, the text has ended too early.
class JsonScanner {
 public:
  JsonScanner(std::string_view text, size_t at) : text_(text), at_(at) {}
  size_t at() const { return at_; }
  bool ended() const { return at_ >= text_.size(); }

  void blanks() {
    while (!ended() && kBlanks.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char c) {
    if (ended() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool value(int depth = 0) {
    if (ended()) return false;
    switch (text_[at_]) {
      case '{':
        return container(depth, '}', true);
      case '[':
        return container(depth, ']', false);
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }
  bool string() {
    if (!take('"')) return false;
    while (!ended()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (c == '\\' && !escape()) return false;
    }
    return false;
  }

 private:
  bool escape() {
    if (ended()) return false;
    const char c = text_[at_];
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos && ++at_ > 0;
    ++at_;
    for (int i = 0; i < 4; ++i, ++at_)
      if (ended() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0) return false;
    return true;
  }
  bool word(std::string_view word) {
    for (const char c : word)
      if (!take(c)) return false;
    return true;
  }
  bool digits() {
    const size_t before = at_;
    while (!ended() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > before;
  }
  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (!ended() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    return true;
  }
  bool container(int depth, char close, bool object) {
    if (depth >= kMaxNesting) return false;
    ++at_;
    blanks();
    if (take(close)) return true;
    do {
      blanks();
      if (object && !key()) return false;
      if (!value(depth + 1)) return false;
      blanks();
    } while (take(','));
    return take(close);
  }
  bool key() {
    if (!string()) return false;
    blanks();
    const bool colon = take(':');
    blanks();
    return colon;
  }

  std::string_view text_;
  size_t at_;
};

// Runs over the items of a container that is known to be complete.
template <typename Each>
void for_each_item(std::string_view container, char open, const Each& each) {
  JsonScanner scan(container, 0);
  scan.blanks();
  check(scan.take(open), "expected a JSON {}", open == '{' ? "object" : "array");
  scan.blanks();
  if (!scan.ended() && (container[scan.at()] == '}' || container[scan.at()] == ']')) return;
  do {
    scan.blanks();
    each(scan);
    scan.blanks();
  } while (scan.take(','));
}

std::string_view value_at(JsonScanner& scan, std::string_view text) {
  const size_t begin = scan.at();
  check(scan.value(), "a JSON value is not whole");
  return text.substr(begin, scan.at() - begin);
}

std::string without_control(std::string_view string) {
  std::string out;
  for (const char c : string) {
    if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
    else
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : fmt::format("\\u{:04x}", static_cast<int>(c));
  }
  return out;
}

}  // namespace

JsonEnd end_of_json(std::string_view text, size_t begin) {
  JsonScanner scan(text, begin);
  if (scan.value()) return {JsonEnd::Kind::whole, scan.at()};
  return {scan.ended() ? JsonEnd::Kind::unfinished : JsonEnd::Kind::broken};
}

bool is_json(std::string_view text) {
  JsonScanner scan(text, 0);
  scan.blanks();
  if (!scan.value()) return false;
  scan.blanks();
  return scan.ended();
}

std::vector<JsonMember> json_members(std::string_view object) {
  std::vector<JsonMember> members;
  for_each_item(object, '{', [&](JsonScanner& scan) {
    std::string key = text_of_json(value_at(scan, object));
    scan.blanks();
    check(scan.take(':'), "a JSON object is not whole");
    scan.blanks();
    members.push_back({std::move(key), value_at(scan, object)});
  });
  return members;
}

std::vector<std::string_view> json_elements(std::string_view array) {
  std::vector<std::string_view> elements;
  for_each_item(array, '[', [&](JsonScanner& scan) { elements.push_back(value_at(scan, array)); });
  return elements;
}

std::string_view json_member(std::string_view object, std::string_view key) {
  std::string_view found;
  if (!object.starts_with('{')) return found;
  for (const JsonMember& member : json_members(object))
    if (member.key == key) found = member.value;
  return found;
}

std::string compact_json(std::string_view value) {
  std::string out;
  for (size_t at = 0; at < value.size();) {
    if (value[at] == '"') {
      JsonScanner scan(value, at);
      check(scan.string(), "a JSON string is not whole");
      out += without_control(value.substr(at, scan.at() - at));
      at = scan.at();
      continue;
    }
    if (kBlanks.find(value[at]) == std::string_view::npos) out += value[at];
    ++at;
  }
  return out;
}

std::string text_of_json(std::string_view string) {
  const std::string clean = without_control(string);
  try {
    return nlohmann::json::parse(clean).get<std::string>();
  } catch (const nlohmann::json::exception&) {  // An escape holds half of a surrogate pair, which is no character.
  }
  std::string text;
  for (size_t at = 0; at < clean.size(); ++at) {
    const bool lone = clean.compare(at, 2, "\\u") == 0;
    if (lone && (clean[at + 2] == 'd' || clean[at + 2] == 'D') && clean[at + 3] >= '8') {
      text += "\uFFFD", at += 5;
      continue;
    }
    text += clean[at];
    if (clean[at] == '\\') text += clean[++at];
  }
  try {
    return nlohmann::json::parse(text).get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw Error("a JSON string holds what is no Unicode");
  }
}

std::string json_of_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fidelio
