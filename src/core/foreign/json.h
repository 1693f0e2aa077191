// This file turns JSON that somebody else wrote into values, and is the only way to do so. Nesting, values and memory
// are bounded (core/foreign/limits.h), so copying, printing and destroying the result, which recurse, are safe.
// Anything that is not strict JSON is refused with an Error that names the file.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/foreign/limits.h"

namespace fidelio {

// `what` names the text in messages, for example a path or "tools". Throws Error for text that is not JSON, is nested
// more than `nesting` deep, or whose values take more memory than kMaxMemory plus the size of the text.
nlohmann::json parse_json(std::string_view text, const std::string& what, int nesting = kMaxNesting);
// Objects of the result keep the order of the file and are searched from end to end. An object that takes more than
// kMaxWork to build this way (one of 12,000 members, say) is refused as well.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what);
// Parses one of several texts (the lines of a file, say) whose values live together and share one limit.
nlohmann::json parse_json(std::string_view text, const std::string& what, Meter& meter, int nesting = kMaxNesting);

// Parses a text and refuses an object in which a key stands twice, at any depth. Other JSON readers silently take the
// last of the two.
nlohmann::json parse_unique_json(std::string_view text, const std::string& what, int nesting = kMaxNesting);

// Reads a whole file that holds an object. Throws Error naming the file.
nlohmann::json read_json_object(const std::string& path);

}  // namespace fidelio
