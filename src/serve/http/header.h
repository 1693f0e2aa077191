// serve: what stands in the header of a request and of an answer.
#pragma once
#include <string>
#include <vector>

namespace fidelio::serve {

// Lines of an answer's header that let the page that asks read it; "" for one of an origin that is not listed, and for no
// page at all.
std::string cors_of(const std::vector<std::string>& origins, const std::string& origin);
// What a request asks for, without the query. A client that takes us for its proxy names us before it.
std::string path_of(const std::string& target);
// The first lines of an answer's header.
std::string head_of(int status, const std::string& type, bool keep_alive, bool old_client);

}  // namespace fidelio::serve
