#include "text/jinja/parser.h"

namespace fidelio::jinja {
namespace {

using Words = std::vector<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  std::shared_ptr<const Body> run() {
    auto body = parse_body({});
    return std::shared_ptr<const Body>(std::move(body));
  }

 private:
  // Reads until a block whose tag is one of `ends`, which is left unread after its '{%', or without ends to the end of
  // the template.
  std::unique_ptr<Body> parse_body(const Words& ends) {
    Nest nest(*this);
    auto body = std::make_unique<Body>();
    for (;;) {
      int line = now().line;
      if (now().kind == Kind::end) {
        if (ends.empty()) return body;
        throw Error("chat template line {}: the template ended before {{% {} %}}", line, ends.back());
      }
      if (now().kind == Kind::text) {
        Statement s = statement(Do::text, line);
        s.text = take().text;
        body->statements.push_back(std::move(s));
      } else if (now().kind == Kind::open_print) {
        take();
        Statement s = statement(Do::print, line);
        s.expression = parse_tuple();
        if (now().kind != Kind::close_print) fail("'}}'");
        take();
        body->statements.push_back(std::move(s));
      } else {
        if (now().kind != Kind::open_block) fail("a tag");
        take();
        if (now().kind == Kind::name && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
        body->statements.push_back(parse_statement());
      }
    }
  }

  static Statement statement(Do what, int line) {
    Statement s;
    s.what = what;
    s.line = line;
    return s;
  }

  // Reads a body up to and including {% end %}.
  std::unique_ptr<Body> parse_block(std::string_view end) {
    close_block();
    auto body = parse_body({end});
    take();
    close_block();
    return body;
  }

  Statement parse_statement() {
    int line = now().line;
    std::string tag = expect_name();
    if (tag == "if") return parse_if(line);
    if (tag == "for") return parse_for(line);
    if (tag == "set") return parse_set(line);
    if (tag == "macro") return parse_macro(line);
    if (tag == "call") return parse_call_block(line);
    if (tag == "with") return parse_with(line);
    if (tag == "filter") {
      Statement s = statement(Do::filter, line);
      NodePtr body = make(Op::name, line, {}, kBodyName);
      s.expression = parse_filter_chain(std::move(body));
      s.body = outside_loop("endfilter");
      return s;
    }
    if (tag == "generation") {
      Statement s = statement(Do::scope, line);
      s.body = outside_loop("endgeneration");
      return s;
    }
    if (tag == "break" || tag == "continue") {
      check(loops_ > 0, "chat template line {}: {{% {} %}} outside of a loop", line, tag);
      close_block();
      return statement(tag == "break" ? Do::stop : Do::next, line);
    }
    throw Error("chat template line {}: the tag {{% {} %}} is unknown or out of place here", line, tag);
  }

  // Reads a body that a break cannot leave, because its output is captured first.
  std::unique_ptr<Body> outside_loop(std::string_view end) {
    int loops = std::exchange(loops_, 0);
    auto body = parse_block(end);
    loops_ = loops;
    return body;
  }

  // Reads name|filter|filter(...), where `node` is the input of the first filter.
  NodePtr parse_filter_chain(NodePtr node) {
    std::string name = dotted_name();
    if (at_sign("(")) {
      node = parse_call(std::move(node), Op::filter, std::move(name));
    } else {
      int line = now().line;
      std::vector<NodePtr> kids;
      kids.push_back(std::move(node));
      node = make(Op::filter, line, std::move(kids), std::move(name));
    }
    while (at_sign("|")) node = parse_filter(std::move(node));
    return node;
  }

  Statement parse_if(int line) {
    Statement s = statement(Do::branch, line);
    for (;;) {
      NodePtr test = parse_tuple();
      close_block();
      auto body = parse_body({"elif", "else", "endif"});
      s.arms.emplace_back(std::move(test), std::move(body));
      std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") {
        close_block();
        s.arms.emplace_back(nullptr, parse_body({"endif"}));
        take();
      }
      close_block();
      return s;
    }
  }

  Statement parse_for(int line) {
    Statement s = statement(Do::loop, line);
    s.target = parse_target(false);
    check(s.target.name != "loop", "chat template line {}: a loop cannot assign to 'loop'", line);
    if (!skip_name("in")) fail("'in'");
    // In jinja2 the iterable is no inline if, so `for x in y if z` reads z as the filter of the loop.
    std::vector<NodePtr> kids;
    kids.push_back(parse_or());
    bool tuple = at_sign(",");
    while (skip_sign(",") && !at_tuple_end() && !at_name("if")) kids.push_back(parse_or());
    s.expression = tuple ? make(Op::tuple, line, std::move(kids)) : std::move(kids[0]);
    if (skip_name("if")) s.filter = parse_expression();
    check(!at_name("recursive"), "chat template line {}: recursive loops are not supported", line);
    close_block();
    ++loops_;
    s.body = parse_body({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      close_block();
      s.otherwise = parse_body({"endfor"});
      take();
    }
    close_block();
    return s;
  }

  Target parse_target(bool with_attribute) {
    Nest nest(*this);
    auto one = [&]() -> Target {
      if (skip_sign("(")) {
        Target inner = parse_target(with_attribute);
        expect_sign(")");
        return inner;
      }
      Target target;
      static constexpr std::array<std::string_view, 6> kConstants = {"true", "True", "false", "False", "none", "None"};
      bool constant = std::find(kConstants.begin(), kConstants.end(), now().text) != kConstants.end();
      if (now().kind != Kind::name || constant) fail("a name to assign to");
      target.name = take().text;
      if (with_attribute && skip_sign(".")) target.attribute = expect_name();
      return target;
    };
    Target first = one();
    if (!at_sign(",")) return first;
    Target tuple;
    tuple.parts.push_back(std::move(first));
    while (skip_sign(",")) tuple.parts.push_back(one());
    return tuple;
  }

  Statement parse_set(int line) {
    Statement s = statement(Do::assign, line);
    s.target = parse_target(true);
    if (skip_sign("=")) {
      s.expression = parse_tuple();
      close_block();
      return s;
    }
    s.what = Do::assign_body;
    s.expression = make(Op::name, line, {}, kBodyName);
    while (at_sign("|")) s.expression = parse_filter(std::move(s.expression));
    s.body = outside_loop("endset");
    return s;
  }

  void parse_signature(Statement& s) {
    expect_sign("(");
    while (!at_sign(")")) {
      s.parameters.push_back(expect_name());
      if (skip_sign("="))
        s.defaults.push_back(parse_expression());
      else if (!s.defaults.empty())
        fail("a default, as the parameters before have one,");
      if (!at_sign(")")) expect_sign(",");
    }
    take();
  }

  Statement parse_macro(int line) {
    Statement s = statement(Do::macro, line);
    s.text = expect_name();
    parse_signature(s);
    s.body = outside_loop("endmacro");
    return s;
  }

  Statement parse_call_block(int line) {
    Statement s = statement(Do::call, line);
    if (at_sign("(")) parse_signature(s);
    s.expression = parse_expression();
    check(s.expression->op == Op::call, "chat template line {}: {{% call %}} needs a call such as macro(...)", line);
    s.body = outside_loop("endcall");
    return s;
  }

  Statement parse_with(int line) {
    Statement s = statement(Do::with, line);
    while (now().kind != Kind::close_block) {
      if (!s.targets.empty()) expect_sign(",");
      s.targets.push_back({expect_name(), {}, {}});
      expect_sign("=");
      s.values.push_back(parse_expression());
    }
    s.body = parse_block("endwith");
    return s;
  }

  int loops_ = 0;
};

}  // namespace

std::shared_ptr<const Body> parse(std::string_view source) { return Parser(source).run(); }

Template::Template(std::string_view source) : body_(parse(source)) {}

}  // namespace fidelio::jinja
