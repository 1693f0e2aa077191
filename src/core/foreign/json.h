// The one way in which JSON that somebody else wrote becomes values: nesting, values and memory are bounded
// (core/foreign/limits.h), so that copying, printing and destroying what comes out, which recurse, are safe. Everything written
// in another way than JSON's is refused, naming the file.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/foreign/limits.h"

namespace fidelio {

// `what` names the text in messages: a path, "tools". Throws Error for text that is not JSON, is nested more than
// `nesting` deep, or whose values take more memory than kMaxMemory and the text's own size.
nlohmann::json parse_json(std::string_view text, const std::string& what, int nesting = kMaxNesting);
// Its objects keep the order of the file and are searched from end to end: what takes more than kMaxWork to build so
// (one of 12,000 members, say) is refused as well.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what);
// One of several texts (lines of a file) whose values live together and are paid for together.
nlohmann::json parse_json(std::string_view text, const std::string& what, Meter& meter, int nesting = kMaxNesting);

// An object in which no key stands twice, at any depth (of two, JSON readers take the last silently).
nlohmann::json parse_unique_json(std::string_view text, const std::string& what, int nesting = kMaxNesting);

// A whole file that holds an object. Throws Error naming it.
nlohmann::json read_json_object(const std::string& path);

}  // namespace fidelio
