#include "serve/http/header.h"

#include <fmt/format.h>

#include <boost/beast/http/status.hpp>
#include <string_view>

#include "core/foreign/foreign_text.h"

namespace fidelio::serve {

namespace http = boost::beast::http;

std::string path_of(const std::string& target) {
  const std::string path = target.substr(0, target.find('?'));
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lower_case(path.substr(0, scheme.size())) != scheme) continue;
    const size_t slash = path.find('/', scheme.size());
    return slash == std::string::npos ? "/" : path.substr(slash);
  }
  return path;
}

std::string head_of(int status, const std::string& type, bool keep_alive, bool old_client) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nServer: fidelio/{}\r\nContent-Type: {}\r\n", status,
                  std::string(http::obsolete_reason(static_cast<http::status>(status))), FIDELIO_VERSION, type);
  if (!keep_alive) head += "Connection: close\r\n";
  if (keep_alive && old_client) head += "Connection: keep-alive\r\n";
  return head;
}

}  // namespace fidelio::serve
