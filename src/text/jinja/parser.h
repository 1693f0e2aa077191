// This file defines the recursive-descent parser of expressions in a chat template (parser_expressions.cc). The parser
// of statements (parser.cc) derives from it.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace fidelio::jinja {

// The levels of precedence are those of jinja2, lowest first: if-else, or, and, not, comparisons, + -, ~, * / // %, **
// (which binds to the left), unary + -, then postfix, filters and tests.
class ExpressionParser {
 protected:
  using Kind = Token::Kind;

  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  class Nest {  // It counts one level of recursion.
   public:
    explicit Nest(ExpressionParser& parser) : parser_(parser) {
      check(++parser_.depth_ <= kMaxParseDepth, "chat template line {}: nested more than {} deep", parser_.now().line,
            kMaxParseDepth);
    }
    ~Nest() { --parser_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool at_sign(std::string_view s) const { return now().kind == Kind::sign && now().text == s; }
  bool at_name(std::string_view s) const { return now().kind == Kind::name && now().text == s; }
  bool skip_sign(std::string_view s) { return at_sign(s) && (take(), true); }
  bool skip_name(std::string_view s) { return at_name(s) && (take(), true); }
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

  [[noreturn]] void fail(std::string_view expected) const;
  NodePtr make(Op op, int line, std::vector<NodePtr> kids = {}, std::string text = {});
  NodePtr parse_expression();
  NodePtr parse_or();
  NodePtr parse_and();
  NodePtr parse_not();
  NodePtr parse_compare();
  NodePtr parse_sum();
  NodePtr parse_concat();
  NodePtr parse_product();
  NodePtr parse_power();
  NodePtr parse_unary(bool with_filters);
  NodePtr parse_primary();
  bool at_tuple_end() const;
  // Reads one expression, or a tuple where a comma follows it.
  NodePtr parse_tuple();
  NodePtr parse_list();
  NodePtr parse_dict();
  NodePtr parse_postfix(NodePtr node);
  NodePtr parse_subscript(NodePtr object, int line);
  // Reads `(a, b, name=c)` after kids[0].
  NodePtr parse_call(NodePtr callee, Op op = Op::call, std::string text = {});
  NodePtr parse_filters_and_tests(NodePtr node);
  std::string dotted_name();
  NodePtr parse_filter(NodePtr node);
  NodePtr parse_test(NodePtr node);

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace fidelio::jinja
