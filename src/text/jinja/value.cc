#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : entries)
    if (key == name) return &value;
  return nullptr;
}

namespace {

int depth_of(const Value& v) {
  if (const Sequence* s = v.as_sequence()) return s->depth;
  if (const Dict* d = v.as_dict()) return d->depth;
  if (auto loop = std::get_if<std::shared_ptr<const Loop>>(&v.data())) return (*loop)->items->depth + 1;
  return 0;
}

int checked_depth(int deepest) {
  check(deepest < kMaxValueDepth, "a value nested more than {} deep", kMaxValueDepth);
  return deepest + 1;
}

bool hashable(const Value& v) {
  if (const Sequence* s = v.as_sequence())
    return s->kind == Kind::tuple && std::all_of(s->items.begin(), s->items.end(), hashable);
  return !v.as_dict();
}

}  // namespace

Value sequence(Kind kind, std::vector<Value> items) {
  int deepest = 0;
  for (const Value& v : items) deepest = std::max(deepest, depth_of(v));
  auto made = std::make_shared<Sequence>();
  made->kind = kind;
  made->items = std::move(items);
  made->depth = checked_depth(deepest);
  return Value(Value::Data(std::shared_ptr<const Sequence>(std::move(made))));
}

Value Value::undefined(std::string what) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(what))}));
}
Value Value::list(std::vector<Value> items) { return sequence(Kind::list, std::move(items)); }
Value Value::tuple(std::vector<Value> items) { return sequence(Kind::tuple, std::move(items)); }

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
  auto made = std::make_shared<Dict>();
  Meter meter(uint64_t{1} << 40);  // Code that makes keys other than text has already been charged for it.
  std::unordered_map<std::string_view, size_t> by_text;  // JSON has text keys only, and perhaps many.
  int deepest = 0;
  for (auto& [key, value] : entries) {
    check(hashable(key), "a {} cannot be the key of a dict", type_name(key));
    deepest = std::max({deepest, depth_of(key), depth_of(value)});
    Value* old = nullptr;
    if (const std::string* text = key.as_text()) {
      const auto [place, is_new] = by_text.emplace(*text, made->entries.size());
      if (!is_new) old = &made->entries[place->second].second;
    } else {
      old = const_cast<Value*>(jinja::find(*made, key, meter));
    }
    if (old)
      *old = std::move(value);
    else
      made->entries.emplace_back(std::move(key), std::move(value));
  }
  made->depth = checked_depth(deepest);
  return Value(Data(std::shared_ptr<const Dict>(std::move(made))));
}

const Value* find(const Dict& dict, const Value& key, Meter& meter) {
  meter.spend(dict.entries.size() / 4);
  for (const auto& [k, v] : dict.entries)
    if (equal(k, key, meter)) return &v;
  return nullptr;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [k, v] : dict.entries)
    if (k.as_text() && *k.as_text() == key) return &v;
  return nullptr;
}

std::string type_name(const Value& v) {
  static constexpr const char* kNames[] = {"undefined value", "NoneType", "bool", "int", "float", "str", "list", "dict",
                                           "Namespace",       "function", "loop"};
  if (const Sequence* s = v.as_sequence()) {
    static constexpr const char* kKinds[] = {"list", "tuple", "range", "dict view", "lazy sequence"};
    return kKinds[static_cast<size_t>(s->kind)];
  }
  return kNames[v.data().index()];
}

bool truthy(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (auto number = as_number(v)) return *number != 0;
  if (const std::string* s = v.as_text()) return !s->empty();
  if (const Sequence* s = v.as_sequence()) return s->kind == Kind::lazy || !s->items.empty();
  if (const Dict* d = v.as_dict()) return !d->entries.empty();
  return true;
}

std::optional<int64_t> as_integer(const Value& v) {
  if (auto i = std::get_if<int64_t>(&v.data())) return *i;
  if (auto b = std::get_if<bool>(&v.data())) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_number(const Value& v) {
  if (auto d = std::get_if<Float>(&v.data())) return d->value;
  if (auto i = as_integer(v)) return static_cast<double>(*i);
  return std::nullopt;
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  meter.spend(1);
  if (auto x = as_number(a)) {
    auto y = as_number(b);
    auto i = as_integer(a), j = as_integer(b);
    return i && j ? *i == *j : y && *x == *y;
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const std::string* x = a.as_text()) {
    const std::string* y = b.as_text();
    if (x->size() != y->size()) return false;
    meter.spend(x->size() / 64);
    return *x == *y;
  }
  if (const Sequence* x = a.as_sequence()) {
    const Sequence* y = b.as_sequence();
    if (x == y) return true;
    if (x->kind != y->kind || x->kind == Kind::lazy || x->items.size() != y->items.size()) return false;
    for (size_t i = 0; i < x->items.size(); ++i)
      if (!equal(x->items[i], y->items[i], meter)) return false;
    return true;
  }
  if (const Dict* x = a.as_dict()) {
    const Dict* y = b.as_dict();
    if (x->entries.size() != y->entries.size()) return false;
    for (const auto& [key, value] : x->entries) {
      const Value* other = find(*y, key, meter);
      if (!other || !equal(value, *other, meter)) return false;
    }
    return true;
  }
  // Namespaces, functions and loops are equal to themselves only.
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (requires { x.get(); }) return x.get() == std::get<T>(b.data()).get();
        return false;
      },
      a.data());
}

bool less(const Value& a, const Value& b, Meter& meter) {
  meter.spend(1);
  if (auto x = as_number(a)) {
    if (auto y = as_number(b)) {
      auto i = as_integer(a), j = as_integer(b);
      return i && j ? *i < *j : *x < *y;
    }
  }
  if (a.as_text() && b.as_text()) {
    meter.spend(std::min(a.as_text()->size(), b.as_text()->size()) / 64);
    return *a.as_text() < *b.as_text();  // The order of UTF-8 bytes is the order of code points.
  }
  const Sequence* x = a.as_sequence();
  const Sequence* y = b.as_sequence();
  bool ordered = x && y && x->kind == y->kind && (x->kind == Kind::list || x->kind == Kind::tuple);
  check(ordered, "cannot order {} and {}", type_name(a), type_name(b));
  for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i)
    if (!equal(x->items[i], y->items[i], meter)) return less(x->items[i], y->items[i], meter);
  return x->items.size() < y->items.size();
}

bool contains(const Value& container, const Value& item, Meter& meter) {
  if (container.is_undefined()) return false;
  if (const std::string* s = container.as_text()) {
    check(item.as_text(), "'in' a str needs a str on its left, not {}", type_name(item));
    meter.spend(s->size() / 8);
    return find_text(*s, *item.as_text(), 0) != s->npos;
  }
  if (const Dict* d = container.as_dict()) {
    check(hashable(item), "a {} cannot be the key of a dict", type_name(item));
    return find(*d, item, meter) != nullptr;
  }
  const Sequence* s = container.as_sequence();
  check(s, "'in' needs a container on its right, not {}", type_name(container));
  return std::any_of(s->items.begin(), s->items.end(), [&](const Value& v) { return equal(v, item, meter); });
}

std::shared_ptr<const Sequence> iterate(const Value& v, Meter& meter) {
  if (auto s = std::get_if<std::shared_ptr<const Sequence>>(&v.data())) return *s;
  auto made = std::make_shared<Sequence>();
  made->kind = Kind::lazy;
  if (const Dict* d = v.as_dict()) {
    meter.spend_items(d->entries.size());
    for (const auto& entry : d->entries) made->items.push_back(entry.first);
    made->depth = d->depth;
  } else if (const std::string* s = v.as_text()) {
    meter.spend_items(s->size());
    for (size_t i = 0; i < s->size();) {
      size_t next = next_code_point(*s, i);
      made->items.push_back(Value::text(s->substr(i, next - i)));
      i = next;
    }
  } else {
    check(v.is_undefined(), "cannot iterate over {}", type_name(v));
  }
  return made;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string_view given = strip(text, nullptr, true, true);
  const auto digit = [&](size_t i) { return given[i] >= '0' && given[i] <= '9'; };
  std::string s;
  for (size_t i = 0; i < given.size(); ++i)  // Python allows one underscore between digits.
    if (given[i] != '_' || i == 0 || i + 1 == given.size() || !digit(i - 1) || !digit(i + 1)) s += given[i];
  std::string word = lower(s);
  if (!word.empty() && (word[0] == '+' || word[0] == '-')) word.erase(0, 1);
  bool named = word == "inf" || word == "infinity" || word == "nan";
  if (!named && s.find_first_not_of("+-.eE0123456789") != s.npos) return std::nullopt;
  if (s.empty()) return std::nullopt;
  char* end = nullptr;
  double value = std::strtod(s.c_str(), &end);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  std::string s(strip(text, nullptr, true, true));
  bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.erase(0, 1);
  std::string prefix = lower(std::string_view(s).substr(0, 2));
  if ((base == 16 && prefix == "0x") || (base == 8 && prefix == "0o") || (base == 2 && prefix == "0b")) s.erase(0, 2);
  if (s.empty() || s[0] == '-') return std::nullopt;
  std::string digits(negative ? 1 : 0, '-');
  for (size_t i = 0; i < s.size(); ++i)
    if (s[i] != '_' || i == 0 || i + 1 == s.size() || s[i - 1] == '_') digits += s[i];
  int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  check(error != std::errc::result_out_of_range, "the integer {} does not fit in 64 bits", foreign(digits));
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(value) : std::nullopt;
}

namespace {

void write_repr(std::string& out, const Value& v, Meter& meter, int depth);

template <typename Items, typename Each>
void write_items(std::string& out, const Items& items, const Each& each) {
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    each(item);
  }
}

void write_sequence(std::string& out, const Sequence& s, Meter& meter, int depth) {
  check(s.kind != Kind::lazy && s.kind != Kind::range, "a lazy sequence has no text form; put |list behind it");
  out += s.kind == Kind::list ? "[" : s.kind == Kind::tuple ? "(" : "dict_view([";
  write_items(out, s.items, [&](const Value& v) { write_repr(out, v, meter, depth); });
  if (s.kind == Kind::tuple && s.items.size() == 1) out += ",";
  out += s.kind == Kind::list ? "]" : s.kind == Kind::tuple ? ")" : "])";
}

void write_repr(std::string& out, const Value& v, Meter& meter, int depth) {
  check(depth <= kMaxValueDepth, "a value nested more than {} deep", kMaxValueDepth);
  size_t before = out.size();
  if (v.is_undefined()) {
    out += "Undefined";
  } else if (v.is_none()) {
    out += "None";
  } else if (auto b = std::get_if<bool>(&v.data())) {
    out += *b ? "True" : "False";
  } else if (auto i = std::get_if<int64_t>(&v.data())) {
    out += std::to_string(*i);
  } else if (auto d = std::get_if<Float>(&v.data())) {
    out += d->spelled ? *d->spelled : repr(d->value);
  } else if (const std::string* s = v.as_text()) {
    meter.spend_letters(s->size());
    out += repr(std::string_view(*s));
  } else if (const Sequence* s = v.as_sequence()) {
    write_sequence(out, *s, meter, depth + 1);
  } else if (const Dict* d = v.as_dict()) {
    out += "{";
    write_items(out, d->entries, [&](const auto& entry) {
      write_repr(out, entry.first, meter, depth + 1);
      out += ": ";
      write_repr(out, entry.second, meter, depth + 1);
    });
    out += "}";
  } else if (auto n = std::get_if<std::shared_ptr<Namespace>>(&v.data())) {
    out += "<Namespace {";
    write_items(out, (*n)->entries, [&](const auto& entry) {
      out += repr(std::string_view(entry.first)) + ": ";
      write_repr(out, entry.second, meter, depth + 1);
    });
    out += "}>";
  } else {
    throw Error("a {} has no text form", type_name(v));
  }
  meter.spend(1 + (out.size() - before) / 8);
  if (depth == 0) meter.spend_bytes(out.size());
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter) {}

  void write(const Value& v, int level) {
    meter_.spend(1);
    if (v.is_none()) {
      out += "null";
    } else if (auto b = std::get_if<bool>(&v.data())) {
      out += *b ? "true" : "false";
    } else if (auto i = std::get_if<int64_t>(&v.data())) {
      out += std::to_string(*i);
    } else if (auto d = std::get_if<Float>(&v.data())) {
      out += d->spelled ? *d->spelled : number(d->value);
    } else if (const std::string* s = v.as_text()) {
      meter_.spend_letters(s->size());
      meter_.spend_bytes(s->size());
      out += json_quote(*s, style_.ascii_only);
    } else if (const Dict* d = v.as_dict()) {
      write_dict(*d, level);
    } else {
      const Sequence* s = v.as_sequence();
      check(s && (s->kind == Kind::list || s->kind == Kind::tuple), "a {} cannot be written as JSON", type_name(v));
      write_list(*s, level);
    }
  }

  std::string out;

 private:
  static std::string number(double d) {
    return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : repr(d);
  }

  void line(int level) {
    if (!style_.indent) return;
    meter_.spend_bytes(style_.indent->size() * static_cast<size_t>(level));
    out += '\n';
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  std::string key(const Value& v) const {
    if (v.as_text()) return *v.as_text();
    if (v.is_none()) return "null";
    if (auto b = std::get_if<bool>(&v.data())) return *b ? "true" : "false";
    if (auto i = as_integer(v)) return std::to_string(*i);
    auto d = as_number(v);
    check(d.has_value(), "a {} cannot be a key in JSON", type_name(v));
    return number(*d);
  }

  void write_list(const Sequence& s, int level) {
    out += '[';
    for (size_t i = 0; i < s.items.size(); ++i) {
      meter_.spend_bytes(style_.item_separator.size());
      if (i > 0) out += style_.item_separator;
      line(level + 1);
      write(s.items[i], level + 1);
    }
    if (!s.items.empty()) line(level);
    out += ']';
  }

  void write_dict(const Dict& d, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : d.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return less(a->first, b->first, meter_); });
    out += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      line(level + 1);
      const std::string name = key(entries[i]->first);
      meter_.spend_letters(name.size());
      meter_.spend_bytes(name.size() + style_.item_separator.size() + style_.key_separator.size());
      out += json_quote(name, style_.ascii_only) + style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    if (!entries.empty()) line(level);
    out += '}';
  }

  const JsonStyle& style_;
  Meter& meter_;
};

}  // namespace

std::string repr(const Value& v, Meter& meter) {
  std::string out;
  write_repr(out, v, meter, 0);
  return out;
}

std::string str(const Value& v, Meter& meter) {
  if (v.is_undefined()) return {};
  if (v.as_text()) return *v.as_text();
  return repr(v, meter);
}

std::string to_json(const Value& v, const JsonStyle& style, Meter& meter) {
  JsonWriter writer(style, meter);
  writer.write(v, 0);
  return std::move(writer.out);
}

}  // namespace fidelio::jinja
