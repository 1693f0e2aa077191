#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

Value items_of(Kind kind, std::vector<Value> items, Interpreter& in) {
  in.meter().spend_items(items.size());
  return sequence(kind, std::move(items));
}

// The filters below work on text.

template <std::string (*function)(std::string_view)>
Value map_text(Interpreter& in, const Value& v, Arguments a) {
  Bound b("this filter", {}, 0, std::move(a));
  const std::string s = str(v, in.meter());
  in.meter().spend_letters(s.size());
  return Value::text(function(s));
}

Value trim(Interpreter& in, const Value& v, Arguments a) {
  Bound b("trim", {"chars"}, 0, std::move(a));
  std::string s = str(v, in.meter());
  in.meter().spend_bytes(2 * s.size());
  if (b.text(0)) in.meter().spend_letters(4 * b.text(0)->size());  // The characters are sorted.
  return Value::text(std::string(strip(s, b.text(0), true, true)));
}

Value replace_text(Interpreter& in, const Value& v, Arguments a) {
  Bound b("replace", {"old", "new", "count"}, 2, std::move(a));
  std::string s = str(v, in.meter()), from = str(*b[0], in.meter()), to = str(*b[1], in.meter());
  bool all = !b[2] || b[2]->is_none();
  return Value::text(replace(s, from, to, all ? -1 : b.integer(2, -1), in.meter()));
}

Value indent(Interpreter& in, const Value& v, Arguments a) {
  Bound b("indent", {"width", "first", "blank"}, 0, std::move(a));
  bool textual = b[0] && b[0]->as_text();
  int64_t width = textual ? 0 : b.integer(0, 4);
  check(width <= 1000, "indent by {}: at most 1000", width);
  check(v.as_text(), "indent needs a str, not {}", type_name(v));
  std::string margin = textual ? *b[0]->as_text() : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  std::string out = b.flag(1, false) ? margin : "";
  std::vector<std::string> lines = split_lines(*v.as_text() + "\n", false, in.meter());
  in.meter().spend_bytes(v.as_text()->size() + lines.size() * margin.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (b.flag(2, false) || !lines[i].empty())) out += margin;
    out += lines[i];
  }
  return Value::text(std::move(out));
}

Value format(Interpreter& in, const Value& v, Arguments a) {
  check(a.named.empty(), "format takes no keyword arguments here");
  return Value::text(percent_format(str(v, in.meter()), Value::tuple(std::move(a.positional)), in.meter()));
}

Value to_string(Interpreter& in, const Value& v, Arguments a) {
  Bound b("string", {}, 0, std::move(a));
  return Value::text(str(v, in.meter()));
}

Value tojson(Interpreter& in, const Value& v, Arguments a) {
  Bound b("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, std::move(a));
  JsonStyle style;
  style.ascii_only = b.flag(0, false);
  style.sort_keys = b.flag(3, false);
  if (b[1] && b[1]->as_text()) {
    style.indent = *b[1]->as_text();
  } else if (b[1] && !b[1]->is_none()) {
    int64_t width = b.integer(1, 0);
    check(width <= 100, "tojson with an indent of {}: at most 100", width);
    style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  style.item_separator = style.indent ? "," : ", ";
  style.key_separator = ": ";
  if (b[2] && !b[2]->is_none()) {
    auto two = iterate(*b[2], in.meter());
    check(two->items.size() == 2 && two->items[0].as_text() && two->items[1].as_text(),
          "tojson needs separators=(between items, after a key)");
    style.item_separator = *two->items[0].as_text();
    style.key_separator = *two->items[1].as_text();
  }
  return Value::text(to_json(v, style, in.meter()));
}

// The filters below work on numbers.

Value to_int(Interpreter& in, const Value& v, Arguments a) {
  Bound b("int", {"default", "base"}, 0, std::move(a));
  check(!v.is_undefined(), "int of an undefined value");
  if (v.as_text()) in.meter().spend_letters(2 * v.as_text()->size());
  Value fallback = b[0].value_or(Value::integer(0));
  std::optional<double> number = as_number(v);
  if (auto i = as_integer(v)) return Value::integer(*i);
  if (const std::string* s = v.as_text()) {
    int64_t base = b.integer(1, 10);
    check(base >= 2 && base <= 36, "int in base {}", base);
    if (auto i = parse_integer(*s, static_cast<int>(base))) return Value::integer(*i);
    number = parse_float(*s);
    if (number && std::isinf(*number)) return fallback;
  }
  if (!number || std::isnan(*number)) return fallback;
  check(std::abs(*number) < 9.2e18, "int of {} does not fit in 64 bits", *number);
  return Value::integer(static_cast<int64_t>(*number));
}

Value to_float(Interpreter& in, const Value& v, Arguments a) {
  Bound b("float", {"default"}, 0, std::move(a));
  check(!v.is_undefined(), "float of an undefined value");
  if (v.as_text()) in.meter().spend_letters(2 * v.as_text()->size());
  std::optional<double> number = v.as_text() ? parse_float(*v.as_text()) : as_number(v);
  return number ? Value::number(*number) : b[0].value_or(Value::number(0.0));
}

Value absolute(Interpreter& in, const Value& v, Arguments a) {
  Bound b("abs", {}, 0, std::move(a));
  auto number = as_number(v);
  check(number.has_value(), "abs needs a number, not {}", type_name(v));
  if (v.is<Float>()) return Value::number(std::abs(*number));
  return binary(*number < 0 ? Op::subtract : Op::add, Value::integer(0), v, in.meter());
}

Value round_number(Interpreter&, const Value& v, Arguments a) {
  Bound b("round", {"precision", "method"}, 0, std::move(a));
  auto number = as_number(v);
  check(number.has_value(), "round needs a number, not {}", type_name(v));
  int64_t precision = b.integer(0, 0);
  check(precision >= 0 && precision <= 300, "round to {} decimals is not supported", precision);
  std::string method = b.text(1) ? *b.text(1) : "common";
  check(method == "common" || method == "ceil" || method == "floor", "round by the method '{}'", method);
  if (method == "common") {
    if (auto i = as_integer(v)) return Value::integer(*i);
    // Printing rounds the exact binary value half to even, as Python's round does.
    return Value::number(std::strtod(fmt::format("{:.{}f}", *number, precision).c_str(), nullptr));
  }
  double scale = std::pow(10.0, static_cast<double>(precision));
  return Value::number((method == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale)) / scale);
}

// The filters below work on any value.

Value default_value(Interpreter&, const Value& v, Arguments a) {
  Bound b("default", {"default_value", "boolean"}, 0, std::move(a));
  bool replaced = v.is_undefined() || (b.flag(1, false) && !truthy(v));
  return replaced ? b[0].value_or(Value::text("")) : v;
}

Value count(Interpreter& in, const Value& v, Arguments a) {
  Bound b("length", {}, 0, std::move(a));
  size_t n = 0;
  if (const std::string* s = v.as_text()) {
    in.meter().spend_bytes(s->size());
    n = length(*s);
  } else if (const Dict* d = v.as_dict()) {
    n = d->entries.size();
  } else if (const Sequence* s = v.as_sequence(); s && s->kind != Kind::lazy) {
    n = s->items.size();
  } else {
    check(v.is_undefined(), "a {} has no length", type_name(v));
  }
  return Value::integer(static_cast<int64_t>(n));
}

Value attr(Interpreter& in, const Value& v, Arguments a) {
  Bound b("attr", {"name"}, 1, std::move(a));
  check(b.text(0), "attr needs the name of an attribute");
  if (v.as_dict() && !has_method(v, *b.text(0))) return Value::undefined(fmt::format("'{}' of a dict", *b.text(0)));
  return in.attribute(v, *b.text(0));
}

Value pairs(Interpreter& in, const Value& v, Arguments a) {
  Bound b("items", {}, 0, std::move(a));
  check(v.as_dict() || v.is_undefined(), "items needs a dict, not {}", type_name(v));
  std::vector<Value> items;
  if (v.as_dict()) in.meter().spend_items(2 * v.as_dict()->entries.size());
  if (v.as_dict())
    for (const auto& [key, value] : v.as_dict()->entries) items.push_back(Value::tuple({key, value}));
  return items_of(Kind::lazy, std::move(items), in);
}

using Filter = Value (*)(Interpreter&, const Value&, Arguments);
constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"upper", map_text<upper>},
    {"lower", map_text<lower>},
    {"title", map_text<title_filter>},
    {"capitalize", map_text<capitalize>},
    {"trim", trim},
    {"replace", replace_text},
    {"indent", indent},
    {"format", format},
    {"string", to_string},
    {"safe", to_string},
    {"tojson", tojson},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_number},
    {"default", default_value},
    {"d", default_value},
    {"length", count},
    {"count", count},
    {"attr", attr},
    {"items", pairs},
};

}  // namespace

Value Interpreter::filter(const std::string& name, const Value& input, Arguments arguments) {
  // The depth is counted because filters can call filters: map('map', ...).
  const Deeper deeper(depth_, kMaxEvaluationDepth);
  meter_.spend(3);
  if (const std::string* s = input.as_text()) meter_.spend_bytes(s->size());
  for (const auto& [known, function] : kFilters)
    if (known == name) return function(*this, input, std::move(arguments));
  if (auto value = sequence_filter(*this, name, input, arguments)) return *value;
  throw Error("unknown filter '{}'", name);
}

}  // namespace fidelio::jinja
