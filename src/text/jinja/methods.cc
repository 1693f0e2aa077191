#include <algorithm>

#include "core/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

using Names = std::vector<std::string_view>;

Value texts(std::vector<std::string> parts) {
  std::vector<Value> items;
  for (std::string& part : parts) items.push_back(Value::text(std::move(part)));
  return Value::list(std::move(items));
}

template <bool left, bool right>
Value strip_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("strip", {"chars"}, 0, std::move(a));
  if (b.text(0)) in.meter().spend_letters(4 * b.text(0)->size());  // The characters are sorted.
  return Value::text(std::string(strip(s, b.text(0), left, right)));
}

template <auto function>
Value split_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("split", {"sep", "maxsplit"}, 0, std::move(a));
  const std::string* separator = b.text(0);
  check(!separator || !separator->empty(), "split by an empty separator");
  return texts(function(s, separator, b.integer(1, -1), in.meter()));
}

template <bool front>
Value affix_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b(front ? "startswith" : "endswith", {"affix"}, 1, std::move(a));
  auto holds = [&](const Value& v) {
    in.meter().spend(1 + (v.as_text() ? v.as_text()->size() / 32 : 0));
    check(v.as_text(), "startswith and endswith need a str, not {}", type_name(v));
    return front ? s.starts_with(*v.as_text()) : s.ends_with(*v.as_text());
  };
  const Sequence* any = b[0]->as_sequence();
  if (any && any->kind == Kind::tuple) return Value::boolean(std::any_of(any->items.begin(), any->items.end(), holds));
  return Value::boolean(holds(*b[0]));
}

template <std::string (*function)(std::string_view)>
Value map_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("this method", {}, 0, std::move(a));
  in.meter().spend_letters(s.size());
  return Value::text(function(s));
}

template <bool (*function)(char32_t)>
Value all_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("this method", {}, 0, std::move(a));
  in.meter().spend_letters(s.size());
  std::u32string points = decode(s);
  return Value::boolean(!points.empty() && std::all_of(points.begin(), points.end(), function));
}

bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

Value replace_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("replace", {"old", "new", "count"}, 2, std::move(a));
  check(b.text(0) && b.text(1), "replace needs two str");
  const std::string &from = *b.text(0), &to = *b.text(1);
  return Value::text(replace(s, from, to, b.integer(2, -1), in.meter()));
}

Value join_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("join", {"iterable"}, 1, std::move(a));
  std::string out;
  bool first = true;
  const auto sequence = iterate(*b[0], in.meter());  // The sequence is held, as it may be made from a str.
  for (const Value& v : sequence->items) {
    check(v.as_text(), "join needs str elements, not {}", type_name(v));
    in.meter().spend_bytes(s.size() + v.as_text()->size());
    if (!first) out += s;
    first = false;
    out += *v.as_text();
  }
  return Value::text(std::move(out));
}

// Returns the part of `s` that find and count search, as byte offsets.
std::pair<size_t, size_t> window(const std::string& s, const Bound& b) {
  auto n = static_cast<int64_t>(length(s));
  auto offset = [&](size_t argument, int64_t fallback) {
    int64_t i = b[argument] && !b[argument]->is_none() ? b.integer(argument, 0) : fallback;
    if (i < 0) i = std::max<int64_t>(i + n, 0);
    if (i > n) return s.npos;  // Python does not even find "" past the end.
    size_t at = 0;
    for (; i > 0; --i) at = next_code_point(s, at);
    return at;
  };
  return {offset(1, 0), std::min(offset(2, n), s.size())};
}

template <bool last, bool must>
Value find_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("find", {"sub", "start", "end"}, 1, std::move(a));
  check(b.text(0), "find needs a str");
  in.meter().spend(b.text(0)->size());
  in.meter().spend_letters(s.size());
  auto [begin, end] = window(s, b);
  size_t at = s.npos;
  if (begin != s.npos && begin <= end) {
    std::string_view part = std::string_view(s).substr(begin, end - begin);
    at = last ? find_last_text(part, *b.text(0)) : find_text(part, *b.text(0), 0);
  }
  check(!must || at != s.npos, "the substring was not found");
  if (at == s.npos) return Value::integer(-1);
  return Value::integer(static_cast<int64_t>(length(std::string_view(s).substr(0, begin + at))));
}

Value count_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("count", {"sub", "start", "end"}, 1, std::move(a));
  check(b.text(0), "count needs a str");
  in.meter().spend_letters(s.size());
  auto [begin, end] = window(s, b);
  if (begin == s.npos || begin > end) return Value::integer(0);
  std::string_view part = std::string_view(s).substr(begin, end - begin);
  if (b.text(0)->empty()) return Value::integer(static_cast<int64_t>(length(part)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_text(part, *b.text(0), at)) != part.npos; at += b.text(0)->size()) {
    in.meter().spend(1);
    ++n;
  }
  return Value::integer(n);
}

Value splitlines_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("splitlines", {"keepends"}, 0, std::move(a));
  return texts(split_lines(s, b.flag(0, false), in.meter()));
}

template <bool front>
Value remove_affix_method(Interpreter&, const std::string& s, Arguments a) {
  Bound b(front ? "removeprefix" : "removesuffix", {"affix"}, 1, std::move(a));
  check(b.text(0), "removeprefix and removesuffix need a str");
  size_t n = b.text(0)->size();
  if (front) return Value::text(s.starts_with(*b.text(0)) ? s.substr(n) : s);
  return Value::text(s.ends_with(*b.text(0)) ? s.substr(0, s.size() - n) : s);
}

template <bool last>
Value partition_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("partition", {"sep"}, 1, std::move(a));
  check(b.text(0) && !b.text(0)->empty(), "partition needs a separator");
  in.meter().spend(b.text(0)->size() + s.size() / 8);
  size_t at = last ? find_last_text(s, *b.text(0)) : find_text(s, *b.text(0), 0);
  std::string before = at != s.npos ? s.substr(0, at) : last ? "" : s;
  std::string after = at != s.npos ? s.substr(at + b.text(0)->size()) : last ? s : "";
  return Value::tuple({Value::text(before), Value::text(at == s.npos ? "" : *b.text(0)), Value::text(after)});
}

template <bool (*function)(std::string_view)>
Value test_method(Interpreter& in, const std::string& s, Arguments a) {
  Bound b("this method", {}, 0, std::move(a));
  in.meter().spend_letters(s.size());
  return Value::boolean(function(s));
}

using TextMethod = Value (*)(Interpreter&, const std::string&, Arguments);
constexpr std::pair<std::string_view, TextMethod> kTextMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<split>},
    {"rsplit", split_method<rsplit>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<true>},
    {"endswith", affix_method<false>},
    {"removeprefix", remove_affix_method<true>},
    {"removesuffix", remove_affix_method<false>},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"upper", map_method<upper>},
    {"lower", map_method<lower>},
    {"title", map_method<title>},
    {"capitalize", map_method<capitalize>},
    {"isspace", all_method<is_space>},
    {"isdigit", all_method<is_ascii_digit>},
    {"isupper", test_method<is_upper>},
    {"islower", test_method<is_lower>},
    {"replace", replace_method},
    {"join", join_method},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
};

TextMethod text_method(std::string_view name) {
  for (const auto& [known, method] : kTextMethods)
    if (known == name) return method;
  return nullptr;
}

Value dict_method(Interpreter& in, const Dict& d, const std::string& name, Arguments a) {
  if (name == "get") {
    Bound b("get", {"key", "default"}, 1, std::move(a));
    const Value* found = find(d, *b[0], in.meter());
    return found ? *found : b[1].value_or(Value::none());
  }
  Bound b(name, {}, 0, std::move(a));
  in.meter().spend_items(2 * d.entries.size());
  std::vector<Value> items;
  for (const auto& [key, value] : d.entries)
    items.push_back(name == "keys" ? key : name == "values" ? value : Value::tuple({key, value}));
  return sequence(Kind::view, std::move(items));
}

Value sequence_method(Interpreter& in, const Sequence& s, const std::string& name, Arguments a) {
  Bound b(name, {"value"}, 1, std::move(a));
  int64_t n = 0;
  for (size_t i = 0; i < s.items.size(); ++i) {
    if (!equal(s.items[i], *b[0], in.meter())) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    ++n;
  }
  check(name == "count", "the value is not in the list");
  return Value::integer(n);
}

// This is loop.cycle(a, b, ...).
Value cycle(const Loop& loop, Arguments a) {
  check(!a.positional.empty() && a.named.empty(), "loop.cycle needs values");
  return a.positional[loop.index % a.positional.size()];
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.as_text()) return text_method(name) != nullptr;
  if (object.as_dict()) return name == "items" || name == "keys" || name == "values" || name == "get";
  if (const Sequence* s = object.as_sequence())
    return s->kind != Kind::lazy && s->kind != Kind::view && (name == "index" || name == "count");
  return object.is<std::shared_ptr<const Loop>>() && name == "cycle";
}

Value call_method(Interpreter& in, const Value& object, const std::string& name, Arguments arguments) {
  if (const std::string* s = object.as_text()) {
    in.meter().spend(3 + s->size() / 8);
    in.meter().spend_bytes(s->size());
    return text_method(name)(in, *s, std::move(arguments));
  }
  if (const Dict* d = object.as_dict()) return dict_method(in, *d, name, std::move(arguments));
  if (const Sequence* s = object.as_sequence()) return sequence_method(in, *s, name, std::move(arguments));
  return cycle(*std::get<std::shared_ptr<const Loop>>(object.data()), std::move(arguments));
}

}  // namespace fidelio::jinja
