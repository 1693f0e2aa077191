#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

const char* spelling(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::subtract:
      return "-";
    case Op::multiply:
      return "*";
    case Op::divide:
      return "/";
    case Op::floor_divide:
      return "//";
    case Op::modulo:
      return "%";
    default:
      return "**";
  }
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 ? -1 : 1;
  for (int64_t i = 0; i < exponent; ++i)
    check(!__builtin_mul_overflow(result, base, &result), "{} ** {} does not fit in 64 bits", base, exponent);
  return result;
}

Value on_integers(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::divide:
      check(b != 0, "division by zero");
      return Value::number(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_divide:
    case Op::modulo: {
      check(b != 0, "division by zero");
      if (b == -1) return op == Op::modulo ? Value::integer(0) : on_integers(Op::subtract, 0, a);
      bool rounds_down = a % b != 0 && (a < 0) != (b < 0);  // Python rounds towards minus infinity.
      return Value::integer(op == Op::modulo ? a % b + (rounds_down ? b : 0) : a / b - (rounds_down ? 1 : 0));
    }
    default:
      if (b < 0) return Value::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
      return Value::integer(power(a, b));
  }
  check(!overflow, "{} {} {} does not fit in 64 bits", a, spelling(op), b);
  return Value::integer(result);
}

Value on_numbers(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value::number(a + b);
    case Op::subtract:
      return Value::number(a - b);
    case Op::multiply:
      return Value::number(a * b);
    case Op::power:
      return Value::number(std::pow(a, b));
    default:
      break;
  }
  check(b != 0, "division by zero");
  if (op == Op::divide) return Value::number(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value::number(op == Op::modulo ? rest : std::floor((a - rest) / b + 0.5));
}

Value repeat(const Value& what, int64_t times, Meter& meter) {
  auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  check(n <= 1u << 30, "a repetition of {} times", n);
  if (const std::string* s = what.as_text()) {
    meter.spend_bytes(n * s->size());
    std::string out;
    out.reserve(n * s->size());
    for (uint64_t i = 0; i < n && !s->empty(); ++i) out += *s;
    return Value::text(std::move(out));
  }
  const Sequence& s = *what.as_sequence();
  meter.spend_items(n * s.items.size());
  std::vector<Value> items;
  for (uint64_t i = 0; i < n && !s.items.empty(); ++i) items.insert(items.end(), s.items.begin(), s.items.end());
  return sequence(s.kind, std::move(items));
}

bool repeatable(const Value& v) {
  const Sequence* s = v.as_sequence();
  return v.as_text() || (s && (s->kind == Kind::list || s->kind == Kind::tuple));
}

}  // namespace

Value binary(Op op, const Value& a, const Value& b, Meter& meter) {
  auto i = as_integer(a), j = as_integer(b);
  if (i && j) return on_integers(op, *i, *j);
  auto x = as_number(a), y = as_number(b);
  if (x && y) return on_numbers(op, *x, *y);
  if (op == Op::modulo && a.as_text()) return Value::text(percent_format(*a.as_text(), b, meter));
  if (op == Op::multiply && repeatable(a) && j) return repeat(a, *j, meter);
  if (op == Op::multiply && repeatable(b) && i) return repeat(b, *i, meter);
  if (op == Op::add && a.as_text() && b.as_text()) {
    meter.spend_bytes(a.as_text()->size() + b.as_text()->size());
    return Value::text(*a.as_text() + *b.as_text());
  }
  const Sequence* left = a.as_sequence();
  const Sequence* right = b.as_sequence();
  bool joins = op == Op::add && left && right && left->kind == right->kind && repeatable(a);
  check(joins, "unsupported operand types for {}: {} and {}", spelling(op), type_name(a), type_name(b));
  meter.spend_items(left->items.size() + right->items.size());
  std::vector<Value> items = left->items;
  items.insert(items.end(), right->items.begin(), right->items.end());
  return sequence(left->kind, std::move(items));
}

namespace {

// Returns the indices that Python's slice(start, stop, step) picks from n elements.
std::vector<size_t> slice_indices(int64_t n, const Value& start, const Value& stop, const Value& step) {
  auto bound = [&](const Value& v, int64_t fallback, int64_t low, int64_t high) {
    if (v.is_none()) return fallback;
    auto i = as_integer(v);
    check(i.has_value(), "a slice bound must be an int, not {}", type_name(v));
    return std::clamp(*i < 0 ? *i + n : *i, low, high);
  };
  int64_t by = bound(step, 1, INT64_MIN, INT64_MAX);
  if (!step.is_none()) by = std::clamp<int64_t>(*as_integer(step), -n - 1, n + 1);
  check(by != 0, "a slice step must not be zero");
  bool up = by > 0;
  int64_t from = up ? bound(start, 0, 0, n) : bound(start, n - 1, -1, n - 1);
  int64_t to = up ? bound(stop, n, 0, n) : bound(stop, -1, -1, n - 1);
  std::vector<size_t> indices;
  for (int64_t i = from; up ? i < to : i > to; i += by) indices.push_back(static_cast<size_t>(i));
  return indices;
}

}  // namespace

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Meter& meter) {
  if (const std::string* s = object.as_text()) {
    meter.spend_letters(s->size());
    meter.spend_bytes(s->size());
    std::u32string points = decode(*s);
    std::string out;
    for (size_t i : slice_indices(static_cast<int64_t>(points.size()), start, stop, step)) append(out, points[i]);
    return Value::text(std::move(out));
  }
  const Sequence* s = object.as_sequence();
  check(s && s->kind != Kind::lazy && s->kind != Kind::view, "a {} cannot be sliced", type_name(object));
  std::vector<Value> items;
  meter.spend(s->items.size());
  for (size_t i : slice_indices(static_cast<int64_t>(s->items.size()), start, stop, step)) items.push_back(s->items[i]);
  meter.spend_items(items.size());
  return sequence(s->kind, std::move(items));
}

namespace {

struct Conversion {
  bool left = false, zero = false, plus = false, blank = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

Conversion read_conversion(const std::string& format, size_t& i) {
  Conversion c;
  auto more = [&] { return i < format.size(); };
  for (; more() && std::string_view("-0+ ").find(format[i]) != std::string_view::npos; ++i) {
    c.left = c.left || format[i] == '-';
    c.zero = c.zero || format[i] == '0';
    c.plus = c.plus || format[i] == '+';
    c.blank = c.blank || format[i] == ' ';
  }
  auto digits = [&] {
    int n = 0;
    for (; more() && format[i] >= '0' && format[i] <= '9'; ++i) {
      n = n * 10 + (format[i] - '0');
      check(n <= 1000, "a width over 1000 in the format '{}'", foreign(format));
    }
    return n;
  };
  c.width = digits();
  if (more() && format[i] == '.') {
    ++i;
    c.precision = digits();
  }
  check(more(), "the format '{}' ends inside a conversion", foreign(format));
  c.type = format[i++];
  return c;
}

std::string convert(const Conversion& c, const Value& v, Meter& meter) {
  std::string body;
  bool numeric = true;
  auto integer = as_integer(v);
  auto number = as_number(v);
  switch (c.type) {
    case 's':
    case 'r': {
      numeric = false;
      body = c.type == 's' ? str(v, meter) : repr(v, meter);
      meter.spend_letters(body.size());
      if (c.precision >= 0) body = encode(decode(body).substr(0, static_cast<size_t>(c.precision)));
      break;
    }
    case 'd':
    case 'i':
    case 'u':
      check(number && std::abs(*number) < 9e18, "%{} needs a number, not {}", c.type, type_name(v));
      body = std::to_string(integer ? *integer : static_cast<int64_t>(*number));
      break;
    case 'x':
    case 'X':
    case 'o': {
      check(integer.has_value(), "%{} needs an int, not {}", c.type, type_name(v));
      auto magnitude = *integer < 0 ? 0 - static_cast<uint64_t>(*integer) : static_cast<uint64_t>(*integer);
      std::string digits = c.type == 'o' ? fmt::format("{:o}", magnitude) : fmt::format("{:x}", magnitude);
      body = (*integer < 0 ? "-" : "") + (c.type == 'X' ? upper(digits) : digits);
      break;
    }
    case 'e':
    case 'f':
    case 'g': {
      check(number.has_value(), "%{} needs a number, not {}", c.type, type_name(v));
      const char* form = c.type == 'e' ? "%.*e" : c.type == 'f' ? "%.*f" : "%.*g";
      char buffer[1500];  // This holds 308 digits, the point and at most 1000 decimals.
      int n = std::snprintf(buffer, sizeof buffer, form, c.precision < 0 ? 6 : c.precision, *number);
      body.assign(buffer, static_cast<size_t>(n));
      break;
    }
    default:
      throw Error("the conversion %{} is not supported", c.type);
  }
  if (numeric && body[0] != '-' && (c.plus || c.blank)) body.insert(0, c.plus ? "+" : " ");
  size_t size = length(body);
  size_t padding = static_cast<size_t>(c.width) > size ? static_cast<size_t>(c.width) - size : 0;
  if (c.left) return body + std::string(padding, ' ');
  if (!c.zero || !numeric) return std::string(padding, ' ') + body;
  bool sign = body[0] == '-' || body[0] == '+' || body[0] == ' ';
  return body.insert(sign ? 1 : 0, std::string(padding, '0'));
}

}  // namespace

std::string percent_format(const std::string& format, const Value& argument, Meter& meter) {
  const Sequence* tuple = argument.as_sequence();
  if (tuple && tuple->kind != Kind::tuple) tuple = nullptr;
  size_t count = tuple ? tuple->items.size() : 1;
  size_t used = 0;
  std::string out;
  meter.spend_bytes(format.size());
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    ++i;
    if (i < format.size() && format[i] == '%') {
      out += format[i++];
      continue;
    }
    check(i >= format.size() || format[i] != '(', "named conversions are not supported in the format '{}'",
          foreign(format));
    Conversion c = read_conversion(format, i);
    check(used < count, "not enough arguments for the format '{}'", foreign(format));
    std::string text = convert(c, tuple ? tuple->items[used] : argument, meter);
    ++used;
    meter.spend_bytes(text.size());
    out += text;
  }
  check(used == count || argument.as_dict() || (argument.as_sequence() && !tuple),
        "not all arguments of the format '{}' were used", foreign(format));
  return out;
}

}  // namespace fidelio::jinja
