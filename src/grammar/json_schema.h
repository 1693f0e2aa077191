// grammar: JSON Schema (draft 2020-12) as a grammar. Every text it reads is a valid JSON text of the schema; of those it reads the
// ones in a plain form: properties in the schema's order, no additional ones where some are named and it is not said what others
// hold, at most one blank or an indented new line between tokens, numbers of at most 15 digits before the point (more where a
// bound has more) and 15 behind it.
//
// All keywords for validation are imposed, and format (date, time, date-time, uuid, ipv4; and, where no pattern or length stands beside,
// duration, email, hostname, ipv6; else those alone). What else would make an answer invalid is refused by name (docs/serving.md has
// the list); what only describes is passed over. schema/document.h finds the schemas, schema/expansion.h says what several of them
// ask together, and schema/compiler.h makes rules of that.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

// Throw Error naming the place in the schema.
Grammar schema_grammar(const nlohmann::ordered_json& schema);
Grammar json_object_grammar();  // any object
Grammar regex_grammar(std::string_view pattern);
Grammar choice_grammar(const std::vector<std::string>& texts);  // one of them

}  // namespace fidelio::grammar
