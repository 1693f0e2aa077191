// For tests: whether a value is valid for a schema, found slowly and in another way than by the grammar. References are pointers into
// the document or $anchor; format describes.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace fidelio::grammar {

bool valid_for(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value);

}  // namespace fidelio::grammar
