// This file defines the interpreter, which runs a parsed template. Only the sources of this folder include it.
#pragma once
#include <optional>
#include <string>

#include "core/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace fidelio::jinja {

// A Scope holds the names of one block. A for body, a macro call, a captured body and {% with %} open one; {% if %}
// does not.
struct Scope {
  std::vector<std::pair<std::string, Value>> names;
  std::shared_ptr<Scope> parent;
};

// This guard increments a counter while it lives and throws at `limit`, which keeps recursion from exhausting the
// stack.
class Deeper {
 public:
  Deeper(int& counter, int limit) : counter_(counter) {
    check(counter < limit, "the template recurses more than {} deep", limit);
    ++counter_;
  }
  ~Deeper() { --counter_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& counter_;
};

class Interpreter {
 public:
  Interpreter(const Variables& variables, const std::function<std::tm()>& clock, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Runs a template. The message of an Error begins with the line where it occurred.
  std::string run(const Body& body);

  Meter& meter() { return meter_; }
  Value filter(const std::string& name, const Value& input, Arguments arguments);  // It is in filters.cc.
  bool test(const std::string& name, const Value& input, Arguments arguments);     // It is in tests.cc.
  Value attribute(const Value& object, const std::string& name);                   // This is object.name.
  Value item(const Value& object, const Value& key);                               // This is object[key].
  Value make_namespace(Arguments arguments);
  std::tm now() const { return clock_(); }

 private:
  enum class Flow { normal, stop, next };
  using ScopePtr = std::shared_ptr<Scope>;

  Flow execute(const Body& body, const ScopePtr& scope, std::string& out);
  Flow execute(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow branch(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow loop(const Statement& s, const ScopePtr& scope, std::string& out);
  std::shared_ptr<const Sequence> loop_items(const Statement& s, const ScopePtr& scope);
  std::string capture(const Body& body, const ScopePtr& scope);
  Value filtered(const Statement& s, const Node& chain, const ScopePtr& scope);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  Value make_macro(const Statement& s, const ScopePtr& scope);
  Value call_macro(const Statement& s, const ScopePtr& scope, Arguments arguments);
  void emit(std::string& out, std::string_view text);

  Value evaluate(const Node& node, const ScopePtr& scope);
  Value arithmetic(const Node& node, const ScopePtr& scope);
  Value compare(const Node& node, const ScopePtr& scope);
  Value concat(const Node& node, const ScopePtr& scope);
  Value build(const Node& node, const ScopePtr& scope);
  Value condition(const Node& node, const ScopePtr& scope);
  Value slice(const Node& node, const ScopePtr& scope);
  Value call(const Node& node, const ScopePtr& scope, const Value* caller = nullptr);
  Value lookup(const std::string& name, const ScopePtr& scope);
  Arguments arguments(const Node& node, const ScopePtr& scope);

  Meter meter_;
  uint64_t output_left_;
  const std::function<std::tm()>& clock_;
  void set(Scope& scope, const std::string& name, Value value);
  ScopePtr root_;
  int line_ = 1;
  int depth_ = 0;
  // These scopes and namespaces may be part of a reference cycle. They are emptied at the end, so nothing leaks.
  std::vector<ScopePtr> closures_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Python's operators are in operators.cc. They throw Error where Python raises.
Value binary(Op op, const Value& a, const Value& b, Meter& meter);
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Meter& meter);
std::string percent_format(const std::string& format, const Value& argument, Meter& meter);

// The methods that templates may call on text, lists and dicts are in methods.cc.
bool has_method(const Value& object, std::string_view name);
Value call_method(Interpreter& in, const Value& object, const std::string& name, Arguments arguments);
// The filters over elements are in sequence_filters.cc. The result is empty when `name` is none of them.
std::optional<Value> sequence_filter(Interpreter& in, const std::string& name, const Value& input,
                                     const Arguments& arguments);
// The global names range, dict, namespace, raise_exception and strftime_now are in globals.cc.
std::optional<Value> find_global(const std::string& name);

// A Bound matches arguments with the parameter names of a function; a parameter that was not given is empty.
class Bound {
 public:
  // `names` are the parameters in order, of which the first `required` have no default.
  Bound(std::string_view function, const std::vector<std::string_view>& names, size_t required, Arguments arguments);
  const std::optional<Value>& operator[](size_t i) const { return values_[i]; }
  bool flag(size_t i, bool fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;
  // Returns the text at `i`, or null where it is absent or None. Throws Error for another type.
  const std::string* text(size_t i) const;

 private:
  std::string function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace fidelio::jinja
