#include <algorithm>

#include "core/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

std::vector<Value> copy(Interpreter& in, const Value& v) {
  auto items = iterate(v, in.meter());
  in.meter().spend_items(items->items.size());
  return items->items;
}

// A Path is `a.b.0` as jinja2's attribute= arguments read it: the keys one after the other.
using Path = std::vector<Value>;
Path path_of(Interpreter& in, const Value& path) {
  if (!path.as_text()) return {path};
  static const std::string kDot = ".";
  Path keys;
  for (std::string& part : split(*path.as_text(), &kDot, -1, in.meter())) {
    bool index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    keys.push_back(index ? Value::integer(std::stoi(part)) : Value::text(std::move(part)));
  }
  return keys;
}
std::optional<Path> path_of(Interpreter& in, const std::optional<Value>& path) {
  return path && !path->is_none() ? std::optional(path_of(in, *path)) : std::nullopt;
}

Value reach(Interpreter& in, Value v, const Path& path, const Value* fallback = nullptr) {
  for (const Value& key : path) {
    in.meter().spend(1);
    v = in.item(v, key);
    if (fallback && v.is_undefined()) v = *fallback;
  }
  return v;
}

// Returns the key that sort, unique, min and max compare: the attribute, in lower case unless case matters.
Value sort_key(Interpreter& in, const Value& v, const std::optional<Path>& attribute, bool case_sensitive) {
  Value key = attribute ? reach(in, v, *attribute) : v;
  if (case_sensitive || !key.as_text()) return key;
  in.meter().spend_letters(key.as_text()->size());
  in.meter().spend_bytes(key.as_text()->size());
  return Value::text(lower(*key.as_text()));
}

std::vector<Value> sorted(Interpreter& in, const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a], in.meter()) : less(keys[a], keys[b], in.meter());
  });
  std::vector<Value> out;
  for (size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort(Interpreter& in, const Value& v, Arguments a) {
  Bound b("sort", {"reverse", "case_sensitive", "attribute"}, 0, std::move(a));
  std::vector<Value> items = copy(in, v);
  std::vector<Value> keys;
  static const std::string kComma = ",";
  const bool several = b[2] && b[2]->as_text();
  std::vector<Path> paths;
  if (several)
    for (std::string& path : split(*b[2]->as_text(), &kComma, -1, in.meter()))
      paths.push_back(path_of(in, Value::text(std::move(path))));
  const std::optional<Path> one = several ? std::nullopt : path_of(in, b[2]);
  for (const Value& item : items) {
    if (!several) {
      keys.push_back(sort_key(in, item, one, b.flag(1, false)));
      continue;
    }
    std::vector<Value> parts;
    in.meter().spend_items(paths.size());
    for (const Path& path : paths) parts.push_back(sort_key(in, item, path, b.flag(1, false)));
    keys.push_back(Value::list(std::move(parts)));
  }
  return Value::list(sorted(in, items, keys, b.flag(0, false)));
}

Value dictsort(Interpreter& in, const Value& v, Arguments a) {
  Bound b("dictsort", {"case_sensitive", "by", "reverse"}, 0, std::move(a));
  std::string by = b.text(1) ? *b.text(1) : "key";
  check(by == "key" || by == "value", "dictsort by '{}': only key or value", by);
  check(v.as_dict(), "dictsort needs a dict, not {}", type_name(v));
  std::vector<Value> items, keys;
  in.meter().spend_items(2 * v.as_dict()->entries.size());
  for (const auto& [key, value] : v.as_dict()->entries) {
    items.push_back(Value::tuple({key, value}));
    keys.push_back(sort_key(in, by == "key" ? key : value, std::nullopt, b.flag(0, false)));
  }
  in.meter().spend_items(items.size());
  return Value::list(sorted(in, items, keys, b.flag(2, false)));
}

Value unique(Interpreter& in, const Value& v, Arguments a) {
  Bound b("unique", {"case_sensitive", "attribute"}, 0, std::move(a));
  std::vector<Value> kept, keys;
  const std::optional<Path> attribute = path_of(in, b[1]);
  for (const Value& item : copy(in, v)) {
    Value key = sort_key(in, item, attribute, b.flag(0, false));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key, in.meter()); })) continue;
    kept.push_back(item);
    keys.push_back(std::move(key));
  }
  return sequence(Kind::lazy, std::move(kept));
}

template <bool largest>
Value extreme(Interpreter& in, const Value& v, Arguments a) {
  Bound b(largest ? "max" : "min", {"case_sensitive", "attribute"}, 0, std::move(a));
  Value best = Value::undefined("an element of an empty sequence");
  Value best_key;
  const std::optional<Path> attribute = path_of(in, b[1]);
  for (const Value& item : copy(in, v)) {
    Value key = sort_key(in, item, attribute, b.flag(0, false));
    bool better = best.is_undefined() || (largest ? less(best_key, key, in.meter()) : less(key, best_key, in.meter()));
    if (!better) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value sum(Interpreter& in, const Value& v, Arguments a) {
  Bound b("sum", {"attribute", "start"}, 0, std::move(a));
  Value total = b[1].value_or(Value::integer(0));
  check(!total.as_text(), "sum cannot join str; use join");
  const std::optional<Path> attribute = path_of(in, b[0]);
  for (const Value& item : copy(in, v)) {
    Value term = attribute ? reach(in, item, *attribute) : item;
    total = binary(Op::add, total, term, in.meter());
  }
  return total;
}

Value join(Interpreter& in, const Value& v, Arguments a) {
  Bound b("join", {"d", "attribute"}, 0, std::move(a));
  std::string separator = b[0] ? str(*b[0], in.meter()) : "";
  std::string out;
  bool first = true;
  const std::optional<Path> attribute = path_of(in, b[1]);
  for (const Value& item : copy(in, v)) {
    std::string text = str(attribute ? reach(in, item, *attribute) : item, in.meter());
    in.meter().spend_bytes(separator.size() + text.size());
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return Value::text(std::move(out));
}

Value first(Interpreter& in, const Value& v, Arguments a) {
  Bound b("first", {}, 0, std::move(a));
  auto items = iterate(v, in.meter());
  return items->items.empty() ? Value::undefined("the first of no elements") : items->items.front();
}

Value last(Interpreter& in, const Value& v, Arguments a) {
  Bound b("last", {}, 0, std::move(a));
  check(!v.as_sequence() || v.as_sequence()->kind != Kind::lazy, "last of a lazy sequence; put |list before it");
  auto items = iterate(v, in.meter());
  return items->items.empty() ? Value::undefined("the last of no elements") : items->items.back();
}

Value to_list(Interpreter& in, const Value& v, Arguments a) {
  Bound b("list", {}, 0, std::move(a));
  return Value::list(copy(in, v));
}

Value reverse(Interpreter& in, const Value& v, Arguments a) {
  Bound b("reverse", {}, 0, std::move(a));
  if (v.as_text()) {
    in.meter().spend_letters(v.as_text()->size());
    std::u32string points = decode(*v.as_text());
    std::reverse(points.begin(), points.end());
    return Value::text(encode(points));
  }
  std::vector<Value> items = copy(in, v);
  std::reverse(items.begin(), items.end());
  return sequence(Kind::lazy, std::move(items));
}

Value batch(Interpreter& in, const Value& v, Arguments a) {
  Bound b("batch", {"linecount", "fill_with"}, 1, std::move(a));
  int64_t size = b.integer(0, 1);
  check(size > 0 && size <= 100'000, "batch of {} elements", size);
  std::vector<Value> rows, row;
  auto flush = [&] { rows.push_back(Value::list(std::exchange(row, {}))); };
  for (const Value& item : copy(in, v)) {
    if (static_cast<int64_t>(row.size()) == size) flush();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (b[1] && !b[1]->is_none()) {
      in.meter().spend_items(static_cast<uint64_t>(size));
      row.resize(static_cast<size_t>(size), *b[1]);
    }
    flush();
  }
  return sequence(Kind::lazy, std::move(rows));
}

Value map(Interpreter& in, const Value& v, Arguments a) {
  std::vector<Value> out;
  if (a.positional.empty()) {
    Bound b("map", {"attribute", "default"}, 1, std::move(a));
    const Value* fallback = b[1] && !b[1]->is_none() ? &*b[1] : nullptr;
    const Path attribute = path_of(in, *b[0]);
    for (const Value& item : copy(in, v)) out.push_back(reach(in, item, attribute, fallback));
    return sequence(Kind::lazy, std::move(out));
  }
  check(a.positional[0].as_text(), "map needs the name of a filter");
  std::string name = *a.positional[0].as_text();
  a.positional.erase(a.positional.begin());
  for (const Value& item : copy(in, v)) {
    in.meter().spend_items(a.positional.size() + a.named.size());  // Each call has its own arguments.
    out.push_back(in.filter(name, item, a));
  }
  return sequence(Kind::lazy, std::move(out));
}

template <bool wanted, bool by_attribute>
Value select(Interpreter& in, const Value& v, Arguments a) {
  Path attribute;
  if (by_attribute) {
    check(!a.positional.empty(), "selectattr and rejectattr need the name of an attribute");
    attribute = path_of(in, a.positional[0]);
    a.positional.erase(a.positional.begin());
  }
  std::string test;
  if (!a.positional.empty()) {
    check(a.positional[0].as_text(), "select and its kin need the name of a test");
    test = *a.positional[0].as_text();
    a.positional.erase(a.positional.begin());
  }
  std::vector<Value> out;
  for (const Value& item : copy(in, v)) {
    Value subject = by_attribute ? reach(in, item, attribute) : item;
    in.meter().spend_items(a.positional.size() + a.named.size());
    if ((test.empty() ? truthy(subject) : in.test(test, subject, a)) == wanted) out.push_back(item);
  }
  return sequence(Kind::lazy, std::move(out));
}

}  // namespace

std::optional<Value> sequence_filter(Interpreter& in, const std::string& name, const Value& input,
                                     const Arguments& arguments) {
  using Filter = Value (*)(Interpreter&, const Value&, Arguments);
  static constexpr std::pair<std::string_view, Filter> kFilters[] = {
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"sum", sum},
      {"join", join},
      {"first", first},
      {"last", last},
      {"list", to_list},
      {"reverse", reverse},
      {"batch", batch},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
  };
  for (const auto& [known, function] : kFilters)
    if (known == name) return function(in, input, arguments);
  return std::nullopt;
}

}  // namespace fidelio::jinja
