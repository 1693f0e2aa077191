// serve: what stands in the header of a request and of an answer.
#pragma once
#include <string>

namespace fidelio::serve {

// What a request asks for, without the query. A client that takes us for its proxy names us before it.
std::string path_of(const std::string& target);
// The first lines of an answer's header.
std::string head_of(int status, const std::string& type, bool keep_alive, bool old_client);

}  // namespace fidelio::serve
