#include "grammar/grammar.h"

#include <utility>

#include "core/error.h"
#include "grammar/automaton.h"

namespace fidelio::grammar {

NodeId Grammar::add_node() {
  check(nodes_.size() < kMostNodes, "the form asked for has more than {} states: make its counts smaller", kMostNodes);
  nodes_.emplace_back();
  return static_cast<NodeId>(nodes_.size() - 1);
}

RuleId Grammar::add_rule() {
  rules_.push_back({-1, -1});
  return static_cast<RuleId>(rules_.size() - 1);
}

Fragment Grammar::empty() {
  const NodeId only = add_node();
  return {only, only};
}

Fragment Grammar::nothing() { return {add_node(), add_node()}; }

Fragment Grammar::byte(uint8_t low, uint8_t high) {
  const Fragment f{add_node(), add_node()};
  nodes_[static_cast<size_t>(f.first)].bytes.push_back({low, high, f.last});
  return f;
}

Fragment Grammar::literal(std::string_view text) {
  Fragment f = empty();
  for (const char c : text) {
    const NodeId next = add_node();
    nodes_[static_cast<size_t>(f.last)].bytes.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c), next});
    f.last = next;
  }
  return f;
}

Fragment Grammar::sequence(Fragment a, Fragment b) {
  join(a.last, b.first);
  return {a.first, b.last};
}

Fragment Grammar::choice(const std::vector<Fragment>& all) {
  const Fragment f{add_node(), add_node()};
  for (const Fragment& one : all) {
    join(f.first, one.first);
    join(one.last, f.last);
  }
  return f;
}

Fragment Grammar::optional(Fragment a) {
  const Fragment f{add_node(), add_node()};
  join(f.first, a.first);
  join(f.first, f.last);
  join(a.last, f.last);
  return f;
}

Fragment Grammar::star(Fragment a) {
  const NodeId hub = add_node(), last = add_node();
  join(hub, a.first);
  join(a.last, hub);
  join(hub, last);
  return {hub, last};
}

Fragment Grammar::repeat(const std::function<Fragment()>& make, int64_t low, int64_t high) {
  Fragment all = empty();
  for (int64_t i = 0; i < low; ++i) all = sequence(all, make());
  if (high < 0) return sequence(all, star(make()));
  const NodeId last = add_node();  // Each further copy may be the last one.
  for (int64_t i = low; i < high; ++i) {
    join(all.last, last);
    all = sequence(all, make());
  }
  join(all.last, last);
  return {all.first, last};
}

Fragment Grammar::call(RuleId rule) {
  const Fragment f{add_node(), add_node()};
  nodes_[static_cast<size_t>(f.first)].calls.push_back({rule, f.last});
  return f;
}

// Each node stands for the length of the longest beginning of the mark that ends the text read so far (Knuth, Morris,
// Pratt).
Fragment Grammar::up_to(std::string_view mark) {
  std::vector<NodeId> at;
  for (size_t i = 0; i <= mark.size(); ++i) at.push_back(add_node());
  for (size_t i = 0; i < mark.size(); ++i) {
    const auto next = [&](int byte) {
      const std::string read = std::string(mark.substr(0, i)) + static_cast<char>(byte);
      return read == mark.substr(0, i + 1) ? i + 1 : begun(read, mark);
    };
    for (int low = 0, high = 0; low < 256; low = high + 1) {
      for (high = low; high < 255 && next(high + 1) == next(low);) ++high;
      read(at[i], static_cast<uint8_t>(low), static_cast<uint8_t>(high), at[next(low)]);
    }
  }
  return {at.front(), at.back()};
}

void Grammar::put_before(Fragment prefix) {
  const RuleId was = add_rule();
  define(was, rules_[0]);
  for (Node& node : nodes_)
    for (CallEdge& edge : node.calls)
      if (edge.rule == 0) edge.rule = was;
  define(0, sequence(prefix, call(was)));
}

// Removes edges from which the end of their rule cannot be reached, so everything that is begun can also be ended.
bool Grammar::prune() {
  constexpr RuleId kNone = -1;
  struct Before {
    NodeId node;
    RuleId through;
  };
  std::vector<std::vector<Before>> before(nodes_.size());
  std::vector<std::vector<NodeId>> waiting(rules_.size());  // These nodes wait for the rule that they call.
  std::vector<std::vector<RuleId>> first_of(nodes_.size());
  std::vector<char> ends(nodes_.size()), rule_ends(rules_.size());
  std::vector<NodeId> left;
  const auto mark = [&](NodeId node) {
    if (std::exchange(ends[static_cast<size_t>(node)], 1) == 0) left.push_back(node);
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    for (const ByteEdge& edge : nodes_[i].bytes) before[static_cast<size_t>(edge.to)].push_back({id, kNone});
    for (const NodeId to : nodes_[i].free) before[static_cast<size_t>(to)].push_back({id, kNone});
    for (const CallEdge& edge : nodes_[i].calls) before[static_cast<size_t>(edge.to)].push_back({id, edge.rule});
  }
  for (size_t i = 0; i < rules_.size(); ++i) {
    first_of[static_cast<size_t>(rules_[i].first)].push_back(static_cast<RuleId>(i));
    mark(rules_[i].last);
  }
  while (!left.empty()) {
    const auto node = static_cast<size_t>(left.back());
    left.pop_back();
    for (const RuleId rule : first_of[node]) {
      rule_ends[static_cast<size_t>(rule)] = 1;
      for (const NodeId caller : waiting[static_cast<size_t>(rule)]) mark(caller);
    }
    for (const Before& one : before[node]) {
      const auto rule = static_cast<size_t>(one.through);
      if (one.through == kNone || rule_ends[rule] != 0)
        mark(one.node);
      else
        waiting[rule].push_back(one.node);
    }
  }
  const auto leads = [&](NodeId to) { return ends[static_cast<size_t>(to)] != 0; };
  for (Node& node : nodes_) {
    std::erase_if(node.bytes, [&](const ByteEdge& edge) { return !leads(edge.to); });
    std::erase_if(node.free, [&](NodeId to) { return !leads(to); });
    std::erase_if(node.calls, [&](const CallEdge& edge) {
      return !leads(edge.to) || rule_ends[static_cast<size_t>(edge.rule)] == 0;
    });
  }
  return rule_ends[0] != 0;
}

RuleId Grammar::adopt(const Grammar& other) {
  const auto nodes = static_cast<NodeId>(nodes_.size());
  const auto rules = static_cast<RuleId>(rules_.size());
  check(nodes_.size() + other.nodes_.size() <= kMostNodes,
        "the form asked for has more than {} states: make its counts smaller", kMostNodes);
  for (Node node : other.nodes_) {
    for (ByteEdge& edge : node.bytes) edge.to += nodes;
    for (NodeId& to : node.free) to += nodes;
    for (CallEdge& edge : node.calls) edge.rule += rules, edge.to += nodes;
    nodes_.push_back(std::move(node));
  }
  for (const Fragment& rule : other.rules_) rules_.push_back({rule.first + nodes, rule.last + nodes});
  return rules;
}

namespace {

// Reads messages that are thoughts or texts before the last one, each up to the next one's header.
Fragment messages_before(Grammar& g) {
  const auto mark = [&](const ChannelMark& which) { return g.literal(which.text); };
  const Fragment channel = g.choice({g.literal("analysis"), g.literal("commentary")});
  const Fragment header = g.sequence(g.sequence(mark(kChannelName), channel), mark(kChannelMessage));
  const Fragment next = g.sequence(mark(kChannelStart), g.literal("assistant"));
  return g.star(g.sequence(g.sequence(header, g.up_to(kChannelEnd.text)), next));
}

Fragment final_header(Grammar& g) {
  const Fragment type = g.optional(g.literal(fmt::format(" {}json", kChannelConstrain.text)));
  const Fragment channel = g.literal(fmt::format("{}final", kChannelName.text));
  return g.sequence(g.sequence(channel, type), g.literal(kChannelMessage.text));
}

Grammar after_messages(Grammar g, const Channels& channels, bool has_header) {
  ChannelReader reader(channels.begun);
  reader.next(false);
  const auto rest = [&] { return has_header ? messages_before(g) : g.sequence(messages_before(g), final_header(g)); };
  const bool in_text = !reader.in_header() && reader.header().kind() == ChannelHeader::Kind::text;
  if (in_text && !has_header) return g;  // A text of the prompt is continued.
  if (!reader.in_header()) {             // So is a thought, which must end first.
    const Fragment next = g.literal(fmt::format("{}assistant", kChannelStart.text));
    g.put_before(g.sequence(g.sequence(g.up_to(kChannelEnd.text), next), rest()));
  } else if (channels.begun.find(kChannelName.text) != std::string::npos) {
    g.put_before(g.up_to(kChannelMessage.text));
  } else {
    g.put_before(rest());
  }
  return g;
}

}  // namespace

Grammar after_thought(Grammar grammar, const Thinking& thinking, bool has_header) {
  if (!thinking.possible()) return grammar;
  // This throws Error for a form that no text fits. It would otherwise fail only after the thought.
  Automaton{grammar};
  if (thinking.channels) return after_messages(std::move(grammar), *thinking.channels, has_header);
  constexpr int64_t kMostBlanks = 8;
  const auto blanks = [&] {
    const auto blank = [&] {
      return grammar.choice({grammar.byte('\t', '\n'), grammar.literal("\r"), grammar.literal(" ")});
    };
    return grammar.repeat(blank, 0, kMostBlanks);
  };
  if (thinking.opened) {
    grammar.put_before(grammar.sequence(grammar.up_to(thinking.opened->end), blanks()));
    return grammar;
  }
  std::vector<Fragment> ways = {grammar.empty()};  // The model need not think.
  for (const ThinkingMarks& marks : thinking.marks) {
    // No blank is allowed before the mark. Any model may begin with a blank, and it could then only think.
    const Fragment opens = grammar.literal(marks.begin);
    ways.push_back(grammar.sequence(grammar.sequence(opens, grammar.up_to(marks.end)), blanks()));
  }
  grammar.put_before(grammar.choice(ways));
  return grammar;
}

}  // namespace fidelio::grammar
