// This file reads and writes parts of the headers of requests and answers.
#pragma once
#include <string>

namespace fidelio::serve {

// Returns the path that a request asks for, without the query. A client that treats us as its proxy puts our name
// before it.
std::string path_of(const std::string& target);
// Returns the first lines of an answer's header.
std::string head_of(int status, const std::string& type, bool keep_alive, bool old_client);

}  // namespace fidelio::serve
