// This file makes the policy that tells a browser what the chat page may do.
#pragma once
#include <string>
#include <string_view>

namespace fidelio::serve {

// Returns a Content-Security-Policy. The page itself contains all it needs: its one script, known by its hash, and its
// style; it connects only to this server. Whatever a model writes, no other script runs, no text becomes HTML and
// nothing is fetched from elsewhere.
std::string page_policy(std::string_view page);

}  // namespace fidelio::serve
