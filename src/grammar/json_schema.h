// This file turns a JSON Schema (draft 2020-12) into a grammar. Every text that the grammar reads is a valid JSON text
// of the schema. It reads those texts only in a plain form: properties are in the schema's order; there are no
// additional ones where some are named and nothing describes the others; tokens are separated by at most one blank or
// an indented new line; and numbers have at most 15 digits before the point (more where a bound has more) and 15 after
// it.
//
// All keywords for validation are imposed. So is `format` for date, time, date-time, uuid and ipv4, and, where no
// pattern or length stands beside it, for duration, email, hostname and ipv6; beside a pattern or length these are
// dropped. Any other keyword that could make an answer invalid is refused by name (docs/serving.md has the list), and
// annotations are ignored. schema/document.h finds the schemas, schema/expansion.h combines several that hold together,
// and schema/compiler.h makes rules from the result.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

// These throw Error naming the place in the schema.
Grammar schema_grammar(const nlohmann::ordered_json& schema);
Grammar json_object_grammar();  // It reads any object.
Grammar regex_grammar(std::string_view pattern);
Grammar choice_grammar(const std::vector<std::string>& texts);  // It reads one of the texts.

}  // namespace fidelio::grammar
