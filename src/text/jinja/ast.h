// io: the tree a chat template is parsed into. Private to the jinja_*.cc files.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja.h"

namespace fidelio::jinja {

// Every recursion over a template is bounded by these: nesting while parsing, height of an expression tree (a chain
// of n additions is n high), and nodes on the evaluator's stack at once (macros call macros).
inline constexpr int kMaxParseDepth = 60;
inline constexpr int kMaxTreeHeight = 300;
inline constexpr int kMaxEvaluationDepth = 900;

enum class Op {
  constant,
  name,
  list,
  tuple,
  dict,  // kids: key, value, key, value, ...
  negate,
  plus,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,  // kids joined as text (~)
  logical_and,
  logical_or,
  logical_not,
  compare,    // kids[0] words[0] kids[1] words[1] kids[2] ...: chained as in Python
  condition,  // kids: then, test[, else]
  attribute,  // kids[0].text
  item,       // kids[0][kids[1]]
  slice,      // kids[0][kids[1]:kids[2]:kids[3]]; an absent bound is null
  call,       // kids[0](kids[1..]); the last words.size() kids are keyword arguments named by words
  filter,     // kids[0] | text(kids[1..])
  test,       // kids[0] is text(kids[1..])
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

// What an assignment writes to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;
};

enum class Do {
  text,         // text
  print,        // expression
  branch,       // arms: (test or null for else, body)
  loop,         // target in expression [if filter]: body, else: otherwise
  assign,       // target = expression
  assign_body,  // target = body [| filter chain: expression over the name kBodyName]
  macro,        // text(parameters, defaults): body
  call,         // {% call(parameters) expression %} body
  filter,       // {% filter chain %} body: expression over kBodyName
  with,         // names (targets) = expressions (values): body
  scope,        // body in its own scope ({% generation %})
  stop,         // break
  next,         // continue
};

// The name under which a captured body is handed to its filter chain; no template can spell it.
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
  std::vector<NodePtr> defaults;  // of the last defaults.size() parameters
  std::vector<Target> targets;
  std::vector<NodePtr> values;
};

struct Body {
  std::vector<Statement> statements;
};

std::shared_ptr<const Body> parse(std::string_view source);

}  // namespace fidelio::jinja
