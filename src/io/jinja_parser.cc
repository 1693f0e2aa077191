#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "io/jinja_ast.h"
#include "io/jinja_lexer.h"

namespace fidelio::jinja {
namespace {

using Kind = Token::Kind;
using Words = std::vector<std::string_view>;

std::string describe(const Token& token) {
  switch (token.kind) {
    case Kind::end:
      return "the end of the template";
    case Kind::text:
      return "text";
    case Kind::open_print:
      return "'{{'";
    case Kind::close_print:
      return "'}}'";
    case Kind::open_block:
      return "'{%'";
    case Kind::close_block:
      return "'%}'";
    case Kind::string:
      return "a string";
    default:
      return fmt::format("'{}'", token.text);
  }
}

// Recursive descent; the levels of precedence are jinja2's, lowest first: if-else, or, and, not, comparisons, + -,
// ~, * / // %, ** (which binds to the left), unary + -, then postfix, filters and tests.
class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  std::shared_ptr<const Body> run() {
    auto body = parse_body({});
    return std::shared_ptr<const Body>(std::move(body));
  }

 private:
  class Nest {  // one level of recursion
   public:
    explicit Nest(Parser& parser) : parser_(parser) {
      check(++parser_.depth_ <= kMaxParseDepth, "chat template line {}: nested more than {} deep", parser_.now().line,
            kMaxParseDepth);
    }
    ~Nest() { --parser_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    Parser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool at_sign(std::string_view s) const { return now().kind == Kind::sign && now().text == s; }
  bool at_name(std::string_view s) const { return now().kind == Kind::name && now().text == s; }
  bool skip_sign(std::string_view s) { return at_sign(s) && (take(), true); }
  bool skip_name(std::string_view s) { return at_name(s) && (take(), true); }
  [[noreturn]] void fail(std::string_view expected) const {
    throw Error("chat template line {}: expected {}, found {}", now().line, expected, describe(now()));
  }
  void expect_sign(std::string_view s) {
    if (!skip_sign(s)) fail(fmt::format("'{}'", s));
  }
  std::string expect_name() {
    if (now().kind != Kind::name) fail("a name");
    return take().text;
  }
  void close_block() {
    if (now().kind != Kind::close_block) fail("'%}'");
    take();
  }

  NodePtr make(Op op, int line, std::vector<NodePtr> kids = {}, std::string text = {}) {
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
  template <typename... Kids>
  NodePtr join(Op op, int line, Kids... kids) {
    std::vector<NodePtr> list;
    (list.push_back(std::move(kids)), ...);
    return make(op, line, std::move(list));
  }
  NodePtr constant(Value value, int line) {
    NodePtr node = make(Op::constant, line);
    node->value = std::move(value);
    return node;
  }

  // ---- expressions ----

  NodePtr parse_expression() {
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

  NodePtr parse_or() {
    NodePtr node = parse_and();
    while (at_name("or")) {
      int line = take().line;
      node = join(Op::logical_or, line, std::move(node), parse_and());
    }
    return node;
  }

  NodePtr parse_and() {
    NodePtr node = parse_not();
    while (at_name("and")) {
      int line = take().line;
      node = join(Op::logical_and, line, std::move(node), parse_not());
    }
    return node;
  }

  NodePtr parse_not() {
    if (!at_name("not")) return parse_compare();
    Nest nest(*this);
    int line = take().line;
    return join(Op::logical_not, line, parse_not());
  }

  NodePtr parse_compare() {
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

  NodePtr parse_sum() {
    NodePtr node = parse_concat();
    while (at_sign("+") || at_sign("-")) {
      Token sign = take();
      node = join(sign.text == "+" ? Op::add : Op::subtract, sign.line, std::move(node), parse_concat());
    }
    return node;
  }

  NodePtr parse_concat() {
    int line = now().line;
    std::vector<NodePtr> kids;
    kids.push_back(parse_product());
    while (skip_sign("~")) kids.push_back(parse_product());
    return kids.size() == 1 ? std::move(kids[0]) : make(Op::concat, line, std::move(kids));
  }

  NodePtr parse_product() {
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

  NodePtr parse_power() {
    NodePtr node = parse_unary(true);
    while (at_sign("**")) {
      int line = take().line;
      node = join(Op::power, line, std::move(node), parse_unary(true));
    }
    return node;
  }

  NodePtr parse_unary(bool with_filters) {
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

  NodePtr parse_primary() {
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

  bool at_tuple_end() const {
    return now().kind == Kind::close_print || now().kind == Kind::close_block || at_sign(")");
  }

  // One expression, or a tuple where a comma follows it.
  NodePtr parse_tuple() {
    int line = now().line;
    std::vector<NodePtr> kids;
    kids.push_back(parse_expression());
    if (!at_sign(",")) return std::move(kids[0]);
    while (skip_sign(",") && !at_tuple_end()) kids.push_back(parse_expression());
    return make(Op::tuple, line, std::move(kids));
  }

  NodePtr parse_list() {
    int line = take().line;
    std::vector<NodePtr> kids;
    while (!at_sign("]")) {
      kids.push_back(parse_expression());
      if (!at_sign("]")) expect_sign(",");
    }
    take();
    return make(Op::list, line, std::move(kids));
  }

  NodePtr parse_dict() {
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

  NodePtr parse_postfix(NodePtr node) {
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

  NodePtr parse_subscript(NodePtr object, int line) {
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

  // Reads `(a, b, name=c)` behind kids[0].
  NodePtr parse_call(NodePtr callee, Op op = Op::call, std::string text = {}) {
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

  NodePtr parse_filters_and_tests(NodePtr node) {
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

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_sign(".")) name += "." + expect_name();
    return name;
  }

  NodePtr parse_filter(NodePtr node) {
    int line = take().line;
    std::string name = dotted_name();
    if (at_sign("(")) return parse_call(std::move(node), Op::filter, std::move(name));
    std::vector<NodePtr> kids;
    kids.push_back(std::move(node));
    return make(Op::filter, line, std::move(kids), std::move(name));
  }

  NodePtr parse_test(NodePtr node) {
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
      // `x is defined in y` and `x is a not in y` read on; any other word starts the test's one argument.
      if (literal || (word && !at_name("in") && !at_name("not"))) kids.push_back(parse_postfix(parse_primary()));
      node = make(Op::test, line, std::move(kids), std::move(name));
    }
    return negated ? join(Op::logical_not, line, std::move(node)) : std::move(node);
  }

  // ---- statements ----

  // Reads until a block whose tag is one of `ends` (left unread, behind its '{%') or, without ends, to the end.
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

  // The body up to {% end %}, which is read too.
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

  // A body that a break cannot leave, because what it prints is captured first.
  std::unique_ptr<Body> outside_loop(std::string_view end) {
    int loops = std::exchange(loops_, 0);
    auto body = parse_block(end);
    loops_ = loops;
    return body;
  }

  // name|filter|filter(...) where `node` stands for what the first filter gets.
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
    // As in jinja2 the iterable takes no inline if, so that `for x in y if z` reads z as the loop's filter.
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

std::shared_ptr<const Body> parse(std::string_view source) { return Parser(source).run(); }

Template::Template(std::string_view source) : body_(parse(source)) {}

}  // namespace fidelio::jinja
