// This file defines Branch: everything that schemas together demand of a value, without any choice left. A schema with
// choices (anyOf, oneOf, if, not) has several branches.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/numbers.h"
#include "grammar/schema/document.h"

namespace fidelio::grammar {

// A Term is a schema that a value must meet, or must not meet if `negated`.
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
  kFraction = 16,  // This is a number that is no integer.
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
  // `steps` are units of multipleOf, `no_steps` units that it must not be a multiple of, `unwanted` forbidden values.
  std::vector<Decimal> steps{}, no_steps{}, unwanted{};
};
struct StringForm {
  int64_t least = 0, most = -1;  // They count characters; with most < 0 there is no upper limit.
  std::vector<std::pair<std::string, bool>> patterns{};  // The flag says that the pattern must not match.
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
  std::vector<std::pair<int64_t, Term>> also{};  // These are further terms for the item at a place.
};
// This puts a term on a property that the schema `of` does not name: on its value, or (names) on its name.
struct Outside {
  const Schema* of;
  Term term;
  enum class Of : uint8_t { additional, matched, names } kind;
  std::string pattern{};  // It is for `matched`: the pattern of these properties.
};
struct ObjectForm {
  int64_t least = 0, most = -1;
  std::vector<std::string> required{};
  std::set<std::string> absent{};
  std::vector<std::pair<std::string, Term>> also{};
  Terms names{};
  std::vector<Outside> outside{};
};

// This is a schema that is applied to the value, together with the one that applied it. The properties and items that
// it evaluates also count for its ancestors, up to the first link that does not feed its parent.
struct Applied {
  const Schema* schema;
  int parent;  // It is -1 for none.
  bool negated, feeds;
};

struct Branch {
  unsigned kinds = kEvery;
  bool typed = false;      // A keyword restricts the kinds.
  unsigned suggested = 0;  // Its keywords are about these kinds.
  std::vector<Applied> applied{};
  // These are indices into `applied`. The target of a reference stands before schemas beside the reference.
  std::vector<int> order{};
  std::optional<std::vector<const Json*>> constants{};
  std::vector<const Json*> unwanted{};
  NumberForm number{};
  StringForm string{};
  ArrayForm array{};
  ObjectForm object{};
};

}  // namespace fidelio::grammar
