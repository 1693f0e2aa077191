#include <array>
#include <charconv>

#include "text/jinja/parser.h"

#include "core/foreign/foreign_text.h"

namespace fidelio::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::end:
      return "the end of the template";
    case Token::Kind::text:
      return "text";
    case Token::Kind::open_print:
      return "'{{'";
    case Token::Kind::close_print:
      return "'}}'";
    case Token::Kind::open_block:
      return "'{%'";
    case Token::Kind::close_block:
      return "'%}'";
    case Token::Kind::string:
      return "a string";
    default:
      return fmt::format("'{}'", foreign(token.text));
  }
}

}  // namespace

void ExpressionParser::fail(std::string_view expected) const {
  throw Error("chat template line {}: expected {}, found {}", now().line, expected, describe(now()));
}

NodePtr ExpressionParser::make(Op op, int line, std::vector<NodePtr> kids, std::string text) {
  auto node = std::make_unique<Node>();
  node->op = op;
  node->line = line;
  node->text = std::move(text);
  for (const NodePtr& kid : kids)
    if (kid) node->height = std::max(node->height, kid->height + 1);
  node->kids = std::move(kids);
  check(node->height <= kMaxTreeHeight, "chat template line {}: an expression of more than {} levels", line,
        kMaxTreeHeight);
  return node;
}

NodePtr ExpressionParser::parse_expression() {
  Nest nest(*this);
  int line = now().line;
  NodePtr node = parse_or();
  while (skip_name("if")) {
    NodePtr test = parse_or();
    if (skip_name("else"))
      node = join(Op::condition, line, std::move(node), std::move(test), parse_expression());
    else
      node = join(Op::condition, line, std::move(node), std::move(test));
  }
  return node;
}

NodePtr ExpressionParser::parse_or() {
  NodePtr node = parse_and();
  while (at_name("or")) {
    int line = take().line;
    node = join(Op::logical_or, line, std::move(node), parse_and());
  }
  return node;
}

NodePtr ExpressionParser::parse_and() {
  NodePtr node = parse_not();
  while (at_name("and")) {
    int line = take().line;
    node = join(Op::logical_and, line, std::move(node), parse_not());
  }
  return node;
}

NodePtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  Nest nest(*this);
  int line = take().line;
  return join(Op::logical_not, line, parse_not());
}

NodePtr ExpressionParser::parse_compare() {
  static constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
  int line = now().line;
  std::vector<NodePtr> kids;
  std::vector<std::string> words;
  kids.push_back(parse_sum());
  for (;;) {
    bool sign = now().kind == Kind::sign && std::find(kSigns.begin(), kSigns.end(), now().text) != kSigns.end();
    if (sign || at_name("in")) {
      words.push_back(take().text);
    } else if (at_name("not") && ahead().kind == Kind::name && ahead().text == "in") {
      take();
      take();
      words.emplace_back("not in");
    } else {
      break;
    }
    kids.push_back(parse_sum());
  }
  if (words.empty()) return std::move(kids[0]);
  NodePtr node = make(Op::compare, line, std::move(kids));
  node->words = std::move(words);
  return node;
}

NodePtr ExpressionParser::parse_sum() {
  NodePtr node = parse_concat();
  while (at_sign("+") || at_sign("-")) {
    Token sign = take();
    node = join(sign.text == "+" ? Op::add : Op::subtract, sign.line, std::move(node), parse_concat());
  }
  return node;
}

NodePtr ExpressionParser::parse_concat() {
  int line = now().line;
  std::vector<NodePtr> kids;
  kids.push_back(parse_product());
  while (skip_sign("~")) kids.push_back(parse_product());
  return kids.size() == 1 ? std::move(kids[0]) : make(Op::concat, line, std::move(kids));
}

NodePtr ExpressionParser::parse_product() {
  NodePtr node = parse_power();
  while (at_sign("*") || at_sign("/") || at_sign("//") || at_sign("%")) {
    Token sign = take();
    Op op = sign.text == "*"   ? Op::multiply
            : sign.text == "/" ? Op::divide
            : sign.text == "%" ? Op::modulo
                               : Op::floor_divide;
    node = join(op, sign.line, std::move(node), parse_power());
  }
  return node;
}

NodePtr ExpressionParser::parse_power() {
  NodePtr node = parse_unary(true);
  while (at_sign("**")) {
    int line = take().line;
    node = join(Op::power, line, std::move(node), parse_unary(true));
  }
  return node;
}

NodePtr ExpressionParser::parse_unary(bool with_filters) {
  NodePtr node;
  if (at_sign("-") || at_sign("+")) {
    Nest nest(*this);
    Token sign = take();
    node = join(sign.text == "-" ? Op::negate : Op::plus, sign.line, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::parse_primary() {
  int line = now().line;
  switch (now().kind) {
    case Kind::name: {
      std::string name = take().text;
      if (name == "true" || name == "True") return constant(Value::boolean(true), line);
      if (name == "false" || name == "False") return constant(Value::boolean(false), line);
      if (name == "none" || name == "None") return constant(Value::none(), line);
      return make(Op::name, line, {}, std::move(name));
    }
    case Kind::string: {
      std::string text = take().text;
      while (now().kind == Kind::string) text += take().text;
      return constant(Value::text(std::move(text)), line);
    }
    case Kind::integer: {
      std::string digits = take().text;
      int64_t value = 0;
      auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      check(end.ec == std::errc(), "chat template line {}: {} does not fit in 64 bits", line, digits);
      return constant(Value::integer(value), line);
    }
    case Kind::number:
      return constant(Value::number(std::strtod(take().text.c_str(), nullptr)), line);
    case Kind::sign:
      break;
    default:
      fail("an expression");
  }
  if (at_sign("(")) {
    take();
    NodePtr node = at_sign(")") ? make(Op::tuple, line) : parse_tuple();
    expect_sign(")");
    return node;
  }
  if (at_sign("[")) return parse_list();
  if (at_sign("{")) return parse_dict();
  fail("an expression");
}

bool ExpressionParser::at_tuple_end() const {
  return now().kind == Kind::close_print || now().kind == Kind::close_block || at_sign(")");
}

NodePtr ExpressionParser::parse_tuple() {
  int line = now().line;
  std::vector<NodePtr> kids;
  kids.push_back(parse_expression());
  if (!at_sign(",")) return std::move(kids[0]);
  while (skip_sign(",") && !at_tuple_end()) kids.push_back(parse_expression());
  return make(Op::tuple, line, std::move(kids));
}

NodePtr ExpressionParser::parse_list() {
  int line = take().line;
  std::vector<NodePtr> kids;
  while (!at_sign("]")) {
    kids.push_back(parse_expression());
    if (!at_sign("]")) expect_sign(",");
  }
  take();
  return make(Op::list, line, std::move(kids));
}

NodePtr ExpressionParser::parse_dict() {
  int line = take().line;
  std::vector<NodePtr> kids;
  while (!at_sign("}")) {
    kids.push_back(parse_expression());
    expect_sign(":");
    kids.push_back(parse_expression());
    if (!at_sign("}")) expect_sign(",");
  }
  take();
  return make(Op::dict, line, std::move(kids));
}

NodePtr ExpressionParser::parse_postfix(NodePtr node) {
  for (;;) {
    int line = now().line;
    if (skip_sign(".")) {
      if (now().kind == Kind::integer) {
        NodePtr index = parse_primary();
        node = join(Op::item, line, std::move(node), std::move(index));
      } else {
        std::vector<NodePtr> kids;
        kids.push_back(std::move(node));
        node = make(Op::attribute, line, std::move(kids), expect_name());
      }
    } else if (skip_sign("[")) {
      node = parse_subscript(std::move(node), line);
    } else if (at_sign("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::parse_subscript(NodePtr object, int line) {
  std::array<NodePtr, 3> bounds;
  bool slice = false;
  for (size_t i = 0; i < 3; ++i) {
    if (!at_sign(":") && !at_sign("]")) bounds[i] = parse_expression();
    if (i == 2 || !skip_sign(":")) break;
    slice = true;
  }
  if (at_sign(",")) throw Error("chat template line {}: a subscript of several parts is not supported", line);
  if (!slice && !bounds[0]) fail("an index");
  expect_sign("]");
  if (!slice) return join(Op::item, line, std::move(object), std::move(bounds[0]));
  return join(Op::slice, line, std::move(object), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
}

NodePtr ExpressionParser::parse_call(NodePtr callee, Op op, std::string text) {
  int line = now().line;
  std::vector<NodePtr> kids;
  std::vector<std::string> words;
  kids.push_back(std::move(callee));
  expect_sign("(");
  while (!at_sign(")")) {
    check(!at_sign("*") && !at_sign("**"), "chat template line {}: *args and **kwargs are not supported", now().line);
    if (now().kind == Kind::name && ahead().kind == Kind::sign && ahead().text == "=") {
      words.push_back(take().text);
      take();
    } else if (!words.empty()) {
      fail("a keyword argument");
    }
    kids.push_back(parse_expression());
    if (!at_sign(")")) expect_sign(",");
  }
  take();
  NodePtr node = make(op, line, std::move(kids), std::move(text));
  node->words = std::move(words);
  return node;
}

NodePtr ExpressionParser::parse_filters_and_tests(NodePtr node) {
  for (;;) {
    if (at_sign("|")) {
      node = parse_filter(std::move(node));
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_sign("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_name();
  while (skip_sign(".")) name += "." + expect_name();
  return name;
}

NodePtr ExpressionParser::parse_filter(NodePtr node) {
  int line = take().line;
  std::string name = dotted_name();
  if (at_sign("(")) return parse_call(std::move(node), Op::filter, std::move(name));
  std::vector<NodePtr> kids;
  kids.push_back(std::move(node));
  return make(Op::filter, line, std::move(kids), std::move(name));
}

NodePtr ExpressionParser::parse_test(NodePtr node) {
  int line = take().line;
  bool negated = skip_name("not");
  std::string name = dotted_name();
  bool word = now().kind == Kind::name && !at_name("else") && !at_name("or") && !at_name("and");
  if (word && at_name("is")) throw Error("chat template line {}: tests cannot be chained with 'is'", now().line);
  bool literal = now().kind == Kind::string || now().kind == Kind::integer || now().kind == Kind::number ||
                 at_sign("[") || at_sign("{");
  if (at_sign("(")) {
    node = parse_call(std::move(node), Op::test, std::move(name));
  } else {
    std::vector<NodePtr> kids;
    kids.push_back(std::move(node));
    // `x is defined in y` and `x is a not in y` continue as comparisons; any other word starts the one argument of the
    // test.
    if (literal || (word && !at_name("in") && !at_name("not"))) kids.push_back(parse_postfix(parse_primary()));
    node = make(Op::test, line, std::move(kids), std::move(name));
  }
  return negated ? join(Op::logical_not, line, std::move(node)) : std::move(node);
}

}  // namespace fidelio::jinja
