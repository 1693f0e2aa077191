// This file defines Grammar, the rules that a constrained answer must follow. The rules are regular expressions over
// bytes that may call each other.
//
//   rule    a nondeterministic automaton from `first` to `last`; edges read a byte of a range, nothing, or a whole rule
//   calls   nest: what follows a call is kept on a stack (grammar/automaton.h), so JSON inside JSON is one rule
//
// No rule may call itself before it has read a byte, as it would never end.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/foreign/limits.h"
#include "text/thinking.h"

namespace fidelio::grammar {

using NodeId = int32_t;
using RuleId = int32_t;

// This is a part of a rule under construction. It is entered at `first` and left at `last`, which has no edges yet.
struct Fragment {
  NodeId first, last;
};

struct ByteEdge {
  uint8_t low, high;
  NodeId to;
};
struct CallEdge {
  RuleId rule;
  NodeId to;
};
struct Node {
  std::vector<ByteEdge> bytes{};
  std::vector<NodeId> free{};  // These edges read nothing.
  std::vector<CallEdge> calls{};
};

inline constexpr size_t kMostNodes = 200'000;

class Grammar {
 public:
  // Rule 0 reads the whole answer.
  RuleId add_rule();
  void define(RuleId rule, Fragment body) { rules_[static_cast<size_t>(rule)] = body; }

  // The functions below make parts of rules. All throw Error where there are more than kMostNodes nodes.
  Fragment empty();
  Fragment nothing();  // It reads no text at all, not even the empty one.
  Fragment byte(uint8_t low, uint8_t high);
  Fragment literal(std::string_view text);
  Fragment sequence(Fragment a, Fragment b);
  Fragment choice(const std::vector<Fragment>& all);
  Fragment optional(Fragment a);
  Fragment star(Fragment a);  // It reads a any number of times.
  // Reads the fragment that `make` returns from low to high times; with high < 0 there is no upper limit.
  Fragment repeat(const std::function<Fragment()>& make, int64_t low, int64_t high);
  Fragment call(RuleId rule);
  void link(NodeId from, NodeId to) { join(from, to); }  // It adds an edge that reads nothing.
  void read(NodeId from, uint8_t low, uint8_t high, NodeId to) {
    nodes_[static_cast<size_t>(from)].bytes.push_back({low, high, to});
  }

  Fragment up_to(std::string_view mark);  // It reads any text up to and including the first `mark`.
  // Puts `prefix` before the whole answer. Rules that call the answer still call it without `prefix`.
  void put_before(Fragment prefix);
  RuleId adopt(const Grammar& other);  // It adds all rules of another grammar, and returns the one of its whole answer.

  bool prune();  // It removes parts that cannot be ended and returns false if nothing can.

  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const Fragment& rule(RuleId id) const { return rules_[static_cast<size_t>(id)]; }
  size_t rules() const { return rules_.size(); }
  size_t size() const { return nodes_.size(); }
  Meter& meter() { return meter_; }  // It is charged for all work that may grow faster than the requested form.

 private:
  NodeId add_node();
  void join(NodeId from, NodeId to) { nodes_[static_cast<size_t>(from)].free.push_back(to); }

  std::vector<Node> nodes_;
  std::vector<Fragment> rules_;
  Meter meter_{"the form asked for"};
};

// Returns the grammar with a free thought allowed before the answer: the one that the prompt has opened, or one that
// the answer may open (text/thinking.h). Where an answer consists of messages, the grammar is that of the last one,
// from the content of the channel "final" on, or from its header on if it `has_header`. Throws Error where no text at
// all fits the grammar.
Grammar after_thought(Grammar grammar, const Thinking& thinking, bool has_header = false);

}  // namespace fidelio::grammar
