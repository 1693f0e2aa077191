// This file compiles the branches of schemas to rules over bytes. Terms that hold together make one rule, which is made
// once.
#pragma once
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/schema/expansion.h"

namespace fidelio::grammar {

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root)
      : document_(root, grammar_.meter()), expansion_(document_, grammar_.meter()) {}
  Grammar compile();

 private:
  struct Member {
    std::string name;
    RuleId value;
    bool required;
  };
  struct Properties {
    std::vector<Member> members{};
    std::vector<std::string> known{};  // These are all names that the schemas mention, including forbidden ones.
    std::optional<RuleId> others{};    // It reads members of other names.
    int64_t needed = 0;
  };
  class Layout;
  class Items;

  Fragment text(std::string_view literal) { return grammar_.literal(literal); }
  Fragment row(std::initializer_list<Fragment> parts);
  Fragment space() { return grammar_.optional(grammar_.call(blank_)); }
  RuleId rule_of(Fragment body);
  RuleId rule_of(const Terms& terms);
  void add_common();

  Fragment body(const Terms& terms);
  void add(const Branch& branch, std::vector<Fragment>& all);
  // The functions below return nothing if no value fits; reason_ then says why.
  std::optional<Fragment> number(const NumberForm& form, unsigned kinds);
  std::optional<Fragment> number_within(const Bounds& bounds, const NumberForm& form, unsigned kinds);
  std::optional<Fragment> string(const StringForm& form);
  std::optional<Fragment> inside_of(const StringForm& form);  // It reads the part between the quotes.
  std::optional<Fragment> object(const Branch& branch);
  std::optional<Fragment> array(const Branch& branch);
  std::optional<Fragment> unique_items(const Branch& branch);
  std::optional<Fragment> listed_once(const Branch& branch);
  bool differ(const Branch& branch);

  bool is_nothing(const Terms& terms);
  std::optional<Properties> properties(const Branch& branch);
  std::optional<RuleId> other_members(const Branch& branch, const Properties& properties, bool wanted);
  std::optional<Fragment> name_of_others(const Branch& branch, StringForm form);
  Fragment member(const std::string& name, RuleId value);

  Grammar grammar_{};
  SchemaDocument document_;
  Expansion expansion_;
  RuleId any_ = 0, string_ = 0, character_ = 0, blank_ = 0, comma_ = 0, object_ = 0, array_ = 0, any_member_ = 0;
  std::map<Terms, RuleId> rules_{};
  std::vector<std::pair<RuleId, Terms>> left_{};  // These rules are named and not made yet.
  std::string where_ = "the schema", reason_{};   // They belong to the rule that is being made.
  std::string last_reason_{};                     // It is the reason for which a rule reads nothing.
};

}  // namespace fidelio::grammar
