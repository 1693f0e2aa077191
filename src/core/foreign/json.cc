#include "core/foreign/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"

namespace fidelio {
namespace {

// This is the most bytes that one string may have, so that the parser's own copies of it stay within the promised
// memory.
constexpr size_t kMaxString = 32 << 20;
constexpr uint64_t kComparisons = 8;  // This many comparisons of keys take about as long as one step of work.

// Walks over the text once, before anything is built, checks how deeply brackets are nested, and charges the memory
// that the values will take. A value takes 16 bytes, and in an array that has grown by doubling twice that, and more
// while it moves. A string or a container has a head of 32 bytes beside it, and a string its bytes. A member of an
// object stands in a node with its key, which takes 96 bytes and more. If `ordered`, a member is compared with all
// before it, which makes such objects slow to build and to search.
void check_text(std::string_view text, const std::string& what, Meter& meter, int nesting, bool ordered = false) {
  int depth = 0;
  // This counts the members of each object that is open.
  std::vector<uint64_t> members(ordered ? static_cast<size_t>(nesting) + 1 : 0);
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

// This reader goes over a text without building anything and throws where an object has a key twice. The library's own
// parser with a callback would search the whole parent at the end of every object, which takes time with the square of
// its members.
class UniqueKeys : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit UniqueKeys(const std::string& what) : what_(what) {}
  bool start_object(size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool key(std::string& name) override {
    check(keys_.back().insert(name).second, "{}: the key \"{}\" stands twice", what_, foreign(name));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  // The error is ignored here, because the parser that builds the values reports it.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  const std::string& what_;
  std::vector<std::set<std::string>>
      keys_;  // It holds the keys of the objects that are open. A tree is used, as names may be chosen to share a hash.
};

template <typename Json>
Json build(std::string_view text, const std::string& what) {
  try {
    return Json::parse(text);
  } catch (const typename Json::exception& e) {
    throw Error("{}: not valid JSON: {}", what, foreign(e.what()));
  }
}

template <typename Json>
Json parse(std::string_view text, const std::string& what, Meter& meter, int nesting) {
  check_text(text, what, meter, nesting, std::is_same_v<Json, nlohmann::ordered_json>);
  return build<Json>(text, what);
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
  Meter meter(what, kMaxWork, kMaxMemory + text.size());
  check_text(text, what, meter, nesting);
  {
    UniqueKeys watch(what);  // The reader holds fewer bytes than the values will, and is gone before they are built.
    nlohmann::json::sax_parse(text, &watch);
  }
  nlohmann::json json = build<nlohmann::json>(text, what);
  check(json.is_object(), "{}: expected a JSON object, got a JSON {}", what, json.type_name());
  return json;
}

nlohmann::json read_json_object(const std::string& path) {
  nlohmann::json json = parse_json(read_text_file(path), path);
  check(json.is_object(), "{}: expected a JSON object, got a JSON {}", path, json.type_name());
  return json;
}

}  // namespace fidelio
