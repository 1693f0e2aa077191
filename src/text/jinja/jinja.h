// This file is the interface of a small Jinja interpreter, which is enough for the chat templates that checkpoints
// publish.
//
// Semantics follow jinja2 3.1 as transformers sets it up: ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks,
// the loop controls, the {% generation %} block, default Undefined (prints as nothing; using its attributes is an
// error), and transformers' own `tojson`, `raise_exception` and `strftime_now`. A checkpoint is untrusted input, so
// every template ends in text or in an Error: parse depth, evaluation depth, work and output are bounded (Limits).
//
// The known differences from jinja2 are all refused or harmless. Integers are 64-bit, and overflow is an Error. A
// method must be called where it is named and has no text form. Case mapping is one letter to one letter except for
// sharp s. An unknown filter is an Error when it is reached, not when the template is read. There is no Markup type, so
// `safe` changes nothing, and there are no filters for HTML and layout (`escape`, `xmlattr`, `wordwrap`, `center` ...).
// Lazy filter results (map, select, ...) can be iterated more than once. Template inheritance, include, import,
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
// This is the value of a name or attribute that does not exist. `what` names it in the message of the error that its
// use may cause.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

// This is a number with its JSON spelling, where that is known. It is printed with the digits that it came with.
struct Float {
  double value = 0;
  std::shared_ptr<const std::string> spelled{};
};

// This is one template value. Text, sequences and dicts are immutable and shared, so copying a Value is cheap; only a
// Namespace changes. Text is UTF-8, and indices and lengths count code points, as in Python.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, Float, std::shared_ptr<const std::string>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>, std::shared_ptr<const Loop>>;

  Value() = default;  // This is undefined, without a name.
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
  static Value dict(std::vector<std::pair<Value, Value>> entries);  // A later equal key replaces the value.

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

// These are the names that a template can see besides the built-in ones.
using Variables = std::vector<std::pair<std::string, Value>>;

struct Limits {
  uint64_t work = 30'000'000;        // It counts evaluated nodes, elements built, and bytes built / 16.
  uint64_t output_bytes = 64 << 20;  // It bounds the bytes of the rendered text.
};

struct Body;  // A Body is a parsed template and is defined in ast.h.

class Template {
 public:
  // Parses `source`. Throws Error naming the line.
  explicit Template(std::string_view source);
  // `clock` gives the time that strftime_now formats. Throws Error naming the line; raise_exception(m) becomes an Error
  // that ends in m.
  std::string render(const Variables& variables, const std::function<std::tm()>& clock,
                     const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Body> body_;
};

}  // namespace fidelio::jinja
