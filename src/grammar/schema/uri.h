// This file resolves references between schemas as URIs (RFC 3986, section 5.2).
#pragma once
#include <string>

namespace fidelio::grammar {

// Returns the URI that `reference` names in a document whose own URI is `base`.
std::string resolved_uri(const std::string& base, const std::string& reference);

}  // namespace fidelio::grammar
