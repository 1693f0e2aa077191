#include "text/jinja/interpreter.h"

#include <algorithm>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

std::shared_ptr<Scope> inside(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

[[noreturn]] void refuse_undefined(const Value& v) {
  auto what = std::get<Undefined>(v.data()).what;
  throw Error("{} is undefined", what ? *what : "a value");
}

}  // namespace

Interpreter::Interpreter(const Variables& variables, const std::function<std::tm()>& clock, const Limits& limits)
    : meter_(limits.work), output_left_(limits.output_bytes), clock_(clock), root_(std::make_shared<Scope>()) {
  root_->names = variables;
}

Interpreter::~Interpreter() {
  for (auto& scope : closures_) scope->names.clear();
  for (auto& space : namespaces_) space->entries.clear();
}

std::string Interpreter::run(const Body& body) {
  std::string out;
  try {
    execute(body, root_, out);
  } catch (const Error& error) {
    throw Error("chat template line {}: {}", line_, error.what());
  }
  return out;
}

void Interpreter::set(Scope& scope, const std::string& name, Value value) {
  meter_.spend(scope.names.size() * (1 + name.size() / 64) / 8);
  for (auto& [key, old] : scope.names)
    if (key == name) {
      old = std::move(value);
      return;
    }
  scope.names.emplace_back(name, std::move(value));
}

void Interpreter::emit(std::string& out, std::string_view text) {
  check(text.size() <= output_left_, "the template prints more than a chat template may");
  output_left_ -= text.size();
  meter_.spend_bytes(text.size());
  out += text;
}

// The functions below execute statements.

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope, std::string& out) {
  Deeper deeper(depth_, kMaxEvaluationDepth);
  for (const Statement& s : body.statements) {
    line_ = s.line;
    meter_.spend(1);
    Flow flow = execute(s, scope, out);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& s, const ScopePtr& scope, std::string& out) {
  switch (s.what) {
    case Do::text:
      emit(out, s.text);
      break;
    case Do::print:
      emit(out, str(evaluate(*s.expression, scope), meter_));
      break;
    case Do::branch:
      return branch(s, scope, out);
    case Do::loop:
      return loop(s, scope, out);
    case Do::assign:
      assign(s.target, evaluate(*s.expression, scope), scope);
      break;
    case Do::assign_body:
      assign(s.target, filtered(s, *s.expression, scope), scope);
      break;
    case Do::macro:
      set(*scope, s.text, make_macro(s, scope));
      break;
    case Do::call: {
      Value caller = make_macro(s, scope);
      emit(out, str(call(*s.expression, scope, &caller), meter_));
      break;
    }
    case Do::filter:
      emit(out, str(filtered(s, *s.expression, scope), meter_));
      break;
    case Do::with: {
      ScopePtr inner = inside(scope);
      for (size_t i = 0; i < s.targets.size(); ++i) set(*inner, s.targets[i].name, evaluate(*s.values[i], scope));
      return execute(*s.body, inner, out);
    }
    case Do::scope:
      emit(out, capture(*s.body, scope));
      break;
    case Do::stop:
      return Flow::stop;
    case Do::next:
      return Flow::next;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::branch(const Statement& s, const ScopePtr& scope, std::string& out) {
  for (const auto& [test, body] : s.arms)
    if (!test || truthy(evaluate(*test, scope))) return execute(*body, scope, out);
  return Flow::normal;
}

std::shared_ptr<const Sequence> Interpreter::loop_items(const Statement& s, const ScopePtr& scope) {
  auto items = iterate(evaluate(*s.expression, scope), meter_);
  if (!s.filter) return items;
  auto kept = std::make_shared<Sequence>();
  kept->kind = Kind::lazy;
  kept->depth = items->depth;
  for (const Value& v : items->items) {
    ScopePtr inner = inside(scope);
    assign(s.target, v, inner);
    if (truthy(evaluate(*s.filter, inner))) kept->items.push_back(v);
  }
  return kept;
}

Interpreter::Flow Interpreter::loop(const Statement& s, const ScopePtr& scope, std::string& out) {
  auto items = loop_items(s, scope);
  for (size_t i = 0; i < items->items.size(); ++i) {
    meter_.spend(2);
    line_ = s.line;
    ScopePtr inner = inside(scope);
    auto state = std::make_shared<const Loop>(Loop{items, i});
    set(*inner, "loop", Value(Value::Data(std::move(state))));
    assign(s.target, items->items[i], inner);
    if (execute(*s.body, inner, out) == Flow::stop) break;
  }
  if (items->items.empty() && s.otherwise) return execute(*s.otherwise, inside(scope), out);
  return Flow::normal;
}

std::string Interpreter::capture(const Body& body, const ScopePtr& scope) {
  std::string text;
  execute(body, inside(scope), text);
  output_left_ += text.size();  // The text counts as output when it is printed.
  return text;
}

Value Interpreter::filtered(const Statement& s, const Node& chain, const ScopePtr& scope) {
  ScopePtr inner = inside(scope);
  set(*inner, kBodyName, Value::text(capture(*s.body, scope)));
  return evaluate(chain, inner);
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& scope) {
  if (!target.parts.empty()) {
    auto items = iterate(value, meter_);
    check(items->items.size() == target.parts.size(), "cannot unpack {} values into {} names", items->items.size(),
          target.parts.size());
    for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i], scope);
    return;
  }
  if (target.attribute.empty()) return set(*scope, target.name, std::move(value));
  Value object = lookup(target.name, scope);
  auto space = std::get_if<std::shared_ptr<Namespace>>(&object.data());
  check(space, "cannot set {}.{}: only a namespace's attributes can be set", target.name, target.attribute);
  check(target.attribute[0] != '_', "the attribute {} of a namespace starts with an underscore", target.attribute);
  meter_.spend((*space)->entries.size() / 4);
  if (Value* old = (*space)->find(target.attribute)) {
    *old = std::move(value);
  } else {
    meter_.spend_items(1);
    (*space)->entries.emplace_back(target.attribute, std::move(value));
  }
}

Value Interpreter::make_namespace(Arguments arguments) {
  auto space = std::make_shared<Namespace>();
  auto put = [&](const std::string& name, Value value) {
    check(name.empty() || name[0] != '_', "the attribute {} of a namespace starts with an underscore", name);
    meter_.spend_items(1 + space->entries.size() / 8);
    if (Value* old = space->find(name))
      *old = std::move(value);
    else
      space->entries.emplace_back(name, std::move(value));
  };
  check(arguments.positional.size() <= 1, "namespace takes at most one dict");
  if (!arguments.positional.empty()) {
    const Dict* d = arguments.positional[0].as_dict();
    check(d, "namespace takes a dict, not {}", type_name(arguments.positional[0]));
    for (const auto& [key, value] : d->entries) put(str(key, meter_), value);
  }
  for (auto& [name, value] : arguments.named) put(name, std::move(value));
  meter_.spend_items(2);
  namespaces_.push_back(space);
  return Value(Value::Data(std::move(space)));
}

Value Interpreter::make_macro(const Statement& s, const ScopePtr& scope) {
  auto made = std::make_shared<Callable>();
  made->name = s.text.empty() ? "caller" : s.text;
  made->run = [&s, scope](Interpreter& in, Arguments a) { return in.call_macro(s, scope, std::move(a)); };
  meter_.spend_items(8);  // This is for the scope that the macro keeps.
  closures_.push_back(scope);
  return Value(Value::Data(std::shared_ptr<const Callable>(std::move(made))));
}

Value Interpreter::call_macro(const Statement& s, const ScopePtr& scope, Arguments arguments) {
  const std::string& name = s.text.empty() ? "caller" : s.text;
  check(arguments.positional.size() <= s.parameters.size(), "{} takes at most {} arguments, got {}", name,
        s.parameters.size(), arguments.positional.size());
  ScopePtr inner = inside(scope);
  std::vector<bool> used(arguments.named.size());
  meter_.spend(s.parameters.size() * (1 + arguments.named.size()) / 4);
  size_t first_default = s.parameters.size() - s.defaults.size();
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    std::optional<Value> value;
    if (i < arguments.positional.size()) value = arguments.positional[i];
    for (size_t k = 0; k < arguments.named.size(); ++k) {
      if (arguments.named[k].first != s.parameters[i]) continue;
      check(!value, "{} got the argument {} twice", name, s.parameters[i]);
      value = arguments.named[k].second;
      used[k] = true;
    }
    if (!value && i >= first_default) value = evaluate(*s.defaults[i - first_default], inner);
    set(*inner, s.parameters[i], value ? *value : Value::undefined(fmt::format("parameter '{}'", s.parameters[i])));
  }
  for (size_t k = 0; k < used.size(); ++k) {
    bool caller = arguments.named[k].first == "caller";
    check(used[k] || caller, "{} has no parameter {}", name, arguments.named[k].first);
    if (!used[k]) set(*inner, "caller", arguments.named[k].second);
  }
  return Value::text(capture(*s.body, inner));
}

// The functions below evaluate expressions.

Value Interpreter::lookup(const std::string& name, const ScopePtr& scope) {
  for (const Scope* s = scope.get(); s; s = s->parent.get()) {
    meter_.spend((s->names.size() + 2) * (1 + name.size() / 64) / 4);
    for (const auto& [key, value] : s->names)
      if (key == name) return value;
  }
  meter_.spend(2);
  if (auto global = find_global(name)) return *global;
  meter_.spend(4);
  return Value::undefined(fmt::format("'{}'", foreign(name)));
}

Value Interpreter::evaluate(const Node& node, const ScopePtr& scope) {
  Deeper deeper(depth_, kMaxEvaluationDepth);
  meter_.spend(1);
  line_ = node.line;
  switch (node.op) {
    case Op::constant:
      return node.value;
    case Op::name:
      return lookup(node.text, scope);
    case Op::list:
    case Op::tuple:
    case Op::dict:
      return build(node, scope);
    case Op::concat:
      return concat(node, scope);
    case Op::logical_and: {
      Value left = evaluate(*node.kids[0], scope);
      return truthy(left) ? evaluate(*node.kids[1], scope) : left;
    }
    case Op::logical_or: {
      Value left = evaluate(*node.kids[0], scope);
      return truthy(left) ? left : evaluate(*node.kids[1], scope);
    }
    case Op::logical_not:
      return Value::boolean(!truthy(evaluate(*node.kids[0], scope)));
    case Op::compare:
      return compare(node, scope);
    case Op::condition:
      return condition(node, scope);
    case Op::attribute:
      return attribute(evaluate(*node.kids[0], scope), node.text);
    case Op::item: {
      Value object = evaluate(*node.kids[0], scope);
      return item(object, evaluate(*node.kids[1], scope));
    }
    case Op::slice:
      return slice(node, scope);
    case Op::call:
      return call(node, scope);
    case Op::filter: {
      Value input = evaluate(*node.kids[0], scope);
      return filter(node.text, input, arguments(node, scope));
    }
    case Op::test: {
      Value input = evaluate(*node.kids[0], scope);
      return Value::boolean(test(node.text, input, arguments(node, scope)));
    }
    default:
      return arithmetic(node, scope);
  }
}

Value Interpreter::condition(const Node& node, const ScopePtr& scope) {
  if (truthy(evaluate(*node.kids[1], scope))) return evaluate(*node.kids[0], scope);
  return node.kids.size() > 2 ? evaluate(*node.kids[2], scope) : Value::undefined("an inline if without else");
}

Value Interpreter::arithmetic(const Node& node, const ScopePtr& scope) {
  Value left = evaluate(*node.kids[0], scope);
  if (left.is_undefined()) refuse_undefined(left);
  if (node.op == Op::negate && left.is<Float>()) return Value::number(-std::get<Float>(left.data()).value);
  if (node.op == Op::negate) return binary(Op::subtract, Value::integer(0), left, meter_);
  if (node.op == Op::plus) return binary(Op::add, Value::integer(0), left, meter_);
  Value right = evaluate(*node.kids[1], scope);
  if (right.is_undefined() && !(node.op == Op::modulo && left.as_text())) refuse_undefined(right);
  line_ = node.line;
  return binary(node.op, left, right, meter_);
}

Value Interpreter::compare(const Node& node, const ScopePtr& scope) {
  Value left = evaluate(*node.kids[0], scope);
  for (size_t i = 0; i < node.words.size(); ++i) {
    Value right = evaluate(*node.kids[i + 1], scope);
    line_ = node.line;
    const std::string& word = node.words[i];
    bool ordering = word[0] == '<' || word[0] == '>';
    if (ordering && left.is_undefined()) refuse_undefined(left);
    if (ordering && right.is_undefined()) refuse_undefined(right);
    auto both_numbers = [&] { return as_number(left) && as_number(right); };
    bool holds = false;
    if (word == "==") {
      holds = equal(left, right, meter_);
    } else if (word == "!=") {
      holds = !equal(left, right, meter_);
    } else if (word == "in" || word == "not in") {
      holds = contains(right, left, meter_) == (word == "in");
    } else if (word == "<" || word == ">") {
      holds = word == "<" ? less(left, right, meter_) : less(right, left, meter_);
    } else {  // <= is < or ==, which differs from "not >" for NaN only.
      bool strict = word == "<=" ? less(left, right, meter_) : less(right, left, meter_);
      holds = strict ||
              (both_numbers() || left.data().index() == right.data().index() ? equal(left, right, meter_) : false);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::concat(const Node& node, const ScopePtr& scope) {
  std::string text;
  for (const NodePtr& kid : node.kids) {
    std::string part = str(evaluate(*kid, scope), meter_);
    meter_.spend_bytes(part.size());
    text += part;
  }
  return Value::text(std::move(text));
}

Value Interpreter::build(const Node& node, const ScopePtr& scope) {
  std::vector<Value> values;
  meter_.spend_items(node.kids.size());
  for (const NodePtr& kid : node.kids) values.push_back(evaluate(*kid, scope));
  if (node.op == Op::list) return Value::list(std::move(values));
  if (node.op == Op::tuple) return Value::tuple(std::move(values));
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < values.size(); i += 2) entries.emplace_back(std::move(values[i]), std::move(values[i + 1]));
  const bool texts = std::all_of(entries.begin(), entries.end(), [](const auto& e) { return e.first.as_text(); });
  if (!texts) meter_.spend(entries.size() * entries.size() / 8);
  return Value::dict(std::move(entries));
}

Value Interpreter::slice(const Node& node, const ScopePtr& scope) {
  Value object = evaluate(*node.kids[0], scope);
  if (object.is_undefined()) refuse_undefined(object);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = node.kids[i + 1] ? evaluate(*node.kids[i + 1], scope) : Value::none();
  return jinja::slice(object, bounds[0], bounds[1], bounds[2], meter_);
}

Arguments Interpreter::arguments(const Node& node, const ScopePtr& scope) {
  Arguments a;
  size_t first_named = node.kids.size() - node.words.size();
  for (size_t i = 1; i < node.kids.size(); ++i) {
    Value value = evaluate(*node.kids[i], scope);
    if (i < first_named) {
      a.positional.push_back(std::move(value));
      continue;
    }
    const std::string& name = node.words[i - first_named];
    meter_.spend(a.named.size() / 4);
    for (const auto& given : a.named) check(given.first != name, "the argument {} is given twice", name);
    a.named.emplace_back(name, std::move(value));
  }
  line_ = node.line;
  return a;
}

Value Interpreter::call(const Node& node, const ScopePtr& scope, const Value* caller) {
  const Node& callee = *node.kids[0];
  Value object;
  Value function;
  bool named_item = callee.op == Op::item && callee.kids[1]->op == Op::constant && callee.kids[1]->value.as_text();
  if (callee.op == Op::attribute || named_item) {
    object = evaluate(*callee.kids[0], scope);
    const std::string& name = named_item ? *callee.kids[1]->value.as_text() : callee.text;
    bool key_first = named_item && object.as_dict() && find(*object.as_dict(), name);
    if (has_method(object, name) && !key_first) return call_method(*this, object, name, arguments(node, scope));
    function = named_item ? item(object, callee.kids[1]->value) : attribute(object, name);
  } else {
    function = evaluate(callee, scope);
  }
  if (function.is_undefined()) refuse_undefined(function);
  auto callable = std::get_if<std::shared_ptr<const Callable>>(&function.data());
  check(callable, "a {} cannot be called", type_name(function));
  Arguments given = arguments(node, scope);
  if (caller) given.named.emplace_back("caller", *caller);
  return (*callable)->run(*this, std::move(given));
}

namespace {

Value loop_attribute(const Loop& loop, const std::string& name) {
  auto n = static_cast<int64_t>(loop.items->items.size());
  auto i = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::integer(i + 1);
  if (name == "index0") return Value::integer(i);
  if (name == "revindex") return Value::integer(n - i);
  if (name == "revindex0") return Value::integer(n - i - 1);
  if (name == "first") return Value::boolean(i == 0);
  if (name == "last") return Value::boolean(i + 1 == n);
  if (name == "length") return Value::integer(n);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem" && i > 0) return loop.items->items[loop.index - 1];
  if (name == "nextitem" && i + 1 < n) return loop.items->items[loop.index + 1];
  return Value::undefined(fmt::format("'loop.{}'", name));
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) refuse_undefined(object);
  meter_.spend(2);
  if (has_method(object, name)) {
    auto method = std::make_shared<Callable>();
    method->name = name;
    method->run = [name](Interpreter&, Arguments) -> Value {
      throw Error("the method {} must be called where it is named", name);
    };
    return Value(Value::Data(std::shared_ptr<const Callable>(std::move(method))));
  }
  if (const Dict* d = object.as_dict()) {
    meter_.spend(d->entries.size() * (1 + name.size() / 64) / 4);
    if (const Value* v = find(*d, name)) return *v;
  }
  if (auto space = std::get_if<std::shared_ptr<Namespace>>(&object.data())) {
    meter_.spend((*space)->entries.size() * (1 + name.size() / 64) / 4);
    if (Value* v = (*space)->find(name)) return *v;
  }
  if (auto loop = std::get_if<std::shared_ptr<const Loop>>(&object.data())) return loop_attribute(**loop, name);
  meter_.spend(4);
  return Value::undefined(fmt::format("'{}' of a {}", foreign(name), type_name(object)));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) refuse_undefined(object);
  if (const Dict* d = object.as_dict())
    if (const Value* v = find(*d, key, meter_)) return *v;
  if (auto index = as_integer(key)) {
    const Sequence* s = object.as_sequence();
    if (s && s->kind != Kind::lazy && s->kind != Kind::view) {
      auto n = static_cast<int64_t>(s->items.size());
      int64_t i = *index < 0 ? *index + n : *index;
      if (i >= 0 && i < n) return s->items[static_cast<size_t>(i)];
    }
    if (const std::string* text = object.as_text()) {
      meter_.spend_letters(text->size());
      std::u32string points = decode(*text);
      auto n = static_cast<int64_t>(points.size());
      int64_t i = *index < 0 ? *index + n : *index;
      if (i >= 0 && i < n) return Value::text(encode(points.substr(static_cast<size_t>(i), 1)));
    }
    return Value::undefined(fmt::format("element {} of a {}", *index, type_name(object)));
  }
  if (key.as_text()) return attribute(object, *key.as_text());
  return Value::undefined(fmt::format("element of a {}", type_name(object)));
}

std::string Template::render(const Variables& variables, const std::function<std::tm()>& clock,
                             const Limits& limits) const {
  return Interpreter(variables, clock, limits).run(*body_);
}

}  // namespace fidelio::jinja
