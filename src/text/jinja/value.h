// This file defines the values of the template language and Python's operations on them. Only the sources of this
// folder include it.
#pragma once
#include <compare>
#include <optional>
#include <string>

#include "core/foreign/limits.h"
#include "text/jinja/jinja.h"

namespace fidelio::jinja {

class Interpreter;

// Lists in lists, dicts in dicts and so on that are deeper than this are refused, so no walk over a value can exhaust
// the stack.
inline constexpr int kMaxValueDepth = 100;

// A Meter holds the remaining allowance of Limits::work and of kMaxMemory (core/foreign/limits.h). Every operation
// whose cost grows with its operands charges it first. Memory counts everything that is built, and dropping a value
// gives nothing back.
class Meter {
 public:
  explicit Meter(uint64_t work) : meter_("the template", work) {}
  void spend(uint64_t units) { meter_.work(units); }
  // Charges for text that is built, copied or searched.
  void spend_bytes(uint64_t bytes) {
    meter_.work(bytes / 8);
    meter_.memory(bytes);
  }
  // Charges for text that is read letter by letter, as code points of four bytes.
  void spend_letters(uint64_t bytes) {
    meter_.work(bytes / 2);
    meter_.passing_memory(5 * bytes);
  }
  // Charges for elements of a new sequence or dict, each of which may be a text of its own.
  void spend_items(uint64_t items) {
    meter_.work(items * 3);
    meter_.memory(items * 96);
  }

 private:
  fidelio::Meter meter_;
};

// A view is dict.keys() and the like; lazy is the result of map, select and the like.
enum class Kind { list, tuple, range, view, lazy };

struct Sequence {
  Kind kind = Kind::list;
  std::vector<Value> items;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // The entries are in order of insertion, and their keys are distinct.
  int depth = 1;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> entries;
  Value* find(std::string_view name);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments)> run;
};

// This is the `loop` variable of one iteration.
struct Loop {
  std::shared_ptr<const Sequence> items;
  size_t index = 0;
};

Value sequence(Kind kind, std::vector<Value> items);
const Value* find(const Dict& dict, const Value& key, Meter& meter);
const Value* find(const Dict& dict, std::string_view key);

std::string type_name(const Value& v);  // It is for messages: 'str', 'list', ...
bool truthy(const Value& v);
std::optional<int64_t> as_integer(const Value& v);  // It accepts int and bool.
std::optional<double> as_number(const Value& v);    // It accepts int, bool and float.
bool equal(const Value& a, const Value& b, Meter& meter);
bool less(const Value& a, const Value& b, Meter& meter);  // It throws Error where Python's < does.
bool contains(const Value& container, const Value& item, Meter& meter);
// Returns the elements that a for loop sees. Throws Error for a value that is not iterable; undefined has none.
std::shared_ptr<const Sequence> iterate(const Value& v, Meter& meter);
std::string str(const Value& v, Meter& meter);
std::string repr(const Value& v, Meter& meter);
std::optional<double> parse_float(std::string_view text);  // This is Python's float(text).
std::optional<int64_t> parse_integer(std::string_view text, int base);

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator;
  std::string key_separator;
};
std::string to_json(const Value& v, const JsonStyle& style, Meter& meter);

}  // namespace fidelio::jinja
