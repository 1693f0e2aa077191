// This file lets tests check whether a value is valid for a schema, slowly and independently of the grammar. References
// must be pointers into the document or $anchor, and format is only an annotation.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace fidelio::grammar {

bool valid_for(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value);

}  // namespace fidelio::grammar
