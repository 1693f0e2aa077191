#include "core/foreign/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"

namespace fidelio {
namespace {

// Bytes of one string, so that the parser's own copies of it stay within the memory that is promised.
constexpr size_t kMaxString = 32 << 20;
constexpr uint64_t kComparisons = 8;  // of keys, in the time of one step of work

// Walks over the text once, before anything is built: how deep brackets stand in each other, and what the values will
// take. A value is 16 bytes, in an array that has grown by doubling twice that and more while it moves; a string or a
// container has a head of 32 bytes beside it and a string its bytes; a member of an object stands in a node with its
// key, 96 bytes and more. `ordered`: a member is compared with those before it, by which such objects are slow to build
// and to look into.
void check_text(std::string_view text, const std::string& what, Meter& meter, int nesting, bool ordered = false) {
  int depth = 0;
  std::vector<uint64_t> members(ordered ? static_cast<size_t>(nesting) + 1 : 0);  // of the objects that are open
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"': {
        const size_t begin = at + 1;
        for (++at; at < text.size() && text[at] != '"'; ++at)
          if (text[at] == '\\') ++at;
        const size_t bytes = std::min(at, text.size()) - std::min(begin, text.size());
        check(bytes <= kMaxString, "{}: a string of {} bytes; at most {} are read", what, bytes, kMaxString);
        meter.memory(64 + bytes);
        break;
      }
      case '[':
      case '{':
        check(++depth <= nesting, "{}: the JSON is nested more than {} deep", what, nesting);
        meter.memory(80);
        if (ordered && depth > 0) members[static_cast<size_t>(depth)] = 0;
        break;
      case ']':
      case '}':
        --depth;
        break;
      case ',':
        meter.memory(32);
        break;
      case ':':
        meter.memory(64);
        if (ordered && depth > 0) meter.work(members[static_cast<size_t>(depth)]++ / kComparisons);
        break;
      default:
        break;
    }
  }
}

template <typename Json>
Json parse(std::string_view text, const std::string& what, Meter& meter, int nesting) {
  check_text(text, what, meter, nesting, std::is_same_v<Json, nlohmann::ordered_json>);
  try {
    return Json::parse(text);
  } catch (const typename Json::exception& e) {
    throw Error("{}: not valid JSON: {}", what, foreign(e.what()));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& what, Meter& meter, int nesting) {
  return parse<nlohmann::json>(text, what, meter, nesting);
}

nlohmann::json parse_json(std::string_view text, const std::string& what, int nesting) {
  Meter meter(what, kMaxWork, kMaxMemory + text.size());
  return parse<nlohmann::json>(text, what, meter, nesting);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what) {
  Meter meter(what, kMaxWork, kMaxMemory + text.size());
  return parse<nlohmann::ordered_json>(text, what, meter, kMaxNesting);
}

nlohmann::json parse_unique_json(std::string_view text, const std::string& what, int nesting) {
  using Json = nlohmann::json;
  // Every key is held once more while its object is read.
  Meter meter(what, kMaxWork, (kMaxMemory + text.size()) / 2);
  check_text(text, what, meter, nesting);
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      check(keys.back().insert(key).second, "{}: the key \"{}\" stands twice", what, foreign(key));
    }
    return true;
  };
  try {
    Json json = Json::parse(text, watch);
    check(json.is_object(), "{}: expected a JSON object, got a JSON {}", what, json.type_name());
    return json;
  } catch (const Json::exception& e) {
    throw Error("{}: not valid JSON: {}", what, foreign(e.what()));
  }
}

nlohmann::json read_json_object(const std::string& path) {
  nlohmann::json json = parse_json(read_text_file(path), path);
  check(json.is_object(), "{}: expected a JSON object, got a JSON {}", path, json.type_name());
  return json;
}

}  // namespace fidelio
