// grammar: JSON Schema as a grammar. Every text it reads is a valid JSON text of the schema; of those it reads the ones
// in a plain form: properties in the schema's order, no additional ones where some are named, at most one blank or an
// indented new line between tokens, numbers of at most 15 digits before the point and 15 behind it.
//
// Imposed: type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
// minLength, maxLength, pattern, format (date, time, date-time, uuid, ipv4; and, where no pattern or length stands
// beside, duration, email, hostname, ipv6; else those alone), minimum, maximum and their exclusive forms, multipleOf, anyOf,
// oneOf of cases that exclude each other, allOf of objects, $ref within the document. What else would make an answer invalid
// is refused by name; what only describes is passed over.
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
