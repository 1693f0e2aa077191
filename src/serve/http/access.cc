#include "serve/http/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/host_name.hpp>

#include "core/foreign/foreign_text.h"

namespace fidelio::serve {
namespace {

bool lists(const std::vector<std::string>& all, std::string_view name) {
  return std::find(all.begin(), all.end(), name) != all.end();
}

// Removes from the host of a header the port, the brackets of an IPv6 address and the final dot of the DNS root. The
// result is in lower case.
std::string bare_name(std::string_view host) {
  if (host.starts_with('[')) return lower_case(host.substr(1, host.find(']') - 1));
  std::string name = lower_case(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

// The DNS never assigns names under these (RFC 6761, 6762, 8375 and ICANN's .internal).
bool is_private_name(std::string_view name) {
  for (const std::string_view end : {".localhost", ".local", ".internal", ".home.arpa"})
    if (name.ends_with(end)) return true;
  return false;
}

// The browser's Sec-Fetch-Site counts too, as a proxy may change Host. The scheme is not compared, as the proxy may
// speak TLS.
bool is_own_page(const Asked& asked) {
  const size_t scheme = asked.origin.find("://");
  return asked.site == "same-origin" ||
         (scheme != std::string_view::npos && asked.origin.substr(scheme + 3) == asked.host);
}

// Removes the parameters of a media type. The result is in lower case.
std::string bare_type(std::string_view type) {
  const std::string_view bare = type.substr(0, type.find(';'));
  const size_t end = bare.find_last_not_of(" \t");
  return lower_case(bare.substr(0, end == std::string_view::npos ? 0 : end + 1));
}

Refusal refusal_of_type(const Asked& asked) {
  if (asked.method != "POST" || asked.type.empty()) return {};
  const std::string type = bare_type(asked.type);
  if (type == "application/json" || type.ends_with("+json")) return {};
  const bool form = type == "application/x-www-form-urlencoded";
  // The examples of Ollama's pages are curl lines with -d alone. A web page that posts a form sends its Origin.
  if (form && asked.path.starts_with("/api/")) return {};
  return {415,
          fmt::format("Content-Type: expected application/json, found {}{}", foreign(type),
                      form ? " (as curl -d says it: give the body by --json instead of -d, or add -H 'Content-Type: "
                             "application/json')"
                           : ": say that the body is JSON"),
          "unsupported_media_type"};
}

}  // namespace

bool is_own_name(const Access& access, Reach reach, std::string_view host) {
  if (host.empty() || reach == Reach::here || lists(access.hosts, "*")) return true;
  const std::string name = bare_name(host);
  if (name == "localhost" || name.ends_with(".localhost") || lists(access.hosts, name) || lists(access.hosts, host))
    return true;
  boost::system::error_code no_address;
  const auto address = boost::asio::ip::make_address(name, no_address);
  if (reach == Reach::machine) return !no_address && address.is_loopback();
  if (!no_address || name.find('.') == std::string::npos || is_private_name(name)) return true;
  boost::system::error_code unnamed;
  return name == lower_case(boost::asio::ip::host_name(unnamed));
}

Refusal refusal_of(const Access& access, Reach reach, const Asked& asked) {
  if (access.names && !is_own_name(access, reach, asked.host))
    return {403,
            fmt::format("Host: expected {}, found {}, which may be the name of a stranger's page: if it is this "
                        "server's, start it with --allowed-host {}",
                        reach == Reach::machine ? "localhost or a loopback address" : "an address or a local name",
                        foreign(asked.host), foreign(bare_name(asked.host))),
            "host_not_allowed"};
  const std::string_view origin = asked.origin;
  if (!origin.empty() && !is_own_page(asked) && !lists(access.origins, "*") && !lists(access.origins, origin))
    return {403,
            fmt::format("Origin: a page of {} asks, and only this server's own may: to let it, start the server with "
                        "--allow-origin {}",
                        foreign(origin), foreign(origin)),
            "origin_not_allowed"};
  return refusal_of_type(asked);
}

std::string cors_of(const std::vector<std::string>& origins, std::string_view origin) {
  if (origin.empty()) return "";
  if (lists(origins, "*")) return "Access-Control-Allow-Origin: *\r\n";
  return lists(origins, origin) ? fmt::format("Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n", origin) : "";
}

}  // namespace fidelio::serve
