// grammar: what schemas ask of a value together, without choices: one branch of all that anyOf, oneOf, if and not leave open.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/numbers.h"
#include "grammar/schema/document.h"

namespace fidelio::grammar {

// A schema that a value meets, or that it does not.
struct Term {
  const Schema* schema;
  bool negated = false;
  bool operator==(const Term&) const = default;
  bool operator<(const Term& b) const {
    return schema->number != b.schema->number ? schema->number < b.schema->number : negated < b.negated;
  }
};
using Terms = std::vector<Term>;

enum Kind : unsigned {
  kNull = 1,
  kTrue = 2,
  kFalse = 4,
  kInteger = 8,
  kFraction = 16,  // a number that is no integer
  kString = 32,
  kArray = 64,
  kObject = 128,
  kBoolean = kTrue | kFalse,
  kNumber = kInteger | kFraction,
  kEvery = 255
};
unsigned kind_of(const Json& value);

struct NumberForm {
  Bounds bounds{};
  std::vector<Decimal> steps{}, no_steps{}, unwanted{};  // multipleOf, what it is no multiple of, what it is not
};
struct StringForm {
  int64_t least = 0, most = -1;                          // characters; most < 0: without end
  std::vector<std::pair<std::string, bool>> patterns{};  // and whether it is negated
  std::vector<std::string> formats{}, unwanted{};
  bool plain() const { return least == 0 && most < 0 && patterns.empty() && formats.empty() && unwanted.empty(); }
};
// At least `least` and at most `most` of the items meet the term.
struct Contains {
  Term term;
  int64_t least, most;
};
struct ArrayForm {
  int64_t least = 0, most = -1;
  bool unique = false;
  std::vector<Contains> contains{};
  std::vector<std::pair<int64_t, Term>> also{};  // terms of the item at a place
};
// A property that `of` does not name, of whose value `term` is asked, or (names) whose name meets it.
struct Outside {
  const Schema* of;
  Term term;
  enum class Of : uint8_t { additional, matched, names } kind;
  std::string pattern{};  // of those that are matched
};
struct ObjectForm {
  int64_t least = 0, most = -1;
  std::vector<std::string> required{};
  std::set<std::string> absent{};
  std::vector<std::pair<std::string, Term>> also{};
  Terms names{};
  std::vector<Outside> outside{};
};

// A schema that was met on the way here, as a tree of who asked for it: what properties and items it evaluates is known to those
// above it up to the first that is not fed.
struct Applied {
  const Schema* schema;
  int parent;  // -1: none
  bool negated, feeds;
};

struct Branch {
  unsigned kinds = kEvery;
  bool typed = false;      // Its kinds were asked for.
  unsigned suggested = 0;  // kinds of which its keywords speak
  std::vector<Applied> applied{};
  std::vector<int> order{};  // of `applied`: what a reference names stands before what stands beside it
  std::optional<std::vector<const Json*>> constants{};
  std::vector<const Json*> unwanted{};
  NumberForm number{};
  StringForm string{};
  ArrayForm array{};
  ObjectForm object{};
};

}  // namespace fidelio::grammar
