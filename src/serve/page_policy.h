// serve: what the chat page's browser is told that the page may do.
#pragma once
#include <string>
#include <string_view>

namespace fidelio::serve {

// A Content-Security-Policy. Everything the page needs is in it: its one script, known by its hash, its style, and this
// server. Whatever a model writes, no other script runs, no text is made HTML and nothing is fetched from elsewhere.
std::string page_policy(std::string_view page);

}  // namespace fidelio::serve
