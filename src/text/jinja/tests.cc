#include "core/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Value&);

bool is_bool(const Value& v, bool wanted) {
  auto b = std::get_if<bool>(&v.data());
  return b && *b == wanted;
}

bool indexable(const Value& v) {
  const Sequence* s = v.as_sequence();
  return v.is_undefined() || v.as_text() || v.as_dict() || (s && s->kind != Kind::lazy && s->kind != Kind::view);
}

int64_t remainder(const Value& v, const Value& by) {
  auto a = as_integer(v), b = as_integer(by);
  check(a && b, "this test needs ints, not {} and {}", type_name(v), type_name(by));
  check(*b != 0, "division by zero");
  return *b == -1 ? 0 : *a % *b;
}

bool same(Interpreter& in, const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  bool scalar = a.is<None>() || a.is<bool>() || a.is<int64_t>() || a.as_text();
  return scalar
             ? equal(a, b, in.meter())
             : (a.as_sequence() && a.as_sequence() == b.as_sequence()) || (a.as_dict() && a.as_dict() == b.as_dict());
}

bool text_equals(Interpreter& in, const Value& v, std::string (*change)(std::string_view),
                 bool (*holds)(std::string_view)) {
  std::string s = str(v, in.meter());
  in.meter().spend_letters(2 * s.size());
  return change(s) == s && holds(s);
}

template <bool swapped, bool or_equal>
bool ordered(Interpreter& in, const Value& a, const Value& b) {
  bool strict = swapped ? less(b, a, in.meter()) : less(a, b, in.meter());
  return strict || (or_equal && equal(a, b, in.meter()));
}

struct Entry {
  std::string_view name;
  size_t arguments;
  Test test;
};

bool equals(Interpreter& in, const Value& a, const Value& b) { return equal(a, b, in.meter()); }
bool differs(Interpreter& in, const Value& a, const Value& b) { return !equal(a, b, in.meter()); }

constexpr Entry kTests[] = {
    {"defined", 0, [](Interpreter&, const Value& v, const Value&) { return !v.is_undefined(); }},
    {"undefined", 0, [](Interpreter&, const Value& v, const Value&) { return v.is_undefined(); }},
    {"none", 0, [](Interpreter&, const Value& v, const Value&) { return v.is_none(); }},
    {"string", 0, [](Interpreter&, const Value& v, const Value&) { return v.as_text() != nullptr; }},
    {"number", 0, [](Interpreter&, const Value& v, const Value&) { return as_number(v).has_value(); }},
    {"integer", 0, [](Interpreter&, const Value& v, const Value&) { return v.is<int64_t>(); }},
    {"float", 0, [](Interpreter&, const Value& v, const Value&) { return v.is<Float>(); }},
    {"boolean", 0, [](Interpreter&, const Value& v, const Value&) { return v.is<bool>(); }},
    {"true", 0, [](Interpreter&, const Value& v, const Value&) { return is_bool(v, true); }},
    {"false", 0, [](Interpreter&, const Value& v, const Value&) { return is_bool(v, false); }},
    {"mapping", 0, [](Interpreter&, const Value& v, const Value&) { return v.as_dict() != nullptr; }},
    {"sequence", 0, [](Interpreter&, const Value& v, const Value&) { return indexable(v); }},
    {"iterable", 0, [](Interpreter&, const Value& v, const Value&) { return indexable(v) || v.as_sequence(); }},
    {"callable", 0,
     [](Interpreter&, const Value& v, const Value&) {
       return v.is_undefined() || v.is<std::shared_ptr<const Callable>>();
     }},
    {"odd", 0, [](Interpreter&, const Value& v, const Value&) { return remainder(v, Value::integer(2)) != 0; }},
    {"even", 0, [](Interpreter&, const Value& v, const Value&) { return remainder(v, Value::integer(2)) == 0; }},
    {"divisibleby", 1, [](Interpreter&, const Value& v, const Value& by) { return remainder(v, by) == 0; }},
    {"lower", 0, [](Interpreter& in, const Value& v, const Value&) { return text_equals(in, v, lower, is_lower); }},
    {"upper", 0, [](Interpreter& in, const Value& v, const Value&) { return text_equals(in, v, upper, is_upper); }},
    {"sameas", 1, same},
    {"in", 1, [](Interpreter& in, const Value& v, const Value& all) { return contains(all, v, in.meter()); }},
    {"equalto", 1, equals},
    {"eq", 1, equals},
    {"==", 1, equals},
    {"ne", 1, differs},
    {"!=", 1, differs},
    {"lt", 1, ordered<false, false>},
    {"<", 1, ordered<false, false>},
    {"lessthan", 1, ordered<false, false>},
    {"le", 1, ordered<false, true>},
    {"<=", 1, ordered<false, true>},
    {"gt", 1, ordered<true, false>},
    {">", 1, ordered<true, false>},
    {"greaterthan", 1, ordered<true, false>},
    {"ge", 1, ordered<true, true>},
    {">=", 1, ordered<true, true>},
};

}  // namespace

bool Interpreter::test(const std::string& name, const Value& input, Arguments arguments) {
  meter_.spend(3);
  for (const Entry& entry : kTests) {
    if (entry.name != name) continue;
    check(arguments.named.empty() && arguments.positional.size() == entry.arguments, "the test {} takes {} arguments",
          name, entry.arguments);
    return entry.test(*this, input, entry.arguments ? arguments.positional[0] : Value());
  }
  throw Error("unknown test '{}'", name);
}

}  // namespace fidelio::jinja
