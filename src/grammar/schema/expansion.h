// This file expands schemas that a value must meet together into branches. The branches are exact: a value meets the
// schemas if and only if it meets one of the branches. The exception is an anyOf of more than five cases beside
// unevaluated keywords, of which only one case is assumed to be met.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "grammar/automaton.h"
#include "grammar/schema/branch.h"

namespace fidelio::grammar {

class Expansion {
 public:
  Expansion(SchemaDocument& document, Meter& meter) : document_(document), meter_(meter) {}

  // Follows references, drops terms without restrictions, and sorts the rest in the order of the document, each once.
  Terms normalised(const Terms& terms);
  std::vector<Branch> branches(const Terms& terms);
  const std::vector<Branch>& kept_branches(const Terms& terms);  // These are the same branches, computed once.
  // This is the last reason for which a branch was left out.
  const std::string& reason() const { return reason_; }

  // Returns the terms of the property `name`. If `name` is null, these are the terms of a property that no schema names
  // and that matches the patterns for which `matching` returns true.
  using Matcher = std::function<bool(const std::string&)>;
  Terms of_property(const Branch& branch, const std::string* name, const Matcher& matching);
  Terms of_property(const Branch& branch, const std::string& name);
  Terms of_item(const Branch& branch, int64_t at);
  int64_t fixed_items(const Branch& branch) const;  // Each of the first items, this many, may have terms of its own.
  // These are the names of properties that the branch mentions, in order.
  std::vector<std::string> names(const Branch& branch);
  std::optional<std::vector<Json>> constants(const Terms& terms);
  bool holds(const Terms& terms, const Json& value);  // It is true if the value meets the terms.
  bool holds_branch(const Branch& branch, const Json& value);
  bool impossible(const Terms& terms, int depth = 0);  // It is true if it is evident that no value meets them.
  bool matches(const std::string& pattern, const std::string& text, bool whole = false);

 private:
  struct Pending {
    Term term;
    int parent;
    bool feeds;
    int beside;  // It is the place in `applied` if the reference was followed already, or -1.
  };
  struct Open;
  using Effect = std::function<void(Open&)>;
  struct Choice {
    std::vector<Effect> ways;
    unsigned kinds;  // The choice matters only for values of these kinds.
  };
  struct Open {
    Branch branch{};
    std::vector<Pending> pending{};
    std::vector<std::shared_ptr<const Choice>> choices{};
    bool dead = false;
  };
  struct Signature;

  void apply(Open& open, const Pending& next);
  void apply_keywords(Open& open, const Schema& schema, int self);
  bool apply_logic(Open& open, const Schema& schema, int self, const std::string& key, const Json& value, Terms& next);
  void apply_typed(Open& open, const Schema& schema, const std::string& key, const Json& value);
  bool apply_object(Open& open, const Schema& schema, const std::string& key, const Json& value);
  bool apply_array(Open& open, const Schema& schema, const std::string& key, const Json& value);
  bool apply_number(Open& open, const Schema& schema, const std::string& key, const Json& value);
  bool apply_string(Open& open, const Schema& schema, const std::string& key, const Json& value);
  void apply_constants(Open& open, const Schema& schema, const std::string& key, const Json& value);
  void apply_dependencies(Open& open, const Schema& schema, int self, const std::string& key, const Json& value);
  void apply_any(Open& open, int self, const std::vector<const Schema*>& cases);
  void apply_one(Open& open, const Schema& schema, int self, const std::vector<const Schema*>& cases);
  void apply_if(Open& open, const Schema& schema, int self, const Json& condition);
  // A schema is not met if one of its keywords is not, and each keyword gives such a way.
  using Ways = std::vector<Effect>;
  void apply_negated(Open& open, const Schema& schema, int self);
  bool negate_logic(const Schema& schema, int self, const std::string& key, const Json& value, Ways& ways);
  bool negate_dependencies(const Schema& schema, int self, const std::string& key, const Json& value, Ways& ways);
  bool negate_plain(const Schema& schema, const std::string& key, const Json& value, Ways& ways);
  bool negate_object(const Schema& schema, const std::string& key, const Json& value, Ways& ways);
  bool negate_array(const Schema& schema, const std::string& key, const Json& value, Ways& ways);
  void choose_outside(Open& open);
  bool finish(Branch& branch);  // It returns false if no value meets the branch.
  bool finish_constants(Branch& branch);
  bool is_watched(const Branch& branch, int self) const;

  // The ways of a choice use these functions to change an open branch.
  void kill(Open& open, std::string reason);
  void no_object(Open& open, const std::string& name);
  void restrict_to(Open& open, unsigned kinds);
  void require(Open& open, const std::string& name);
  void forbid(Open& open, const std::string& name);
  void choose(Open& open, std::vector<Effect> ways, unsigned kinds);
  static Effect meeting(int self, Terms terms, bool feeds);

  std::vector<const Schema*> listed(const Schema& schema, const std::string& key, const Json& value);
  std::vector<std::string> names_in(const Schema& schema, const std::string& key, const Json& value);
  const Signature& signature(const Schema& schema);
  const std::vector<std::vector<size_t>>& together(const Schema& schema, const std::vector<const Schema*>& cases);
  bool exclusive(const Schema& a, const Schema& b, bool looks_inside);
  bool feeds(const Branch& branch, size_t from, int to) const;
  bool evaluates(const Branch& branch, int self, const std::string* name, const Matcher& matching);
  const Schema& either(const std::vector<const Schema*>& schemas);

  bool holds_number(const NumberForm& form, const Json& value);
  bool holds_string(const StringForm& form, const std::string& text);
  bool holds_array(const Branch& branch, const Json& value);
  bool holds_object(const Branch& branch, const Json& value);

  SchemaDocument& document_;
  Meter& meter_;
  std::map<Terms, std::vector<Branch>> kept_{};
  std::map<std::pair<std::string, bool>, std::unique_ptr<Automaton>> patterns_{};
  std::unordered_map<const Schema*, std::shared_ptr<Signature>> signatures_{};
  std::unordered_map<const Schema*, std::vector<std::vector<size_t>>> together_{};
  std::map<std::vector<const Schema*>, const Schema*> either_{};
  std::string reason_ = "no value at all fits";
};

// Returns the count that a keyword gives, as 2 or 2.0. Throws Error for other values.
int64_t count_of(const Schema& schema, const std::string& key, const Json& value);
// Returns a bound with all digits that JSON's reader kept.
Bound bound_of(const Schema& schema, const std::string& key, const Json& value, bool low, bool excluded);
unsigned kinds_of_type(const Schema& schema, const Json& type);

}  // namespace fidelio::grammar
