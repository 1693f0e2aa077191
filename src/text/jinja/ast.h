// This file defines the syntax tree that a chat template is parsed into. Only the sources of this folder include it.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja.h"

namespace fidelio::jinja {

// These bound every recursion over a template: nesting while parsing, the height of an expression tree (a chain of n
// additions has height n), and the nodes on the evaluator's stack at once (macros call macros).
inline constexpr int kMaxParseDepth = 60;
inline constexpr int kMaxTreeHeight = 300;
inline constexpr int kMaxEvaluationDepth = 900;

enum class Op {
  constant,
  name,
  list,
  tuple,
  dict,  // Its kids are key, value, key, value, ...
  negate,
  plus,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,  // This joins its kids as text (~).
  logical_and,
  logical_or,
  logical_not,
  compare,    // This is kids[0] words[0] kids[1] words[1] kids[2] ..., chained as in Python.
  condition,  // Its kids are then, test and perhaps else.
  attribute,  // This is kids[0].text.
  item,       // This is kids[0][kids[1]].
  slice,      // This is kids[0][kids[1]:kids[2]:kids[3]]; an absent bound is null.
  call,       // This is kids[0](kids[1..]); the last words.size() kids are keyword arguments named by words.
  filter,     // This is kids[0] | text(kids[1..]).
  test,       // This is kids[0] is text(kids[1..]).
};

struct Node {
  Op op{};
  int line = 0;
  int height = 1;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Node>> kids;
  std::vector<std::string> words;
};
using NodePtr = std::unique_ptr<Node>;

// This is the target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;
};

enum class Do {
  text,    // This writes `text`.
  print,   // This prints `expression`.
  branch,  // Its arms are pairs of a test (null for else) and a body.
  loop,    // This is {% for target in expression [if filter] %} body {% else %} otherwise.
  assign,  // This is target = expression.
  // This is {% set target [| filter chain] %} body, where the chain is an expression over the name kBodyName.
  assign_body,
  macro,   // This is {% macro text(parameters, defaults) %} body.
  call,    // This is {% call(parameters) expression %} body.
  filter,  // This is {% filter chain %} body, where the chain is an expression over kBodyName.
  with,    // This is {% with names = expressions %} body; the names are `targets`, the expressions `values`.
  scope,   // This runs the body in its own scope ({% generation %}).
  stop,    // This is break.
  next,    // This is continue.
};

// A captured body is passed to its filter chain under this name, which no template can spell.
inline constexpr const char* kBodyName = "\n";

struct Statement {
  Do what{};
  int line = 0;
  std::string text;
  Target target;
  NodePtr expression;
  NodePtr filter;
  std::vector<std::pair<NodePtr, std::unique_ptr<Body>>> arms;
  std::unique_ptr<Body> body;
  std::unique_ptr<Body> otherwise;
  std::vector<std::string> parameters;
  std::vector<NodePtr> defaults;  // These belong to the last defaults.size() parameters.
  std::vector<Target> targets;
  std::vector<NodePtr> values;
};

struct Body {
  std::vector<Statement> statements;
};

std::shared_ptr<const Body> parse(std::string_view source);

}  // namespace fidelio::jinja
