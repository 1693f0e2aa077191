// io: a small Jinja interpreter, enough for the chat templates that checkpoints publish.
//
// Semantics follow jinja2 3.1 as transformers sets it up: ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks,
// the loop controls, the {% generation %} block, default Undefined (prints as nothing; using its attributes is an
// error), and transformers' own `tojson`, `raise_exception` and `strftime_now`. A checkpoint is untrusted input, so
// every template ends in text or in an Error: parse depth, evaluation depth, work and output are bounded (Limits).
//
// Known differences from jinja2, all refused or harmless: integers are 64-bit decimals (overflow is an Error); a method
// must be called where it is named and has no text form; case mapping is one letter to one letter but for sharp s; an
// unknown filter is an Error when it is reached, not when the template is read; there is no Markup type, so `safe`
// changes nothing, and there are no filters for HTML and layout (`escape`, `xmlattr`, `wordwrap`, `center` ...);
// lazy filter results (map, select, ...) can be iterated more than once; template inheritance, include, import,
// recursive loops, *args and **kwargs are refused by name.
#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fidelio::jinja {

class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct None {};
// A name or attribute that was not there; `what` says which, for the message of the error its use may cause.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

// A number as JSON spells it, where that is known: it is printed with the digits that it came with.
struct Float {
  double value = 0;
  std::shared_ptr<const std::string> spelled{};
};

// One template value. Text, sequences and dicts are immutable and shared, so copying a Value is cheap; only a
// Namespace changes. Text is UTF-8; indices and lengths count code points, as in Python.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, Float, std::shared_ptr<const std::string>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>, std::shared_ptr<const Loop>>;

  Value() = default;  // undefined, without a name
  explicit Value(Data data) : data_(std::move(data)) {}
  static Value undefined(std::string what);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool x) { return Value(Data(x)); }
  static Value integer(int64_t x) { return Value(Data(x)); }
  static Value number(double x) { return Value(Data(Float{x})); }
  static Value number(double x, std::string spelled) {
    return Value(Data(Float{x, std::make_shared<const std::string>(std::move(spelled))}));
  }
  static Value text(std::string x) { return Value(Data(std::make_shared<const std::string>(std::move(x)))); }
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(std::vector<std::pair<Value, Value>> entries);  // a later equal key replaces the value

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  const std::string* as_text() const { return pointer<const std::string>(); }
  const Sequence* as_sequence() const { return pointer<const Sequence>(); }
  const Dict* as_dict() const { return pointer<const Dict>(); }
  const Data& data() const { return data_; }

 private:
  template <typename T>
  T* pointer() const {
    auto held = std::get_if<std::shared_ptr<T>>(&data_);
    return held ? held->get() : nullptr;
  }
  Data data_;
};

// The names a template can see besides the built-in ones.
using Variables = std::vector<std::pair<std::string, Value>>;

struct Limits {
  uint64_t work = 30'000'000;        // evaluated nodes, plus elements built, plus bytes built / 16
  uint64_t output_bytes = 64 << 20;  // bytes of the rendered text
};

struct Body;  // a parsed template: ast.h

class Template {
 public:
  // Parses `source`. Throws Error naming the line.
  explicit Template(std::string_view source);
  // `clock` is what strftime_now formats. Throws Error naming the line; raise_exception(m) becomes an Error ending in
  // m.
  std::string render(const Variables& variables, const std::function<std::tm()>& clock,
                     const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Body> body_;
};

}  // namespace fidelio::jinja
