#include <algorithm>

#include "core/error.h"
#include "text/jinja/interpreter.h"

namespace fidelio::jinja {

Bound::Bound(std::string_view function, const std::vector<std::string_view>& names, size_t required,
             Arguments arguments)
    : function_(function), values_(names.size()) {
  check(arguments.positional.size() <= names.size(), "{} takes at most {} arguments, got {}", function, names.size(),
        arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < names.size() && names[i] != name) ++i;
    check(i < names.size(), "{} has no parameter {}", function, name);
    check(!values_[i], "{} got the argument {} twice", function, name);
    values_[i] = std::move(value);
  }
  for (size_t i = 0; i < required; ++i) check(values_[i].has_value(), "{} needs the argument {}", function, names[i]);
}

bool Bound::flag(size_t i, bool fallback) const { return values_[i] ? truthy(*values_[i]) : fallback; }

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!values_[i]) return fallback;
  auto value = as_integer(*values_[i]);
  check(value.has_value(), "{} needs an int, not {}", function_, type_name(*values_[i]));
  return *value;
}

const std::string* Bound::text(size_t i) const {
  if (!values_[i] || values_[i]->is_none()) return nullptr;
  check(values_[i]->as_text(), "{} needs a str, not {}", function_, type_name(*values_[i]));
  return values_[i]->as_text();
}

namespace {

constexpr uint64_t kMaxRange = 100'000;  // jinja2's sandbox has the same limit.

Value range(Interpreter& in, Arguments arguments) {
  Bound b("range", {"start", "stop", "step"}, 1, std::move(arguments));
  int64_t start = b[1] ? b.integer(0, 0) : 0;
  int64_t stop = b.integer(b[1] ? 1 : 0, 0);
  int64_t step = b.integer(2, 1);
  check(step != 0, "range needs a step other than 0");
  bool empty = step > 0 ? start >= stop : start <= stop;
  uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                               : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  uint64_t by = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  uint64_t count = empty ? 0 : (distance - 1) / by + 1;
  check(count <= kMaxRange, "range of {} elements: at most {} are allowed", count, kMaxRange);
  in.meter().spend_items(count);
  std::vector<Value> items;
  // Unsigned numbers are used because the product alone may not fit, although the sum does.
  for (uint64_t i = 0; i < count; ++i)
    items.push_back(
        Value::integer(static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
  return sequence(Kind::range, std::move(items));
}

Value dict(Interpreter& in, Arguments arguments) {
  check(arguments.positional.size() <= 1, "dict takes at most one dict or list of pairs");
  std::vector<std::pair<Value, Value>> entries;
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (const Dict* d = from.as_dict()) {
      in.meter().spend_items(2 * d->entries.size());
      entries = d->entries;
    } else {
      const auto pairs = iterate(from, in.meter());  // The sequence is held, as it may be made from a str.
      for (const Value& pair : pairs->items) {
        auto two = iterate(pair, in.meter());
        in.meter().spend_items(2);
        check(two->items.size() == 2, "dict needs pairs, got {} values", two->items.size());
        entries.emplace_back(two->items[0], two->items[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) entries.emplace_back(Value::text(name), std::move(value));
  const bool texts = std::all_of(entries.begin(), entries.end(), [](const auto& e) { return e.first.as_text(); });
  if (!texts) in.meter().spend(entries.size() * entries.size() / 8);
  return Value::dict(std::move(entries));
}

Value raise_exception(Interpreter& in, Arguments arguments) {
  Bound b("raise_exception", {"message"}, 1, std::move(arguments));
  throw Error("the template refuses these messages: {}", str(*b[0], in.meter()));
}

Value strftime_now(Interpreter& in, Arguments arguments) {
  Bound b("strftime_now", {"format"}, 1, std::move(arguments));
  const std::string* format = b.text(0);
  check(format && format->size() <= 200, "strftime_now needs a format of at most 200 bytes");
  std::tm time = in.now();
  // The leading blank tells an empty result from one that does not fit.
  char buffer[4096];
  size_t n = std::strftime(buffer, sizeof buffer, (" " + *format).c_str(), &time);
  check(n > 0, "strftime_now: the date in the format '{}' is too long", *format);
  return Value::text(std::string(buffer + 1, n - 1));
}

}  // namespace

std::optional<Value> find_global(const std::string& name) {
  using Run = Value (*)(Interpreter&, Arguments);
  static constexpr std::pair<std::string_view, Run> kGlobals[] = {
      {"range", range},
      {"dict", dict},
      {"namespace", [](Interpreter& in, Arguments a) { return in.make_namespace(std::move(a)); }},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  for (const auto& [known, run] : kGlobals)
    if (known == name)
      return Value(Value::Data(std::shared_ptr<const Callable>(std::make_shared<Callable>(Callable{name, run}))));
  return std::nullopt;
}

}  // namespace fidelio::jinja
