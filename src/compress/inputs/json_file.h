// A file of JSON that a user names.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace fidelio {

nlohmann::json read_json_file(const std::string& path);  // throws Error with path and reason

}  // namespace fidelio
